package supervisor

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/keeper"
)

// store holds descriptors by name. They are plain numbers, because Go's poller would watch an
// os.File of a device or socket that does not block, and wake this process for every request to a
// mount.
type store map[string]int

// mountSuffix ends the name of the descriptor that every live mount has, see package daemon.
const mountSuffix = ".state"

// put stores a descriptor, which the store then owns, in place of one of the same name.
func (s store) put(name string, fd int) {
	s.remove(name)
	s[name] = fd
}

// remove closes and forgets a descriptor, if there is one of that name.
func (s store) remove(name string) {
	if fd, ok := s[name]; ok {
		unix.Close(fd)
		delete(s, name)
	}
}

// hasMounts reports whether a live mount depends on this process: its kernel connection is in the
// store.
func (s store) hasMounts() bool {
	for name := range s {
		if strings.HasSuffix(name, mountSuffix) {
			return true
		}
	}
	return false
}

// files moves the descriptors into os.Files. The store must not be used afterwards.
func (s store) files() []keeper.Descriptor {
	var all []keeper.Descriptor
	for name, fd := range s {
		all = append(all, keeper.Descriptor{Name: name, File: os.NewFile(uintptr(fd), name)})
	}
	return all
}

// closeAll closes descriptors that arrived with a message and were not stored.
func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
