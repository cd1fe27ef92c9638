package fuse

import (
	"context"
	"errors"
	"io/fs"
	"syscall"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/worktree"
)

// statusOf is the one place where an error gets its number. expected says that the number tells all there is to
// tell; otherwise the cause belongs into the log. What is not in the table is EIO.
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
			return raw.Status(errno), true // results that programs ask for
		case syscall.ENOSPC, syscall.EDQUOT, syscall.ENOMEM:
			return raw.Status(errno), false // the host's state: programs should know, and so should its owner
		}
	}
	if errors.Is(err, fs.ErrPermission) { // the remote refuses us; EPERM, which is the same to errors.Is, is above
		return raw.EACCES, false
	}
	// Deadlines, unreachable remotes, corrupt objects, and above all ENOSYS: the kernel would never ask again.
	return raw.EIO, false
}
