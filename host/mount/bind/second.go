package bind

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/host/mount/mountpoint"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
)

// Second bind-mounts the mount at dir, with the bind mounts below it, at the existing directory target, unless it is
// mounted there already. If readOnly is set, the bind mount is read-only from the start.
func Second(dir, target string, readOnly bool) error {
	return fuse.WithoutDevice(func() error {
		table, err := mountinfo.Self()
		if err != nil {
			return err
		}
		source, ok := table.At(dir)
		if !ok || source.Type != mountpoint.FUSEType {
			return fmt.Errorf("directory %s has no artifactfs mount", dir)
		}
		if at, ok := table.At(target); ok {
			if at.Type == mountpoint.FUSEType && at.Device == source.Device {
				return nil
			}
			return mountpoint.ErrTaken
		}
		tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if err != nil {
			return fmt.Errorf("copy mount: %w", err)
		}
		defer unix.Close(tree)
		if readOnly {
			attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
			if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
				return fmt.Errorf("make mount read-only: %w", err)
			}
		}
		if err := unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("attach mount: %w", err)
		}
		return nil
	})
}

// RemoveSecond removes a bind mount at target that Second has created, even if it is in use. It returns false if there
// is none. The function served reports whether the daemon serves a mount at a directory; a bind mount of another mount
// belongs to another daemon, and is not removed.
func RemoveSecond(target string, served func(dir string) bool) (removed bool, err error) {
	err = fuse.WithoutDevice(func() error {
		table, err := mountinfo.Self()
		if err != nil {
			return err
		}
		at, ok := table.At(target)
		if !ok || at.Type != mountpoint.FUSEType {
			return nil
		}
		for _, m := range table {
			removed = removed || m.Device == at.Device && m.Point != target && served(m.Point)
		}
		if !removed {
			return nil
		}
		return unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	})
	return removed, err
}
