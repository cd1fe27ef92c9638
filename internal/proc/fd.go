package proc

import (
	"os"
	"strconv"
)

// Descriptors returns the numbers of p's open file descriptors, in no particular order (proc_pid_fd(5)).
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

// FDPath returns a path that leads to the file that p's descriptor fd refers to. The path can be opened, mounted and
// linked, even if the file has no other path. The path is valid as long as the descriptor is open.
func (p Process) FDPath(fd int) string { return p.file("fd/" + strconv.Itoa(fd)) }

// FDInfo returns the information on p's descriptor fd, as text in the format of proc_pid_fdinfo(5).
func (p Process) FDInfo(fd int) ([]byte, error) {
	return os.ReadFile(p.file("fdinfo/" + strconv.Itoa(fd)))
}

// FDPath returns a path of the file f through the descriptor of f in this process, as Self.FDPath does. The caller must
// keep f open. Such a path is always short, so it can be the start of a socket's path, for which unix(7) allows 107
// bytes.
func FDPath(f *os.File) string { return Self.FDPath(int(f.Fd())) }

// Thread is the calling thread, which may have other descriptors than the rest of the process. The goroutine must have
// called runtime.LockOSThread.
const Thread Process = Root + "thread-self"
