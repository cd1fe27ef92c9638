package fault

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"strings"
	"syscall"

	"github.com/artifactfs/artifactfs/statedir"
)

// These causes are reported or tested for by more than one package.
var (
	// ErrReadOnly reports that a mount cannot be changed, because it is read-only.
	ErrReadOnly = errors.New("the mount is read-only")
	// ErrNoGitDir reports that the git directory of a mount has not been written yet.
	ErrNoGitDir = errors.New("the mount has no git directory yet")
	// ErrNoBranch reports a mount of a tag or commit, which cannot follow a branch.
	ErrNoBranch = errors.New("what is mounted is no branch")
	// ErrSparse reports a sparse checkout, which only git can switch.
	ErrSparse = errors.New("the checkout is sparse")
	// ErrConflicts reports an index with conflicts of an earlier merge.
	ErrConflicts = errors.New("the index has conflicts of before")
	// ErrHasFiles reports a directory that cannot be redirected, because it has files of the session.
	ErrHasFiles = errors.New("it has files already")
	// ErrNoCheckpoint reports a session without any checkpoint.
	ErrNoCheckpoint = errors.New("no checkpoint was made in it yet")
	// ErrNoSessionRemote reports a mount that makes no checkpoints.
	ErrNoSessionRemote = errors.New("this mount has no session remote")
	// ErrSessionExists reports that a session with the name of a fork exists.
	ErrSessionExists = errors.New("the session exists already")
	// ErrOtherRemote reports that a session belongs to another mounted remote.
	ErrOtherRemote = errors.New("the session is of another remote")
	// ErrSlow reports that a session remote did not answer within the time that a command waits for it.
	ErrSlow = errors.New("the session remote takes too long")

	// errRemote matches every error that Remote returns.
	errRemote = errors.New("remote failed")
)

// OtherCommitError reports a request to resume a session at another commit than its base commit.
type OtherCommitError struct{ Ref, Commit, Session, Base string }

// Error names both commits.
func (e OtherCommitError) Error() string {
	return fmt.Sprintf("%s is %.12s, and the work of session %s is on top of %.12s", e.Ref, e.Commit, e.Session, e.Base)
}

// SessionMountedError reports that a session is mounted at Dir, and must be unmounted for the request.
type SessionMountedError struct{ Dir string }

// Error names the directory.
func (e SessionMountedError) Error() string { return "it is mounted at " + e.Dir }

// NoSuchSessionError reports that a session remote does not have a session. It matches statedir.ErrNoSession.
type NoSuchSessionError struct{ Remote string }

// Error names the session remote.
func (e NoSuchSessionError) Error() string { return "there is no such session on " + e.Remote }

// Unwrap returns statedir.ErrNoSession.
func (NoSuchSessionError) Unwrap() error { return statedir.ErrNoSession }

// NoPathError reports a path that neither the checkpoint nor the working tree has.
type NoPathError struct{ Path string }

// Error names the path.
func (e NoPathError) Error() string {
	return e.Path + ": neither that checkpoint has it, nor one of how things are now"
}

// GitBusyError reports an operation that git has begun and not ended, such as a merge.
type GitBusyError string

// Error names the operation.
func (e GitBusyError) Error() string { return "git is " + string(e) }

// RefusalError reports the paths because of which a working tree cannot be changed.
type RefusalError struct {
	Why, Hint string
	Paths     []string
}

// Error lists the first paths.
func (r RefusalError) Error() string {
	const most = 10
	shown := strings.Join(r.Paths[:min(len(r.Paths), most)], ", ")
	if more := len(r.Paths) - most; more > 0 {
		shown += fmt.Sprintf(" and %d more", more)
	}
	return r.Why + ": " + shown
}

// SessionRemoteError is a failure of a session remote.
type SessionRemoteError struct {
	URL string // without secrets
	Err error
}

// Error names the session remote.
func (e SessionRemoteError) Error() string { return "session remote " + e.URL + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e SessionRemoteError) Unwrap() error { return e.Err }

// SessionRemote wraps err in a SessionRemoteError. It returns the error of an ended context unchanged, because that is
// no failure of the remote.
func SessionRemote(remote interface{ URL() string }, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return SessionRemoteError{remote.URL(), Remote(err)}
}

// Remote marks err as a failure of a remote, which determines the exit status whatever the cause is, for example a
// broken pack. It returns errors of this host's disk unchanged.
func Remote(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) || errors.Is(err, syscall.ENOSPC) {
		return err
	}
	return remoteError{err}
}

// remoteError is an error that also matches errRemote.
type remoteError struct{ error }

// Unwrap returns the cause.
func (e remoteError) Unwrap() error { return e.error }

// Is reports whether target is errRemote.
func (e remoteError) Is(target error) bool { return target == errRemote }

// IsGit reports whether a git command has failed. The daemon runs git commands only to reach remotes.
func IsGit(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit)
}
