package daemon

import (
	"context"
	"errors"
	"io/fs"
	"os/exec"
	"strings"
	"syscall"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/mount/mountpoint"
	"github.com/artifactfs/artifactfs/session/writeback"
	"github.com/artifactfs/artifactfs/statedir"
	"github.com/artifactfs/artifactfs/transport"
)

var (
	errRemote = errors.New("remote failed")
)

func notMounted(verb, dir string) *control.Error {
	return &control.Error{Code: control.ExitNotMounted, Kind: control.CodeNotMounted, Verb: verb, Object: dir,
		Cause: "no artifactfs mount there", Hint: "artifactfs list shows what is mounted"}
}

// explainMount says what failed about the remote or about the directory, whichever it was.
func explainMount(m *mount, err error) *control.Error {
	e := explain("mount", m.dir, err)
	if explainSession(e, m, err) {
		return e
	}
	if e.Code == control.ExitRemote && e.Verb == "mount" { // the session remote has a verb of its own
		e.Object = secretFree(m.request.Remote)
	}
	return e
}

// secretFree is a remote as it may be shown.
func secretFree(remote string) string {
	r, err := transport.Open(remote, transport.Options{})
	if err != nil {
		return "the remote"
	}
	defer r.Close()
	return r.URL()
}

// explain returns err with its exit code, its error code and, where one helps, a hint.
func explain(verb, thing string, err error) *control.Error {
	var done *control.Error
	if errors.As(err, &done) {
		return done
	}
	// Most errors say themselves what was being done to what.
	e := &control.Error{Code: control.ExitFailed, Kind: errorCode(err), Verb: verb, Object: thing, Cause: strings.TrimPrefix(err.Error(), verb+" "+thing+": ")}
	var ref *fetch.RefError
	var notOurs transport.NotOurRef
	var limited transport.RateLimited
	var used mountpoint.BusyError
	var program *exec.Error
	switch {
	case errors.Is(err, context.Canceled):
		e.Cause = "interrupted"
	case errors.As(err, &ref):
		e.Code, e.Hint = control.ExitRemote, "git ls-remote lists the branches and tags that the remote has"
		if len(ref.Similar) > 0 {
			e.Hint = "did you mean " + strings.Join(ref.Similar, ", ") + "?"
		}
	case errors.As(err, &notOurs):
		e.Code, e.Hint = control.ExitRemote, "the remote has no such commit, or does not allow fetching it by its ID"
	case errors.Is(err, transport.ErrURL):
		e.Code, e.Hint = control.ExitUsage, "http, https, ssh, git and file URLs, HOST:PATH and local paths name remotes"
	case errors.Is(err, transport.ErrAuth):
		e.Code, e.Hint = control.ExitRemote, "set ARTIFACTFS_TOKEN, use --token-file, or let a git credential helper know the password"
	case errors.Is(err, transport.ErrForbidden):
		e.Code, e.Hint = control.ExitRemote, "the credentials are known there but not allowed to read this repository"
	case errors.Is(err, transport.ErrNotFound):
		e.Code, e.Hint = control.ExitRemote, "check the spelling; private repositories also look like this without credentials"
	case errors.Is(err, fetch.ErrDeadline):
		e.Code, e.Hint = control.ExitRemote, "--timeout allows more time"
	case errors.Is(err, transport.ErrUnreachable), errors.Is(err, transport.ErrStalled), errors.As(err, &limited), errors.Is(err, fetch.ErrNotFound):
		e.Code = control.ExitRemote
	case isGit(err):
		e.Code = control.ExitRemote
	case errors.Is(err, mountpoint.ErrAlreadyMounted):
		e.Hint = "artifactfs unmount " + thing + " ends the mount there"
	case errors.Is(err, mountpoint.ErrTaken), errors.Is(err, mountpoint.ErrInside):
		e.Hint = "choose another directory"
	case errors.Is(err, mountpoint.ErrDeadMount):
		e.Hint = "umount -l " + thing + " removes it"
	case errors.Is(err, mountpoint.ErrNotEmpty):
		e.Hint = "choose an empty directory, or one that does not exist yet"
	case errors.Is(err, mountpoint.ErrNoFUSE), errors.Is(err, fuse.ErrNoFUSE):
		e.Hint = "load the kernel's fuse module; in a container pass --device /dev/fuse and the right to mount"
	case errors.Is(err, syscall.ENOSPC):
		e.Hint = "free some space, or choose another place with --state"
	case errors.As(err, &used):
		e.Cause, e.Hint = used.Error(), used.Hint()
	case errors.Is(err, fuse.ErrBusy):
		e.Hint = "a process has a file or its working directory there: fuser -vm " + thing + " names it"
	case errors.Is(err, mountpoint.ErrUserMount):
		e.Hint = "mount as root, or see that fusermount3 works for you: own the directory, have access to /dev/fuse; the log holds what it said"
	case errors.As(err, &program) && errors.Is(err, exec.ErrNotFound) && program.Name == "git":
		e.Hint = "install git; a daemon that runs already has the PATH that it was started with: artifactfs unmount --all ends it"
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrPermission):
		e.Hint = "mount as root, or have fusermount3 installed and own the directory"
	case errors.Is(err, errRemote):
		e.Code = control.ExitRemote
	}
	return e
}

// errorCode returns the code of a failure of a remote, of the directory of a mount, or of this host.
func errorCode(err error) control.ErrorCode {
	var ref *fetch.RefError
	var notOurs transport.NotOurRef
	var limited transport.RateLimited
	switch {
	case errors.Is(err, transport.ErrURL):
		return control.CodeUsage
	case errors.As(err, &ref), errors.As(err, &notOurs), errors.Is(err, transport.ErrNotFound), errors.Is(err, fetch.ErrNotFound):
		return control.CodeNotFound
	case errors.Is(err, transport.ErrAuth):
		return control.CodeAuth
	case errors.Is(err, transport.ErrForbidden), errors.Is(err, writeback.ErrRefused):
		return control.CodeRefused
	case errors.Is(err, fetch.ErrDeadline), errors.Is(err, transport.ErrStalled):
		return control.CodeTimeout
	case errors.As(err, &limited):
		return control.CodeRateLimited
	case errors.Is(err, transport.ErrUnreachable):
		return control.CodeUnreachable
	case errors.Is(err, mountpoint.ErrAlreadyMounted), errors.Is(err, mountpoint.ErrTaken), errors.Is(err, mountpoint.ErrInside), errors.Is(err, mountpoint.ErrDeadMount),
		errors.Is(err, mountpoint.ErrNotEmpty), errors.Is(err, mountpoint.ErrNotDirectory), errors.Is(err, errSessionExists), errors.Is(err, errHasFiles):
		return control.CodeConflict
	case errors.Is(err, fuse.ErrBusy), errors.Is(err, statedir.ErrBusySession), errors.Is(err, statedir.ErrStoreUsed), errors.Is(err, errNoGit):
		return control.CodeBusy
	case errors.Is(err, mountpoint.ErrNoFUSE), errors.Is(err, fuse.ErrNoFUSE):
		return control.CodeUnsupported
	}
	return control.AsError(err).Kind
}

// remoteFault is an error of getting something from a remote, whatever kind it is: broken packs and nonsense as well.
// What this host's disk said stays what it is.
func remoteFault(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) || errors.Is(err, syscall.ENOSPC) {
		return err
	}
	return blamed{err}
}

// blamed is an error that is errRemote, too.
type blamed struct{ error }

func (b blamed) Unwrap() error        { return b.error }
func (b blamed) Is(target error) bool { return target == errRemote }

// isGit says whether stock git failed, which is only asked to reach remotes.
func isGit(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit)
}
