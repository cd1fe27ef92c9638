package fault

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"github.com/artifactfs/artifactfs/fetch/bare"
	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/host/statedir"
)

// These errors are returned or checked for by more than one package.
var (
	// ErrReadOnly means that a mount cannot be changed, because it is read-only.
	ErrReadOnly = errors.New("mount is read-only")
	// ErrNoGitDir means that the git directory of a mount has not been created yet.
	ErrNoGitDir = errors.New("git directory of the mount has not been created yet")
	// ErrNoBranch means that a tag or a commit is mounted, so the mount cannot follow a branch.
	ErrNoBranch = errors.New("mounted ref is not a branch")
	// ErrSparse means that the mount has a sparse checkout, which only git can switch.
	ErrSparse = errors.New("working tree is a sparse checkout")
	// ErrConflicts means that the index has unresolved conflicts of an earlier merge.
	ErrConflicts = errors.New("index has unresolved conflicts of an earlier merge")
	// ErrHasFiles means that a directory cannot be redirected, because it contains files of the session.
	ErrHasFiles = errors.New("directory already contains files")
	// ErrNoCheckpoint means that a session has no checkpoint yet.
	ErrNoCheckpoint = errors.New("session has no checkpoint yet")
	// ErrNoSessionRemote means that a mount has no session remote, so it creates no checkpoints.
	ErrNoSessionRemote = errors.New("mount has no session remote")
	// ErrSessionExists means that a fork of a session was requested under the name of a session that already exists.
	ErrSessionExists = errors.New("session already exists")
	// ErrOtherRemote means that the session in a mount request belongs to another remote than the one to be mounted.
	ErrOtherRemote = errors.New("session belongs to another remote")
	// ErrOtherTenant means that the session in a mount request belongs to another tenant than the sender of the
	// request.
	ErrOtherTenant = errors.New("session of this name on this host belongs to another tenant")
	// ErrUnmounted means that a mount was unmounted, or that its command was interrupted, after the kernel had attached
	// the mount and before the daemon had completed its start.
	ErrUnmounted = errors.New("unmounted before the start was complete")
	// ErrSlow means that a session remote did not answer within the time that a command waits for it.
	ErrSlow = errors.New("session remote did not answer in time")

	// errRemote marks failures of a remote: errors.Is(err, errRemote) is true for each error that the function Remote
	// has wrapped.
	errRemote = errors.New("remote failed")
)

// OtherCommitError is the error of a request to resume a session at a commit that is not the session's base commit.
type OtherCommitError struct{ Ref, Commit, Session, Base string }

// Error returns a message that names the session, its base commit, and the requested commit.
func (e OtherCommitError) Error() string {
	return fmt.Sprintf("%s is commit %.12s, but session %s is based on commit %.12s", e.Ref, e.Commit, e.Session, e.Base)
}

// SessionMountedError means that a request cannot be handled while the session is mounted. Dir is the directory of the
// mount.
type SessionMountedError struct{ Dir string }

// Error returns a message that names the directory of the mount.
func (e SessionMountedError) Error() string { return "session is mounted at " + e.Dir }

// NoSuchSessionError means that a session remote does not contain the requested session. Remote is the URL of the
// session remote.
type NoSuchSessionError struct{ Remote string }

// Error returns a message that names the session remote.
func (e NoSuchSessionError) Error() string { return "no such session on " + e.Remote }

// Unwrap returns statedir.ErrNoSession, so that errors.Is(err, statedir.ErrNoSession) is true.
func (NoSuchSessionError) Unwrap() error { return statedir.ErrNoSession }

// NoPathError means that a path to be restored is neither in the checkpoint nor in the working tree.
type NoPathError struct{ Path string }

// Error returns a message that names the path.
func (e NoPathError) Error() string {
	return e.Path + ": path is neither in the checkpoint nor in the working tree"
}

// GitBusyError means that a request cannot be handled while a git operation is in progress in the mount. Its value
// describes the operation, for example "merging".
type GitBusyError string

// Error returns a message that names the git operation.
func (e GitBusyError) Error() string { return "git is " + string(e) }

// RefusalError means that a working tree was not changed, because the change would overwrite or conflict with the paths
// in Paths. Why states the reason, and Hint what the user can do.
type RefusalError struct {
	Why, Hint string
	Paths     []string
}

// Error returns a message with the reason and at most ten of the paths.
func (r RefusalError) Error() string {
	const most = 10
	shown := strings.Join(r.Paths[:min(len(r.Paths), most)], ", ")
	if more := len(r.Paths) - most; more > 0 {
		shown += fmt.Sprintf(" and %d more", more)
	}
	return r.Why + ": " + shown
}

// SessionRemoteError is a failure of the session remote at URL.
type SessionRemoteError struct {
	URL string // URL of the session remote, without secrets
	Err error
}

// Error returns a message that names the session remote and the cause.
func (e SessionRemoteError) Error() string { return "session remote " + e.URL + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e SessionRemoteError) Unwrap() error { return e.Err }

// SessionRemote wraps err in a SessionRemoteError. If err is the error of a context that has ended, SessionRemote
// returns err unchanged, because the remote has not failed.
func SessionRemote(remote interface{ URL() string }, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return SessionRemoteError{remote.URL(), Remote(err)}
}

// Remote marks err as a failure of a remote. The mark determines the exit status, even if the cause is found on this
// host, for example a damaged pack. Remote returns err unchanged if err is an error of a file or disk of this host, or
// the failure of a git command that contacts no remote.
func Remote(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) || errors.Is(err, syscall.ENOSPC) || isLocalGit(err) {
		return err
	}
	return remoteError{err}
}

// isLocalGit reports whether err is the failure of a git command that contacts no remote.
func isLocalGit(err error) bool {
	var git *gitcmd.Error
	var contact bare.ContactError
	return errors.As(err, &git) && !errors.As(err, &contact)
}

// remoteError is an error that errors.Is treats as errRemote.
type remoteError struct{ error }

// Unwrap returns the cause.
func (e remoteError) Unwrap() error { return e.error }

// Is reports whether target is errRemote.
func (e remoteError) Is(target error) bool { return target == errRemote }
