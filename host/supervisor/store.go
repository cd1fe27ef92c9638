package supervisor

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/keeper"
)

// store holds the descriptors of the mounts, by name. They are stored as numbers instead of os.Files, because Go's
// poller watches an os.File whose device or socket is non-blocking, and would wake this process for every request to a
// mount.
type store map[string]int

// mountSuffix is the suffix of the name of one descriptor of every live mount: that of the file with the state of the
// mount (see package takeover).
const mountSuffix = ".state"

// put adds the descriptor fd under the given name. The store then owns the descriptor. put closes an earlier descriptor
// with the same name.
func (s store) put(name string, fd int) {
	s.remove(name)
	s[name] = fd
}

// remove closes the descriptor called name and removes it from the store. It does nothing if the store has no such
// descriptor.
func (s store) remove(name string) {
	if fd, ok := s[name]; ok {
		unix.Close(fd)
		delete(s, name)
	}
}

// hasMounts reports whether the store has the descriptors of a live mount. Such a mount would be lost if this process
// ended.
func (s store) hasMounts() bool {
	for name := range s {
		if strings.HasSuffix(name, mountSuffix) {
			return true
		}
	}
	return false
}

// numbers returns the descriptors without their names. They still belong to the store.
func (s store) numbers() (fds []int) {
	for _, fd := range s {
		fds = append(fds, fd)
	}
	return fds
}

// files returns the descriptors as os.Files, which then belong to the caller. The store must not be used after the
// call.
func (s store) files() []keeper.Descriptor {
	var all []keeper.Descriptor
	for name, fd := range s {
		all = append(all, keeper.Descriptor{Name: name, File: os.NewFile(uintptr(fd), name)})
	}
	return all
}
