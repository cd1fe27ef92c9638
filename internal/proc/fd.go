package proc

import (
	"os"
	"strconv"
)

// Descriptors returns the numbers of p's open file descriptors, in no order: proc_pid_fd(5).
func (p Process) Descriptors() ([]int, error) {
	d, err := os.Open(p.file("fd"))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	fds := make([]int, 0, len(names))
	for _, name := range names {
		if fd, err := strconv.Atoi(name); err == nil {
			fds = append(fds, fd)
		}
	}
	return fds, err
}

// FDPath returns a path of what p's descriptor fd refers to. Opening, mounting and linking follow it, even if the file has no
// other path. It stays valid as long as the descriptor is open.
func (p Process) FDPath(fd int) string { return p.file("fd/" + strconv.Itoa(fd)) }

// FDInfo returns the text of proc_pid_fdinfo(5) of p's descriptor fd.
func (p Process) FDInfo(fd int) ([]byte, error) {
	return os.ReadFile(p.file("fdinfo/" + strconv.Itoa(fd)))
}

// FDPath returns Self.FDPath of f, which the caller keeps open. A path through a directory's descriptor is short, as that of a
// socket has to be: unix(7) allows 107 bytes.
func FDPath(f *os.File) string { return Self.FDPath(int(f.Fd())) }

// Thread returns the calling thread, whose descriptors may be its own. The caller has locked it: runtime.LockOSThread.
const Thread Process = Root + "thread-self"
