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
	// FUSEType is the file system type of artifactfs mounts in the mount table.
	FUSEType = "fuse.artifactfs"
	// autofsType is the type of an automount: accesses to it wait until a file system is mounted over it (autofs(5),
	// systemd.automount(5)).
	autofsType = "autofs"
	// ProbeTime is how long IsDead waits for an answer from the process that serves a mount. A mount without an answer in
	// this time counts as hanging, but not as dead.
	ProbeTime = 2 * time.Second
	// maxStacked is the maximum number of dead mounts at one directory that are removed.
	maxStacked = 16
)

// These errors report a problem with the directory of a mount, or with this host.
var (
	// ErrAlreadyMounted reports that a live artifactfs mount is at the directory.
	ErrAlreadyMounted = errors.New("directory already has an artifactfs mount")
	// ErrTaken reports that another file system is mounted at the directory.
	ErrTaken = errors.New("another file system is mounted at the directory")
	// ErrInside reports that the directory lies inside another artifactfs mount.
	ErrInside = errors.New("directory is inside another mount")
	// ErrNotEmpty reports that the directory has entries.
	ErrNotEmpty = errors.New("directory is not empty")
	// ErrNotDirectory reports that the path is a file and not a directory.
	ErrNotDirectory = errors.New("path is not a directory")
	// ErrDeadMount reports that the process of a mount has died and that the mount cannot be removed.
	ErrDeadMount = errors.New("directory has a dead mount, whose process has exited")
	// ErrUserMount reports that fusermount3 has failed.
	ErrUserMount = errors.New("fusermount3 failed to mount")
	// ErrNoFUSE reports that /dev/fuse cannot be used on this host.
	ErrNoFUSE = errors.New("/dev/fuse cannot be used")
)

// errAutomount reports that the directory is an automount whose automounter did not send this request.
var errAutomount = errors.New("directory is an automount point, but the automounter has not sent this request")

// Point is the directory of a mount, with the directories that were created for it.
type Point struct {
	Dir     string
	Created []string // directories that Prepare has created, the deepest one last
}

// Prepare creates dir if it does not exist, removes dead artifactfs mounts from it, and checks that it is empty. dir must not
// lie inside an artifactfs mount, except the one at parentDir ("": no exception). If Prepare fails, it removes the directories
// that it has created.
//
// Prepare reads the mount table before it stats dir. A stat of a mount point may wait for the process that serves the mount,
// and the kernel may answer a stat of a dead mount from its cache.
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

// CheckDevice returns an error that wraps ErrNoFUSE and the cause if this host cannot mount. Users other than root do not
// need access to /dev/fuse, because fusermount3 opens it for them.
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
	// The device number is assigned in Documentation/admin-guide/devices.txt of the kernel.
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != unix.Mkdev(10, 229) {
		return fmt.Errorf("%w: file is not the FUSE device", ErrNoFUSE)
	}
	return nil
}

// clearDead removes dead artifactfs mounts from dir. It returns an error if another mount is at dir, or if dir lies inside an
// artifactfs mount other than the one at parentDir.
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

// IsDead reports whether the process that served the mount at dir has certainly died. It waits for at most ProbeTime. It uses
// statfs, which the kernel never answers from a cache. On a connection without a process, statfs fails immediately
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

// Detach removes the mount at dir from the directory tree, even if the mount is in use. If this process does not run as root,
// Detach runs fusermount3.
func Detach(ctx context.Context, dir string) error {
	if os.Geteuid() == 0 {
		return unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	return fuse.WithAllFiles(func() error { // the caller's thread may have other descriptors than the process
		if out, err := exec.CommandContext(ctx, "fusermount3", "-u", "-z", "--", dir).CombinedOutput(); err != nil {
			return fmt.Errorf("run fusermount3: %w: %s", err, bytes.TrimSpace(out))
		}
		return nil
	})
}

// make creates the directory and those parents that do not exist, and records them in Created.
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
			continue // another process has created the directory, so it is not removed by this one
		}
		if err != nil {
			return err
		}
		p.Created = append(p.Created, missing[i])
	}
	return nil
}

// Remove removes the created directories, the deepest first. It stops at the first directory that is not empty.
func (p *Point) Remove() {
	for i := len(p.Created) - 1; i >= 0; i-- {
		if os.Remove(p.Created[i]) != nil {
			return
		}
	}
}

// empty returns nil if the path is an empty directory, and otherwise ErrNotEmpty, ErrNotDirectory or the error of a system
// call.
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

// DeviceOf returns the device number of the artifactfs mount at dir. It reads the mount table, because a stat would wait for
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
	return 0, fmt.Errorf("find device of %s: directory is not mounted", dir)
}

// MayBind reports whether this process may make bind mounts, which requires root with CAP_SYS_ADMIN.
func MayBind() bool {
	if os.Geteuid() != 0 {
		return false
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&head, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

// IsMounted reports whether the table has a mount at dir.
func IsMounted(mounts mountinfo.Table, dir string) bool {
	_, ok := mounts.At(dir)
	return ok
}

// detachTime is the maximum run time of fusermount3.
const detachTime = 5 * time.Second

// DetachAt works like Detach for a mount that this process serves. It does nothing if no artifactfs mount is at dir.
func DetachAt(dir string) error {
	if _, err := DeviceOf(dir); err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), detachTime)
	defer cancel()
	return fuse.WithoutDevice(func() error { return Detach(ctx, dir) })
}

// DetachQuietly works like DetachAt, but logs the error.
func DetachQuietly(dir string, log *zap.Logger) {
	if err := DetachAt(dir); err != nil {
		log.Error("detach mount", zap.String("dir", dir), zap.Error(err))
	}
}

// busyPause is the maximum pause between two attempts to unmount a busy mount. The pauses double.
const busyPause = 64 * time.Millisecond

// UnmountIdle works like umount2(2). If the mount is busy, it repeats the call for a short time, because a process that has
// just exited may still hold files. It then returns EBUSY.
func UnmountIdle(dir string, flags int) error {
	for pause := time.Millisecond; ; pause *= 2 {
		err := unix.Unmount(dir, flags)
		if !errors.Is(err, unix.EBUSY) || pause > busyPause {
			return err
		}
		time.Sleep(pause)
	}
}
