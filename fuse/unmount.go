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

// ErrBusy means that processes use files or directories of the mount, so it cannot be unmounted.
var ErrBusy = errors.New("files or directories of the mount are in use")

// ErrElsewhere means that the mount is not at its directory any more, but that a copy in another mount namespace or an
// open file still keeps it, so that the kernel has not ended it.
var ErrElsewhere = errors.New("the mount was removed from its directory, but is in use elsewhere")

// endTime is the maximum time for which Unmount waits until the kernel ends a mount that is not at its directory any
// more.
const endTime = 2 * time.Second

// busyFor is the time for which Unmount repeats its attempt while the mount is in use. A process that has just ended
// may hold its files open for a moment longer.
const busyFor = 200 * time.Millisecond

// Unmount unmounts and returns when the kernel has ended the mount and all requests are answered. If the mount is in
// use, the error is ErrBusy and the mount continues. If the mount is not at its directory any more, and the kernel does
// not end it within endTime, the error is ErrElsewhere.
func (s *Server) Unmount(ctx context.Context) error {
	// Wait for redirects in progress, because each of them would mount over a directory that disappears.
	if s.redirects != nil {
		if err := s.redirects.idle(ctx); err != nil {
			return fmt.Errorf("unmount %s: wait for redirects in progress: %w", s.dir, err)
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
	case <-time.After(endTime):
		return fmt.Errorf("unmount %s: %w", s.dir, ErrElsewhere)
	case <-ctx.Done():
		return fmt.Errorf("unmount %s: wait for requests in progress: %w", s.dir, ctx.Err())
	}
}

// Detach removes the mount from the directory tree even if it is in use (MNT_DETACH). Open files work until they are
// closed; Wait returns after that.
func (s *Server) Detach() error { return s.detach() }

// detach does the work of Detach. Probe calls it on a Server that has only dir, device and ended set.
func (s *Server) detach() error {
	if err := s.umount(context.Background(), unix.MNT_DETACH); err != nil {
		return fmt.Errorf("detach %s: %w", s.dir, err)
	}
	return nil
}

// umount unmounts with the flags of umount(2). If the process is not root, it calls fusermount3. It returns nil if the
// mount does not exist any more, and ErrBusy if the mount is in use.
func (s *Server) umount(ctx context.Context, flags int) error {
	select {
	case <-s.ended:
		return nil // the mount has ended already
	default:
	}
	if os.Geteuid() != 0 {
		return s.fusermount(ctx, flags)
	}
	// umount(2) waits until this process has answered the WRITEs for dirty pages, so it needs a thread without the
	// device.
	err := WithoutDevice(func() error { return unix.Unmount(s.dir, flags|unix.UMOUNT_NOFOLLOW) })
	switch {
	case errors.Is(err, unix.EBUSY):
		return ErrBusy
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
		return nil // dir is not a mount point any more
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
