package fuse

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/mountinfo"
)

// ErrBusy says that files of the mount are in use.
var ErrBusy = errors.New("files or directories of the mount are in use")

// busyFor is how long a busy mount is tried again: a process that has just ended may still hold its files for a moment.
const busyFor = 200 * time.Millisecond

// Unmount takes the mount away and returns when nothing of it is left. If somebody uses it, the error is ErrBusy and
// the mount goes on.
func (s *Server) Unmount(ctx context.Context) error {
	if s.redirects != nil { // what is just being mounted over a directory is waited for, else it would be lost sight of
		if err := s.redirects.idle(ctx); err != nil {
			return fmt.Errorf("unmount %s: wait for redirected directories: %w", s.dir, err)
		}
	}
	deadline := time.Now().Add(busyFor)
	for pause := time.Millisecond; ; pause *= 2 {
		err := s.umount(ctx, 0)
		if err == nil {
			break
		}
		if !errors.Is(err, ErrBusy) || time.Now().Add(pause).After(deadline) {
			return fmt.Errorf("unmount %s: %w", s.dir, err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("unmount %s: %w", s.dir, err)
		}
	}
	s.fs.leaving()
	select {
	case <-s.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("unmount %s: wait for requests under way: %w", s.dir, ctx.Err())
	}
}

// Detach takes the mount out of the directory tree although it is in use. Files that are open go on until their
// last user closes them; Wait waits for that.
func (s *Server) Detach() error { return s.detach() }

func (s *Server) detach() error {
	if err := s.umount(context.Background(), unix.MNT_DETACH); err != nil {
		return fmt.Errorf("detach %s: %w", s.dir, err)
	}
	return nil
}

func (s *Server) umount(ctx context.Context, flags int) error {
	select {
	case <-s.ended:
		return nil // somebody else did it
	default:
	}
	if os.Geteuid() != 0 {
		return s.fusermount(ctx, flags)
	}
	// What processes wrote comes to us as requests while umount(2) waits.
	err := WithoutDevice(func() error { return unix.Unmount(s.dir, flags|unix.UMOUNT_NOFOLLOW) })
	switch {
	case errors.Is(err, unix.EBUSY):
		return ErrBusy
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
		return nil // not a mount point any more
	default:
		return err
	}
}

// listed looks for a mount point in what the kernel lists, without touching it.
func listed(dir string) bool {
	mounts, err := mountinfo.Self()
	_, ok := mounts.At(dir)
	return ok || err != nil
}
