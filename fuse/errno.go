package fuse

import (
	"context"
	"errors"
	"io/fs"
	"syscall"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/worktree"
)

// statusOf converts an error to the number for the caller. expected says that the number describes
// the error completely; otherwise the cause must be logged. Errors that are not in the table are
// EIO.
func statusOf(err error) (status raw.Status, expected bool) {
	switch {
	case err == nil:
		return raw.OK, true
	case errors.Is(err, worktree.ErrNotExist):
		return raw.ENOENT, true
	case errors.Is(err, worktree.ErrNotDir):
		return raw.ENOTDIR, true
	case errors.Is(err, worktree.ErrIsDir):
		return raw.EISDIR, true
	case errors.Is(err, worktree.ErrNotLink):
		return raw.EINVAL, true
	case errors.Is(err, worktree.ErrNoNode):
		return raw.Status(syscall.ESTALE), true
	case errors.Is(err, context.Canceled):
		return raw.EINTR, true
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		switch errno {
		case syscall.E2BIG, syscall.EBUSY, syscall.EEXIST, syscall.EFBIG, syscall.EINVAL, syscall.ELOOP, syscall.EMLINK,
			syscall.ENAMETOOLONG, syscall.ENODATA, syscall.ENOTEMPTY, syscall.ENXIO, syscall.EOPNOTSUPP, syscall.EPERM,
			syscall.ERANGE, syscall.EROFS, syscall.EXDEV:
			return raw.Status(errno), true // results for which programs are prepared
		case syscall.ENOSPC, syscall.EDQUOT, syscall.ENOMEM:
			return raw.Status(errno), false // a fault of the host, which its owner should see too
		}
	}
	if errors.Is(err, fs.ErrPermission) { // the remote denies access; EPERM, which errors.Is does not distinguish, is above
		return raw.EACCES, false
	}
	// Deadlines, unreachable remotes, corrupt objects, and above all ENOSYS, after which the kernel
	// would never send the request again.
	return raw.EIO, false
}
