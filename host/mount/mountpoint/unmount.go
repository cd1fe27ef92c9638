package mountpoint

import (
	"context"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
)

const (
	// flushTime is the maximum time for which Flush waits until the kernel has written its cached changes of a mount to
	// this process.
	flushTime = 10 * time.Second
	// copiesFor is the maximum time for which an unmount waits until no other mount namespace has a copy of the mount.
	// For example, a command in a separate mount namespace may be about to end.
	copiesFor = 5 * time.Second
)

// AwaitCopies waits until no other mount namespace, for example that of a container, has a copy of the mount at dir,
// for at most copiesFor. Such a copy remains mounted after an unmount in this namespace, and a process must still serve
// the file-system calls in it. If copies remain, AwaitCopies returns an error that names them. If force is true, it
// does not wait.
func AwaitCopies(ctx context.Context, dir string, force bool) error {
	for until := time.Now().Add(copiesFor); ; {
		copies, err := mountinfo.Copies(dir)
		if err != nil || len(copies) == 0 { // copies cannot be found if /proc cannot be read
			return nil
		}
		if force || time.Now().After(until) {
			return BusyByCopies(copies)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return BusyByCopies(copies)
		}
	}
}

// HasFUSE reports whether an artifactfs mount is at dir.
func HasFUSE(dir string) bool {
	_, err := DeviceOf(dir)
	return err == nil
}

// Flush calls syncfs(2), which makes the kernel send its cached changes of the mount at dir to this process. It waits
// for at most flushTime, and logs errors.
func Flush(dir string, log *zap.Logger) {
	done := make(chan error, 1)
	go func() {
		done <- fuse.WithoutDevice(func() error {
			fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Syncfs(fd)
		})
	}()
	var err error
	select {
	case err = <-done:
	case <-time.After(flushTime):
		err = context.DeadlineExceeded
	}
	if err != nil {
		log.Warn("flush mount", zap.String("dir", dir), zap.Error(err))
	}
}
