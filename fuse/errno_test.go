package fuse

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"testing"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/worktree"
)

// statusOf returns a valid errno for every error.
func TestStatusOf(t *testing.T) {
	for err, want := range map[error]syscall.Errno{
		nil:                                0,
		worktree.ErrNotExist:               syscall.ENOENT,
		worktree.ErrNotDir:                 syscall.ENOTDIR,
		worktree.ErrIsDir:                  syscall.EISDIR,
		worktree.ErrNotLink:                syscall.EINVAL,
		worktree.ErrNoNode:                 syscall.ESTALE,
		worktree.ErrClosed:                 syscall.EIO,
		worktree.ErrResized:                syscall.EIO,
		context.Canceled:                   syscall.EINTR,
		context.DeadlineExceeded:           syscall.EIO,
		fs.ErrPermission:                   syscall.EACCES,
		fmt.Errorf("x"):                    syscall.EIO,
		syscall.EPERM:                      syscall.EPERM,
		syscall.ENOTEMPTY:                  syscall.ENOTEMPTY,
		syscall.EEXIST:                     syscall.EEXIST,
		syscall.EROFS:                      syscall.EROFS,
		syscall.EFBIG:                      syscall.EFBIG,
		syscall.EDQUOT:                     syscall.EDQUOT,
		syscall.ENODATA:                    syscall.ENODATA,
		syscall.ENXIO:                      syscall.ENXIO,
		syscall.ECONNREFUSED:               syscall.EIO,
		&os.PathError{Err: syscall.EMFILE}: syscall.EMFILE,
		&os.PathError{Err: syscall.ENOSPC}: syscall.ENOSPC,
	} {
		if got, _ := statusOf(err); got != raw.Status(want) {
			t.Errorf("statusOf(%v) = %v, want %v", err, got, want)
		}
		if wrapped := fmt.Errorf("do it: %w", err); err != nil {
			if got, _ := statusOf(wrapped); got != raw.Status(want) {
				t.Errorf("statusOf(%v) = %v, want %v", wrapped, got, want)
			}
		}
	}
	for errno := syscall.Errno(1); errno < 200; errno++ {
		if got, _ := statusOf(errno); got == raw.ENOSYS || got == raw.OK {
			t.Errorf("statusOf(%v) = %v, want another status than OK and ENOSYS", errno, got)
		}
	}
	for o := range ops {
		if o.String() == "" {
			t.Errorf("request %d has no name", o)
		}
	}
}
