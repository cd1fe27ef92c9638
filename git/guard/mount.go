package guard

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// followsNone is the flag of statfs(2) for mounts in which the kernel follows no symbolic links (ST_NOSYMFOLLOW, Linux
// 5.10).
const followsNone = 0x2000

// Restrictions are the mount attributes of a git directory that Mount has mounted, in the form that mount_setattr(2)
// takes. They need Linux 5.14.
const Restrictions = unix.MOUNT_ATTR_NOSYMFOLLOW | unix.MOUNT_ATTR_NOEXEC

// Mount mounts the git directory at path over itself with Restrictions. It creates the directory if that does not
// exist, and does nothing if the directory is mounted already.
func Mount(path string) error {
	if err := mount(path); err != nil {
		return fmt.Errorf("guard git directory %s: %w", path, err)
	}
	return nil
}

func mount(path string) error {
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if mounted(path) {
		return nil
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	attr := unix.MountAttr{Attr_set: Restrictions | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV,
		Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("mount without symbolic links, which needs Linux 5.14: %w", err)
	}
	return unix.MoveMount(fd, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// Unmount ends Mount. It does nothing if the git directory is not mounted.
func Unmount(path string) error {
	if !mounted(path) {
		return nil
	}
	// EINVAL means that the directory is not a mount point; the flag is that of its file system.
	if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount git directory %s: %w", path, err)
	}
	return nil
}

// mounted reports whether Mount has mounted the git directory at path. A file system on which the state directory is
// mounted may have the same flag; then it protects the git directory too.
func mounted(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Flags&followsNone != 0
}
