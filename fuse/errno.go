package fuse

import (
	"context"
	"errors"
	"io/fs"
	"syscall"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/worktree"
)

// statusOf converts an error to the errno that the calling process gets. Errors that are not in its table become EIO.
// expected reports whether the errno describes the error completely. If expected is false, the caller must log the
// error.
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
			return raw.Status(errno), true // ordinary results of system calls, for which programs are prepared
		case syscall.ENOSPC, syscall.EDQUOT, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE:
			return raw.Status(errno), false // the host has a fault, which its administrator should find in the log
		}
	}
	// the remote denies access; EPERM, for which errors.Is also returns true, was handled above
	if errors.Is(err, fs.ErrPermission) {
		return raw.EACCES, false
	}
	// These errors include deadlines, unreachable remotes and corrupt objects. ENOSYS in particular must not be returned,
	// because the kernel would then send no further request of this kind while the mount exists.
	return raw.EIO, false
}
