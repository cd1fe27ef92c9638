package bind

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/host/mount/mountpoint"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
)

// Second makes the mount at dir, with the bind mounts below it, visible at the existing directory target too, unless it is visible there
// already. The restriction to reading is set before the bind mount is attached.
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

// RemoveSecond removes a bind mount that Second has made, even if it is in use. It returns false if there is none at target: a mount of
// which no directory is that of a mount of the daemon, which the function served reports, belongs to another daemon.
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
