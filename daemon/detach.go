package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/keeper"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
	"github.com/artifactfs/artifactfs/statedir"
)

// detachTime bounds the detaching of one mount; it waits for nobody.
const detachTime = 5 * time.Second

// GiveUp detaches everything that processes have kept which cannot be followed by another, so that no mount is left
// without anybody behind it, and notes the reason for those who look. The work stays where it is.
func GiveUp(state string, kept []keeper.Kept, reason string, log *zap.Logger) error {
	var errs []error
	f := statedir.Failures{State: state, Log: log}
	for _, in := range inherited(kept) {
		s, err := openStateFile(in.files[partState])
		if err != nil {
			errs = append(errs, fmt.Errorf("abandon mount %s: %w", in.key, err))
			continue
		}
		h := s.get()
		if h.Phase == phaseServed {
			f.Add(failureOf(h, errors.New(reason)))
		}
		if err := detachAt(h.Dir); err != nil {
			errs = append(errs, fmt.Errorf("detach %s: %w", h.Dir, err))
		}
		if lock := in.files[partLock]; lock != nil {
			disk.Unlock(lock)
			delete(in.files, partLock)
		}
		in.close()
		p := mountpoint{dir: h.Dir, made: h.Made}
		p.remove()
	}
	return errors.Join(errs...)
}

// detachAt takes the mount of ours at a directory out of the directory tree, whoever uses it; nothing if there is none.
func detachAt(dir string) error {
	if _, err := deviceOf(dir); err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), detachTime)
	defer cancel()
	return fuse.WithoutDevice(func() error { return detachDead(ctx, dir) })
}

func detachQuietly(dir string, log *zap.Logger) {
	if err := detachAt(dir); err != nil {
		log.Error("detach mount", zap.String("dir", dir), zap.Error(err))
	}
}

// mounted says whether the kernel has the mount.
func (m *mount) mounted() bool {
	_, err := deviceOf(m.dir)
	return err == nil
}

// user is a process that keeps a mount busy.
type user struct {
	pid  string
	name string // of its command
	how  string
}

func (u user) String() string { return fmt.Sprintf("%s (%s)", u.name, u.pid) }

// usersOf finds the processes that keep a mount busy, by what the kernel tells of processes alone: to look at a file of
// the mount would ask us. Those of others may not be seen.
func usersOf(dir string) (users []user) {
	mounts, _ := mountinfo.Self()
	mount, ok := mounts.At(dir)
	if !ok {
		return nil
	}
	id, device := strconv.Itoa(mount.ID), fmt.Sprintf("%02x:%02x", unix.Major(mount.Device), unix.Minor(mount.Device))
	inside := func(path string) bool { return mountinfo.Within(dir, strings.TrimSuffix(path, " (deleted)")) }
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, proc := range processes {
		how := ""
		switch {
		case linksInto(filepath.Join(proc, "cwd"), inside):
			how = "its working directory"
		case linksInto(filepath.Join(proc, "root"), inside):
			how = "its root directory"
		case linksInto(filepath.Join(proc, "exe"), inside):
			how = "its program"
		default:
			how = openFile(proc, dir, id, inside)
			if how == "" && mapsFrom(proc, device) {
				how = "a mapped file"
			}
		}
		if how == "" {
			continue
		}
		name, _ := os.ReadFile(filepath.Join(proc, "comm"))
		users = append(users, user{filepath.Base(proc), strings.TrimSpace(string(name)), how})
	}
	return users
}

// usersByCopies are those who have a mount mounted elsewhere.
func usersByCopies(copies []mountinfo.Copy) (users []user) {
	for _, c := range copies {
		if c.PID == 0 {
			users = append(users, user{c.Point, "a bind mount", "it until that is unmounted"})
			continue
		}
		pid := strconv.Itoa(c.PID)
		name, _ := os.ReadFile(filepath.Join("/proc", pid, "comm"))
		users = append(users, user{pid, strings.TrimSpace(string(name)), "it at " + c.Point + " of a mount namespace of its own"})
	}
	return users
}

func linksInto(link string, inside func(string) bool) bool {
	to, err := os.Readlink(link)
	return err == nil && inside(to)
}

// openFile names one that a process has open in the mount of this id; "": none.
func openFile(proc, dir, id string, inside func(string) bool) string {
	infos, err := os.ReadDir(filepath.Join(proc, "fdinfo"))
	if err != nil {
		return ""
	}
	for _, info := range infos {
		to, err := os.Readlink(filepath.Join(proc, "fd", info.Name()))
		if err != nil || !filepath.IsAbs(to) {
			continue
		}
		if inside(to) || mountOf(filepath.Join(proc, "fdinfo", info.Name())) == id {
			if rest, err := filepath.Rel(dir, to); err == nil {
				return rest
			}
			return to
		}
	}
	return ""
}

// mountOf gives the number of the mount of an open file. Format: proc_pid_fdinfo(5).
func mountOf(info string) string {
	text, err := os.ReadFile(info)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if id, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			return strings.TrimSpace(id)
		}
	}
	return ""
}

// mapsFrom says whether a process has a file of a device mapped. Format: proc_pid_maps(5); field 4 is the device.
func mapsFrom(proc, device string) bool {
	text, err := os.ReadFile(filepath.Join(proc, "maps"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 3 && f[3] == device {
			return true
		}
	}
	return false
}

// usedError is fuse.ErrBusy with who it is.
type usedError struct {
	error
	users []user
}

func (e usedError) Unwrap() error { return e.error }

const usersNamed = 5

func (e usedError) Error() string {
	var names []string
	for _, u := range e.users[:min(usersNamed, len(e.users))] {
		names = append(names, u.String())
	}
	if more := len(e.users) - usersNamed; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return "it is in use by " + strings.Join(names, ", ")
}

// hint says how the first of them holds it.
func (e usedError) hint() string {
	var holds []string
	for _, u := range e.users[:min(usersNamed, len(e.users))] {
		holds = append(holds, fmt.Sprintf("%s holds %s", u, u.how))
	}
	return strings.Join(holds, "; ")
}

// withUsers names who keeps a mount busy, if it is that.
func withUsers(dir string, err error) error {
	if !errors.Is(err, fuse.ErrBusy) {
		return err
	}
	if users := usersOf(dir); len(users) > 0 {
		return usedError{err, users}
	}
	return err
}
