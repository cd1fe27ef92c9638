package mountpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
)

const (
	// FUSEType is the file-system type that artifactfs mounts have in the mount table.
	FUSEType = "fuse.artifactfs"
	// autofsType is the file-system type of an automount point in the mount table. An access to an automount point
	// waits until the automounter has mounted a file system over it (see autofs(5) and systemd.automount(5)).
	autofsType = "autofs"
	// ProbeTime is the maximum time for which IsDead waits for a reply of the process that serves a mount. A mount that
	// does not reply in this time hangs, but is not regarded as dead.
	ProbeTime = 2 * time.Second
	// maxStacked is the maximum number of dead mounts, one over the other, that are removed from one directory.
	maxStacked = 16
)

// These errors describe problems with the directory of a mount, or with this host.
var (
	// ErrAlreadyMounted means that an artifactfs mount exists at the directory and is served by a process.
	ErrAlreadyMounted = errors.New("directory already has an artifactfs mount")
	// ErrTaken means that another file system is mounted at the directory of a mount request.
	ErrTaken = errors.New("another file system is mounted at the directory")
	// ErrInside means that the directory of a mount request is inside another artifactfs mount.
	ErrInside = errors.New("directory is inside another mount")
	// ErrNotEmpty means that the directory of a mount request has entries.
	ErrNotEmpty = errors.New("directory is not empty")
	// ErrNotDirectory means that the path of a mount request is not a directory.
	ErrNotDirectory = errors.New("path is not a directory")
	// ErrDeadMount means that the process that served the mount at a directory has died, and that the mount cannot be
	// removed.
	ErrDeadMount = errors.New("directory has a dead mount, whose process has exited")
	// ErrUserMount means that fusermount3, which mounts for users other than root, has failed.
	ErrUserMount = errors.New("fusermount3 failed to mount")
	// ErrNoFUSE means that /dev/fuse cannot be used on this host.
	ErrNoFUSE = errors.New("/dev/fuse cannot be used")
)

// errAutomount means that the directory of a mount request is the mount point of an automounter that has not sent this
// request.
var errAutomount = errors.New("directory is an automount point, but the automounter has not sent this request")

// Point is the directory of a mount, with a list of the directories that were created for it.
type Point struct {
	Dir     string
	Created []string // directories that Prepare has created, the deepest one last
}

// Prepare creates the directory dir for a mount if it does not exist, removes dead artifactfs mounts from it, and
// checks that it is empty. dir must not be inside another artifactfs mount, except the mount at parentDir, unless that
// is "". If Prepare fails, it removes the directories that it has created.
//
// Prepare reads the mount table before it calls stat(2) for dir, for two reasons: stat may wait for the process that
// serves a mount, and for a dead mount the kernel may answer from its cache.
func Prepare(ctx context.Context, dir, parentDir string) (Point, error) {
	p := Point{Dir: dir}
	err := CheckDevice()
	if err != nil {
		return p, err
	}
	if err = clearDead(ctx, dir, parentDir); err != nil {
		return p, err
	}
	if err = p.make(); err == nil {
		err = p.empty()
	}
	if err != nil {
		p.Remove()
	}
	return p, err
}

// Check returns the error that Prepare would return because of what is mounted at dir or is in it. It changes nothing.
func Check(dir string) error {
	mounts, err := mountinfo.Self()
	if err != nil {
		return err
	}
	if it, ok := mounts.At(dir); ok && it.Type == FUSEType {
		if IsDead(dir) { // Prepare removes the dead mount
			return nil
		}
		return ErrAlreadyMounted
	}
	p := Point{Dir: dir}
	if err := p.empty(); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// CheckDevice returns an error that wraps ErrNoFUSE and the cause if this host cannot create FUSE mounts. Users other
// than root do not need access to /dev/fuse, because fusermount3 opens it for them.
func CheckDevice() error {
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if os.Geteuid() != 0 && errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoFUSE, errors.Unwrap(err))
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("%w: %w", ErrNoFUSE, err)
	}
	// The device number 10, 229 is assigned in Documentation/admin-guide/devices.txt of Linux.
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != unix.Mkdev(10, 229) {
		return fmt.Errorf("%w: file is not the FUSE device", ErrNoFUSE)
	}
	return nil
}

// RemoveDead removes dead artifactfs mounts from dir. It returns false if there is none.
func RemoveDead(ctx context.Context, dir string) (removed bool, _ error) {
	for range maxStacked {
		mounts, err := mountinfo.Self()
		if err != nil {
			return removed, err
		}
		if it, ok := mounts.At(dir); !ok || it.Type != FUSEType || !IsDead(dir) {
			return removed, nil
		}
		if err := Detach(ctx, dir); err != nil {
			return removed, fmt.Errorf("remove dead mount: %w", err)
		}
		removed = true
	}
	return removed, ErrDeadMount
}

// clearDead removes dead artifactfs mounts from dir. It returns an error if another mount is at dir, or if dir is
// inside an artifactfs mount other than the one at parentDir.
func clearDead(ctx context.Context, dir, parentDir string) error {
	for range maxStacked {
		mounts, err := mountinfo.Self()
		if err != nil {
			return err
		}
		it, _ := mounts.Above(dir)
		switch at, kind := it.Point, it.Type; {
		case kind == autofsType && at == dir:
			return errAutomount
		case kind != FUSEType && at == dir && dir != "/":
			return ErrTaken
		case kind != FUSEType, at != dir && at == parentDir:
			return nil
		case at != dir:
			return fmt.Errorf("%w at %s", ErrInside, at)
		case !IsDead(dir):
			return ErrAlreadyMounted
		}
		if err := Detach(ctx, dir); err != nil {
			return fmt.Errorf("%w; remove the dead mount: %w", ErrDeadMount, err)
		}
	}
	return ErrDeadMount
}

// IsDead reports whether the process that served the mount at dir has certainly died. It waits for at most ProbeTime.
// It calls statfs(2), which the kernel never answers from a cache, and which fails at once if no process has the FUSE
// connection open (fuse_get_req in fs/fuse/dev.c).
func IsDead(dir string) bool {
	answer := make(chan error, 1)
	go func() {
		var st unix.Statfs_t
		answer <- unix.Statfs(dir, &st)
	}()
	select {
	case err := <-answer:
		return errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ECONNABORTED)
	case <-time.After(ProbeTime):
		return false
	}
}

// Detach removes the mount at dir from the directory tree, even if the mount is in use. If this process does not run as
// root, Detach runs fusermount3.
func Detach(ctx context.Context, dir string) error {
	if os.Geteuid() == 0 {
		return unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	return fuse.WithAllFiles(func() error { // the thread of the caller may have a separate descriptor table
		if out, err := exec.CommandContext(ctx, "fusermount3", "-u", "-z", "--", dir).CombinedOutput(); err != nil {
			return fmt.Errorf("run fusermount3: %w: %s", err, bytes.TrimSpace(out))
		}
		return nil
	})
}

// make creates the directory of the mount and its missing parent directories, and adds them to Created.
func (p *Point) make() error {
	var missing []string
	for dir := p.Dir; ; dir = filepath.Dir(dir) {
		_, err := os.Lstat(dir)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		missing = append(missing, dir)
	}
	for i := len(missing) - 1; i >= 0; i-- {
		err := os.Mkdir(missing[i], 0o755)
		if errors.Is(err, fs.ErrExist) {
			continue // another process has created the directory, so Remove must not remove it
		}
		if err != nil {
			return err
		}
		p.Created = append(p.Created, missing[i])
	}
	return nil
}

// Remove removes the directories that make has created, the deepest first. It stops at the first directory that is not
// empty.
func (p *Point) Remove() {
	for i := len(p.Created) - 1; i >= 0; i-- {
		if os.Remove(p.Created[i]) != nil {
			return
		}
	}
}

// empty returns nil if the directory of the mount exists and has no entries. Otherwise it returns ErrNotEmpty,
// ErrNotDirectory, or the error of a system call.
func (p *Point) empty() error {
	info, err := os.Stat(p.Dir)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return ErrNotDirectory
	}
	d, err := os.Open(p.Dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if names, _ := d.Readdirnames(1); len(names) > 0 {
		return ErrNotEmpty
	}
	return nil
}

// DeviceOf returns the device number of the artifactfs mount at dir. It reads the mount table, because this process
// itself would have to answer a stat(2).
func DeviceOf(dir string) (uint32, error) {
	mounts, err := mountinfo.Self()
	if err != nil {
		return 0, err
	}
	for _, m := range mounts {
		if m.Point == dir && m.Type == FUSEType {
			return uint32(m.Device), nil
		}
	}
	return 0, fmt.Errorf("find device of %s: directory is not mounted", dir)
}

// MayBind reports whether this process may create bind mounts, which requires root with CAP_SYS_ADMIN.
func MayBind() bool {
	if os.Geteuid() != 0 {
		return false
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&head, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

// IsMounted reports whether the mount table contains a mount at dir.
func IsMounted(mounts mountinfo.Table, dir string) bool {
	_, ok := mounts.At(dir)
	return ok
}

// detachTime is the maximum run time of fusermount3.
const detachTime = 5 * time.Second

// DetachAt removes the mount at dir from the directory tree like Detach, for a mount that this process serves. It does
// nothing if there is no artifactfs mount at dir.
func DetachAt(dir string) error {
	if _, err := DeviceOf(dir); err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), detachTime)
	defer cancel()
	return fuse.WithoutDevice(func() error { return Detach(ctx, dir) })
}

// DetachQuietly calls DetachAt, and only logs the error.
func DetachQuietly(dir string, log *zap.Logger) {
	if err := DetachAt(dir); err != nil {
		log.Error("detach mount", zap.String("dir", dir), zap.Error(err))
	}
}

// busyPause is the maximum pause between two attempts to unmount a busy mount. The pause doubles after each attempt.
const busyPause = 64 * time.Millisecond

// UnmountIdle calls umount2(2). If the mount is busy, it repeats the call for a short time, because a process that has
// just ended may still hold files. If the mount remains busy, it returns EBUSY.
func UnmountIdle(dir string, flags int) error {
	for pause := time.Millisecond; ; pause *= 2 {
		err := unix.Unmount(dir, flags)
		if !errors.Is(err, unix.EBUSY) || pause > busyPause {
			return err
		}
		time.Sleep(pause)
	}
}
