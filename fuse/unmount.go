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

// ErrBusy means that files of the mount are in use.
var ErrBusy = errors.New("files or directories of the mount are in use")

// busyFor is how long a busy mount is retried: a process that has just ended may still hold its
// files for a moment.
const busyFor = 200 * time.Millisecond

// Unmount unmounts and returns when the mount has ended. If the mount is in use, the error is
// ErrBusy and the mount remains.
func (s *Server) Unmount(ctx context.Context) error {
	if s.redirects != nil { // wait for redirects in progress, whose mounts would otherwise be lost
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
	s.fs.endWaits()
	select {
	case <-s.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("unmount %s: wait for requests under way: %w", s.dir, ctx.Err())
	}
}

// Detach removes the mount from the directory tree although it is in use. Open files work until
// they are closed; Wait waits for that.
func (s *Server) Detach() error { return s.detach() }

// detach is Detach, which Probe uses on a Server that serves nothing.
func (s *Server) detach() error {
	if err := s.umount(context.Background(), unix.MNT_DETACH); err != nil {
		return fmt.Errorf("detach %s: %w", s.dir, err)
	}
	return nil
}

// umount unmounts with the flags of umount(2), through fusermount3 if the process is not root. It
// returns nil if the mount does not exist any more.
func (s *Server) umount(ctx context.Context, flags int) error {
	select {
	case <-s.ended:
		return nil // another process has unmounted it
	default:
	}
	if os.Geteuid() != 0 {
		return s.fusermount(ctx, flags)
	}
	// The kernel sends WRITE requests for dirty pages while umount(2) waits.
	err := WithoutDevice(func() error { return unix.Unmount(s.dir, flags|unix.UMOUNT_NOFOLLOW) })
	switch {
	case errors.Is(err, unix.EBUSY):
		return ErrBusy
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
		return nil // no longer a mount point
	default:
		return err
	}
}

// listed reports whether dir is in the kernel's table of mounts. It does not access dir.
func listed(dir string) bool {
	mounts, err := mountinfo.Self()
	_, ok := mounts.At(dir)
	return ok || err != nil
}
