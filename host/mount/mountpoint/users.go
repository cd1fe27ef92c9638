package mountpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
	"github.com/artifactfs/artifactfs/internal/proc"
)

// user is a process, or a bind mount, that keeps a mount busy.
type user struct {
	pid  string // process ID, or the mount point of a bind mount
	name string // name of the process's command
	// how describes what the process holds, such as "a working directory in the mount".
	how string
}

// String returns the name of the command and the process ID.
func (u user) String() string { return fmt.Sprintf("%s (%s)", u.name, u.pid) }

// usersOf returns the processes that keep the mount at dir busy. It only reads /proc, because this process would have
// to answer an access to a file of the mount. The result may not include processes of other users.
func usersOf(dir string) (users []user) {
	mounts, _ := mountinfo.Self()
	mount, ok := mounts.At(dir)
	if !ok {
		return nil
	}
	id, device := strconv.Itoa(mount.ID), fmt.Sprintf("%02x:%02x", unix.Major(mount.Device), unix.Minor(mount.Device))
	inside := func(path string) bool { return mountinfo.Within(dir, strings.TrimSuffix(path, " (deleted)")) }
	pids, _ := proc.PIDs()
	for _, pid := range slices.Sorted(slices.Values(pids)) {
		p := proc.Of(pid)
		how := ""
		switch {
		case linksInto(p.Dir, inside):
			how = "a working directory in the mount"
		case linksInto(p.RootDir, inside):
			how = "a root directory in the mount"
		case linksInto(p.Executable, inside):
			how = "a program in the mount"
		default:
			how = pathHeldOpen(p, dir, id, inside)
			if how == "" && mapsFrom(p, device) {
				how = "a mapped file"
			}
		}
		if how == "" {
			continue
		}
		name, _ := p.Name()
		users = append(users, user{strconv.Itoa(pid), name, how})
	}
	return users
}

// usersByCopies returns a user for each copy of a mount: a bind mount in this mount namespace, or a mount in the
// namespace of another process.
func usersByCopies(copies []mountinfo.Copy) (users []user) {
	for _, c := range copies {
		if c.PID == 0 {
			users = append(users, user{c.Point, "a bind mount", "the mount open until the bind mount is unmounted"})
			continue
		}
		name, _ := proc.Of(c.PID).Name()
		users = append(users, user{strconv.Itoa(c.PID), name,
			"a copy of the mount at " + c.Point + " in another mount namespace"})
	}
	return users
}

// linksInto reports whether a symbolic link in /proc leads to a file in the mount. link reads the link, and inside
// reports whether a path is in the mount.
func linksInto(link func() (string, error), inside func(string) bool) bool {
	to, err := link()
	return err == nil && inside(to)
}

// pathHeldOpen returns the path, relative to dir if possible, of a file that the process p has open in the mount at dir
// with the ID id, or "" if there is none.
func pathHeldOpen(p proc.Process, dir, id string, inside func(string) bool) string {
	fds, err := p.Descriptors()
	if err != nil {
		return ""
	}
	for _, fd := range fds {
		to, err := os.Readlink(p.FDPath(fd))
		if err != nil || !filepath.IsAbs(to) {
			continue
		}
		if inside(to) || mountOf(p, fd) == id {
			if rest, err := filepath.Rel(dir, to); err == nil {
				return rest
			}
			return to
		}
	}
	return ""
}

// mountOf returns the ID of the mount to which the open file fd of the process p belongs, as in proc_pid_fdinfo(5), or
// "" if it cannot be read.
func mountOf(p proc.Process, fd int) string {
	text, err := p.FDInfo(fd)
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

// mapsFrom reports whether the process p has mapped a file of the device, which has the format of the fourth field of a
// line in proc_pid_maps(5).
func mapsFrom(p proc.Process, device string) bool {
	text, err := p.Maps()
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

// BusyError means that a mount is busy. It wraps fuse.ErrBusy and names the processes that use the mount.
type BusyError struct {
	error
	users []user
}

// Unwrap returns fuse.ErrBusy.
func (e BusyError) Unwrap() error { return e.error }

// usersNamed is the maximum number of processes that an error message names.
const usersNamed = 5

// Error returns a message that names the first usersNamed processes.
func (e BusyError) Error() string {
	var names []string
	for _, u := range e.users[:min(usersNamed, len(e.users))] {
		names = append(names, u.String())
	}
	if more := len(e.users) - usersNamed; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return "mount is in use by " + strings.Join(names, ", ")
}

// Hint returns a text that states what the first usersNamed processes hold.
func (e BusyError) Hint() string {
	var holds []string
	for _, u := range e.users[:min(usersNamed, len(e.users))] {
		holds = append(holds, fmt.Sprintf("%s holds %s", u, u.how))
	}
	return strings.Join(holds, "; ")
}

// NameUsers returns a BusyError if err is fuse.ErrBusy and a process that uses the mount at dir is found. Otherwise it
// returns err.
func NameUsers(dir string, err error) error {
	if !errors.Is(err, fuse.ErrBusy) {
		return err
	}
	if users := usersOf(dir); len(users) > 0 {
		return BusyError{err, users}
	}
	return err
}

// BusyByCopies returns a BusyError that names the copies of a mount.
func BusyByCopies(copies []mountinfo.Copy) error {
	return BusyError{fuse.ErrBusy, usersByCopies(copies)}
}
