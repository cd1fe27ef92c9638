package daemon

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

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/mountinfo"
)

const (
	fuseType = "fuse.artifactfs"
	// autofsType is where somebody waits for what is mounted over it: autofs(5), systemd.automount(5).
	autofsType = "autofs"
	// probeTime is how long whoever serves a mount may take to answer before it counts as wedged, not dead.
	probeTime = 2 * time.Second
	// maxStacked bounds how many dead mounts at one directory are removed.
	maxStacked = 16
)

// errAutomount says that a mount is awaited at the directory.
var errAutomount = errors.New("an automount is there, and who it waits for has not asked for this mount")

// mountpoint is the directory of a mount and what was made for it.
type mountpoint struct {
	dir  string
	made []string // directories that did not exist, the deepest last
}

// prepareMountpoint makes sure that dir can be mounted on, making it if it is missing. A mount of ours whose process
// is gone is removed. On an error nothing that was made is left.
//
// The table of mounts is read first: a stat of a mount point may wait for whoever serves it, and of a dead one is
// answered from the kernel's cache.
//
// around is the mount of ours that dir may lie in; "": in none.
func prepareMountpoint(ctx context.Context, dir, around string) (mountpoint, error) {
	p := mountpoint{dir: dir}
	err := checkDevice()
	if err != nil {
		return p, err
	}
	if err = clearDead(ctx, dir, around); err != nil {
		return p, err
	}
	if err = p.make(); err == nil {
		err = p.empty()
	}
	if err != nil {
		p.remove()
	}
	return p, err
}

// checkDevice says why there can be no mount. Users need not be able to open the device: fusermount3 can.
func checkDevice() error {
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if os.Geteuid() != 0 && errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errNoFuse, errors.Unwrap(err))
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("%w: %w", errNoFuse, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != unix.Mkdev(10, 229) { // Documentation/admin-guide/devices.txt
		return fmt.Errorf("%w: it is another file", errNoFuse)
	}
	return nil
}

// clearDead removes dead mounts of ours from dir. What else is mounted there, or a mount of ours above it other than the
// one around it, is an error.
func clearDead(ctx context.Context, dir, around string) error {
	for range maxStacked {
		mounts, err := mountinfo.Self()
		if err != nil {
			return err
		}
		it, _ := mounts.Above(dir)
		switch at, kind := it.Point, it.Type; {
		case kind == autofsType && at == dir:
			return errAutomount
		case kind != fuseType && at == dir && dir != "/":
			return errTaken
		case kind != fuseType, at != dir && at == around:
			return nil
		case at != dir:
			return fmt.Errorf("%w at %s", errInside, at)
		case !IsDead(dir):
			return errAlreadyMounted
		}
		if err := detachDead(ctx, dir); err != nil {
			return fmt.Errorf("%w, and it cannot be removed: %w", errDeadMount, err)
		}
	}
	return errDeadMount
}

// IsDead says whether the process that served a mount is certainly gone. statfs is never answered from a cache, and
// of a connection without a process it fails at once (fs/fuse/dev.c, fuse_get_req).
func IsDead(dir string) bool {
	answer := make(chan error, 1)
	go func() {
		var st unix.Statfs_t
		answer <- unix.Statfs(dir, &st)
	}()
	select {
	case err := <-answer:
		return errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ECONNABORTED)
	case <-time.After(probeTime):
		return false
	}
}

func detachDead(ctx context.Context, dir string) error {
	if os.Geteuid() == 0 {
		return unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	if out, err := exec.CommandContext(ctx, "fusermount3", "-u", "-z", "--", dir).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// make makes the directory and those above it that are missing.
func (p *mountpoint) make() error {
	var missing []string
	for dir := p.dir; ; dir = filepath.Dir(dir) {
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
			continue // somebody was faster: it is not ours to remove
		}
		if err != nil {
			return err
		}
		p.made = append(p.made, missing[i])
	}
	return nil
}

// remove removes what was made, as far as it is as empty as it was.
func (p *mountpoint) remove() {
	for i := len(p.made) - 1; i >= 0; i-- {
		if os.Remove(p.made[i]) != nil {
			return
		}
	}
}

func (p *mountpoint) empty() error {
	info, err := os.Stat(p.dir)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return errNotDirectory
	}
	d, err := os.Open(p.dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if names, _ := d.Readdirnames(1); len(names) > 0 {
		return errNotEmpty
	}
	return nil
}
