package supervisor

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/keeper"
)

// store holds descriptors by name. They are stored as numbers instead of os.Files, because Go's poller watches an os.File whose
// device or socket is non-blocking, and would wake this process for every request to a mount.
type store map[string]int

// mountSuffix is the suffix of a descriptor's name. Every live mount has one descriptor whose name has this suffix (see package
// takeover).
const mountSuffix = ".state"

// put stores the descriptor fd, which then belongs to the store. If the store has a descriptor with the same name, put closes that
// descriptor.
func (s store) put(name string, fd int) {
	s.remove(name)
	s[name] = fd
}

// remove closes and removes the descriptor called name, if the store has one.
func (s store) remove(name string) {
	if fd, ok := s[name]; ok {
		unix.Close(fd)
		delete(s, name)
	}
}

// hasMounts reports whether the store has the descriptors of a live mount, which would be lost if this process ended.
func (s store) hasMounts() bool {
	for name := range s {
		if strings.HasSuffix(name, mountSuffix) {
			return true
		}
	}
	return false
}

// numbers returns the descriptors.
func (s store) numbers() (fds []int) {
	for _, fd := range s {
		fds = append(fds, fd)
	}
	return fds
}

// files returns the descriptors as os.Files, which then belong to the caller. The store must not be used afterwards.
func (s store) files() []keeper.Descriptor {
	var all []keeper.Descriptor
	for name, fd := range s {
		all = append(all, keeper.Descriptor{Name: name, File: os.NewFile(uintptr(fd), name)})
	}
	return all
}
