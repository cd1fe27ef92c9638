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

// Causes that more than one package reports or looks for.
var (
	// ErrReadOnly reports that a mount cannot be changed.
	ErrReadOnly = errors.New("the mount is read-only")
	// ErrNoGitDir reports that the git directory of a mount has not been written yet.
	ErrNoGitDir = errors.New("the mount has no git directory yet")
	// ErrNoBranch reports a mount of a tag or commit, which cannot follow a branch.
	ErrNoBranch = errors.New("what is mounted is no branch")
	// ErrSparse reports a sparse checkout, which only git can switch.
	ErrSparse = errors.New("the checkout is sparse")
	// ErrConflicts reports an index with conflicts of an earlier merge.
	ErrConflicts = errors.New("the index has conflicts of before")
	// ErrHasFiles reports a directory that cannot be redirected because it has files of the session.
	ErrHasFiles = errors.New("it has files already")
	// ErrNoCheckpoint reports a session without any checkpoint.
	ErrNoCheckpoint = errors.New("no checkpoint was made in it yet")
	// ErrNoSessionRemote reports a mount that makes no checkpoints.
	ErrNoSessionRemote = errors.New("this mount has no session remote")
	// ErrSessionExists reports that a fork cannot have a name.
	ErrSessionExists = errors.New("the session exists already")
	// ErrOtherRemote reports a session of another mounted remote.
	ErrOtherRemote = errors.New("the session is of another remote")
	// ErrSlow reports that a session remote did not answer in the time that a command waits for it.
	ErrSlow = errors.New("the session remote takes too long")

	errRemote = errors.New("remote failed")
)

// OtherCommitError reports a request to resume a session at another commit than its base.
type OtherCommitError struct{ Ref, Commit, Session, Base string }

func (e OtherCommitError) Error() string {
	return fmt.Sprintf("%s is %.12s, and the work of session %s is on top of %.12s", e.Ref, e.Commit, e.Session, e.Base)
}

// SessionMountedError reports that a session must not be mounted for what was asked, and is mounted at Dir.
type SessionMountedError struct{ Dir string }

func (e SessionMountedError) Error() string { return "it is mounted at " + e.Dir }

// NoSuchSessionError reports that a session remote does not have a session. It is a statedir.ErrNoSession.
type NoSuchSessionError struct{ Remote string }

func (e NoSuchSessionError) Error() string { return "there is no such session on " + e.Remote }

func (NoSuchSessionError) Unwrap() error { return statedir.ErrNoSession }

// NoPathError reports a path that neither a checkpoint nor the working tree has.
type NoPathError struct{ Path string }

func (e NoPathError) Error() string {
	return e.Path + ": neither that checkpoint has it, nor one of how things are now"
}

// GitBusyError names the operation that git has begun and not ended, such as a merge.
type GitBusyError string

func (e GitBusyError) Error() string { return "git is " + string(e) }

// RefusalError reports the paths that keep a working tree from being changed.
type RefusalError struct {
	Why, Hint string
	Paths     []string
}

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

func (e SessionRemoteError) Error() string { return "session remote " + e.URL + ": " + e.Err.Error() }

func (e SessionRemoteError) Unwrap() error { return e.Err }

// SessionRemote returns err as a SessionRemoteError. The end of a context is no failure of the remote and stays as it is.
func SessionRemote(remote interface{ URL() string }, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return SessionRemoteError{remote.URL(), Remote(err)}
}

// Remote returns err as a failure of a remote: its exit status is that of remotes, whatever the cause is, such as a broken pack.
// Failures of this host's disk stay what they are.
func Remote(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) || errors.Is(err, syscall.ENOSPC) {
		return err
	}
	return remoteError{err}
}

// remoteError is an error that is errRemote, too.
type remoteError struct{ error }

func (e remoteError) Unwrap() error        { return e.error }
func (e remoteError) Is(target error) bool { return target == errRemote }

// IsGit reports whether a git command has failed. The daemon runs git only to reach remotes.
func IsGit(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit)
}
