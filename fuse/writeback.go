package fuse

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"
)

// WriteBack returns when what programs had written into the kernel's cache before the call is in the tree. Through a
// file that the kernel does not tell us of, as one that is mapped, they may have written too: all files are written back.
// It must not be called by who answers a request. When ctx ends it returns, and the kernel goes on.
func (s *Server) WriteBack(ctx context.Context) error {
	s.Refresh(s.fs.tree.Writers())
	done := make(chan error, 1)
	go func() { done <- WithoutDevice(s.syncfs) }()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("write back %s: %w", s.dir, err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("write back %s: %w", s.dir, context.Cause(ctx))
	}
}

func (s *Server) syncfs() error {
	fd, err := unix.Open(s.dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Syncfs(fd)
}
