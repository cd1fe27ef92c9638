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
// tell; the rest is EIO, and its cause belongs into the log.
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
	case errors.Is(err, fs.ErrPermission): // the remote refuses us
		return raw.EACCES, false
	case errors.Is(err, syscall.ENOSPC):
		return raw.Status(syscall.ENOSPC), false
	case errors.Is(err, syscall.ENAMETOOLONG):
		return raw.Status(syscall.ENAMETOOLONG), true
	}
	return raw.EIO, false // deadlines, unreachable remotes, corrupt objects
}
