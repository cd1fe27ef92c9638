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
	// FUSEType is the type of artifactfs mounts in the mount table.
	FUSEType = "fuse.artifactfs"
	// autofsType is the type of an automount, at which accesses wait until a file system is mounted over it: autofs(5),
	// systemd.automount(5).
	autofsType = "autofs"
	// ProbeTime is how long a process may take to answer for its mount. A mount without an answer counts as hanging, not
	// as dead.
	ProbeTime = 2 * time.Second
	// maxStacked limits how many dead mounts at one directory are removed.
	maxStacked = 16
)

// These errors report what is wrong with the directory of a mount, or with this host.
var (
	// ErrAlreadyMounted reports a live artifactfs mount at the directory.
	ErrAlreadyMounted = errors.New("artifactfs has mounted something there already")
	// ErrTaken reports another file system at the directory.
	ErrTaken = errors.New("another file system is mounted there")
	// ErrInside reports that the directory is inside another artifactfs mount.
	ErrInside = errors.New("the directory lies inside the mount")
	// ErrNotEmpty reports a directory with entries.
	ErrNotEmpty = errors.New("the directory is not empty")
	// ErrNotDirectory reports a file in place of the directory.
	ErrNotDirectory = errors.New("not a directory")
	// ErrDeadMount reports a mount whose process has died and that cannot be removed.
	ErrDeadMount = errors.New("a dead mount is there: its process is gone")
	// ErrUserMount reports a failure of fusermount3.
	ErrUserMount = errors.New("fusermount3 did not mount it")
	// ErrNoFUSE reports that /dev/fuse cannot be used on this host.
	ErrNoFUSE = errors.New("/dev/fuse cannot be used")
)

// errAutomount reports an automount at the directory whose automounter has not sent this request.
var errAutomount = errors.New("an automount is there, and its automounter has not asked for this mount")

// Point is the directory of a mount, with the directories that were created for it.
type Point struct {
	Dir     string
	Created []string // created directories, deepest last
}

// Prepare creates dir if it is missing, removes dead artifactfs mounts from it, and checks that it is empty and not
// inside an artifactfs mount other than the one at around ("" for none). If it fails, it removes the directories that it
// has created.
//
// It reads the mount table first, because a stat of a mount point may wait for the process that serves it, and because
// the kernel may answer the stat of a dead mount from its cache.
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

// CheckDevice returns ErrNoFUSE with the cause if this host cannot mount. Users other than root need no access to
// /dev/fuse, because fusermount3 opens it.
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
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != unix.Mkdev(10, 229) { // Documentation/admin-guide/devices.txt
		return fmt.Errorf("%w: it is another file", ErrNoFUSE)
	}
	return nil
}

// clearDead removes dead artifactfs mounts from dir. It returns an error for any other mount at dir, and for an
// artifactfs mount above dir that is not at around.
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
			return fmt.Errorf("%w, and it cannot be removed: %w", ErrDeadMount, err)
		}
	}
	return ErrDeadMount
}

// IsDead reports whether the process that served a mount has certainly died. It blocks for at most ProbeTime. It uses
// statfs, which the kernel never answers from a cache, and which fails immediately on a connection without a process
// (fs/fuse/dev.c, fuse_get_req).
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

// Detach removes the mount at dir from the directory tree, even if it is in use. If the user is not root, it runs
// fusermount3.
func Detach(ctx context.Context, dir string) error {
	if os.Geteuid() == 0 {
		return unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	if out, err := exec.CommandContext(ctx, "fusermount3", "-u", "-z", "--", dir).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// make creates the directory and its missing parents, and records them in Created.
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
			continue // another process has created it, and owns it
		}
		if err != nil {
			return err
		}
		p.Created = append(p.Created, missing[i])
	}
	return nil
}

// Remove removes the created directories, deepest first, up to the first one that is not empty.
func (p *Point) Remove() {
	for i := len(p.Created) - 1; i >= 0; i-- {
		if os.Remove(p.Created[i]) != nil {
			return
		}
	}
}

// empty returns ErrNotEmpty or ErrNotDirectory unless the directory is an empty directory.
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

// DeviceOf returns the device number of an artifactfs mount. It reads the mount table, because a stat would wait for
// this process.
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
	return 0, fmt.Errorf("find device of %s: not mounted", dir)
}

// MayBind reports whether this process may make bind mounts: it runs as root with CAP_SYS_ADMIN.
func MayBind() bool {
	if os.Geteuid() != 0 {
		return false
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&head, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

// IsMounted reports whether a file system is mounted at dir.
func IsMounted(mounts mountinfo.Table, dir string) bool {
	_, ok := mounts.At(dir)
	return ok
}

// detachTime limits the run time of fusermount3.
const detachTime = 5 * time.Second

// DetachAt is Detach for a mount of this process. It does nothing if no artifactfs mount is at dir.
func DetachAt(dir string) error {
	if _, err := DeviceOf(dir); err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), detachTime)
	defer cancel()
	return fuse.WithoutDevice(func() error { return Detach(ctx, dir) })
}

// DetachQuietly is DetachAt with its error logged.
func DetachQuietly(dir string, log *zap.Logger) {
	if err := DetachAt(dir); err != nil {
		log.Error("detach mount", zap.String("dir", dir), zap.Error(err))
	}
}

// busyPause is the longest pause between two attempts to unmount a busy mount. The pauses double.
const busyPause = 64 * time.Millisecond

// UnmountIdle is umount2(2). It repeats the call for a moment if the mount is busy, because a process that has just
// exited may still hold files.
func UnmountIdle(dir string, flags int) error {
	for pause := time.Millisecond; ; pause *= 2 {
		err := unix.Unmount(dir, flags)
		if !errors.Is(err, unix.EBUSY) || pause > busyPause {
			return err
		}
		time.Sleep(pause)
	}
}
