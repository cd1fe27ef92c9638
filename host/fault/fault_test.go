package fault

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch/bare"
	"github.com/artifactfs/artifactfs/fetch/remoteref"
	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/host/mount/mountpoint"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/trash"
)

func subject(a Area) Subject {
	return Subject{Area: a, Verb: "verb", Object: "thing", Remote: "https://127.0.0.1/r", Session: "s", Ref: "main",
		ID: "01AB", GitDir: "/h/git"}
}

// TestTable checks, for one cause of an error in one area each, the exit status, the code and the texts that the user
// sees.
func TestTable(t *testing.T) {
	far := SessionRemoteError{"https://127.0.0.1/s", Remote(transport.ErrUnreachable)}
	for _, c := range []struct {
		area  Area
		err   error
		exit  int
		code  control.ErrorCode
		shown string // the error in one line
		hint  string // part of the hint; "" if there is no hint
	}{
		{General, errors.New("verb thing: it broke"), 1, control.CodeFailed, "verb thing: it broke", ""},
		{General, fmt.Errorf("send: %w", context.Canceled), 1, control.CodeInterrupted, "verb thing: interrupted", ""},
		{General, Remote(context.DeadlineExceeded), 3, control.CodeTimeout, "verb thing: context deadline exceeded", ""},
		{General, &remoteref.Error{Ref: "mian", Similar: []string{"main"}}, 3, control.CodeNotFound,
			`verb thing: find "mian": the remote has no such branch, tag or commit`, "did you mean main?"},
		{General, transport.ErrAuth, 3, control.CodeAuth, "verb thing: authentication failed", "ARTIFACTFS_TOKEN"},
		{General, fmt.Errorf("%w: %w", transport.ErrUnreachable, &exec.Error{Name: "ssh", Err: exec.ErrNotFound}), 3,
			control.CodeUnreachable, "", ""},
		{General, &exec.Error{Name: "git", Err: exec.ErrNotFound}, 1, control.CodeFailed, "", "install git"},
		{General, fmt.Errorf("push to r: %w", &gitcmd.Error{Verb: "pack-objects", Err: &exec.ExitError{}}), 1,
			control.CodeFailed, "", ""},
		{General, Remote(fmt.Errorf("push to r: %w", &gitcmd.Error{Verb: "pack-objects", Err: &exec.ExitError{}})), 1,
			control.CodeFailed, "", ""},
		{General, bare.ContactError{Err: &gitcmd.Error{Verb: "fetch", Err: &exec.ExitError{}}}, 3,
			control.CodeFailed, "", ""},
		{General, Remote(bare.ContactError{Err: &gitcmd.Error{Verb: "fetch", Err: &exec.ExitError{}}}), 3,
			control.CodeFailed, "", ""},
		{General, syscall.ENOSPC, 1, control.CodeNoSpace, "verb thing: no space left on device", "free some space"},
		{General, Remote(&fs.PathError{Op: "open", Path: "/x", Err: syscall.EIO}), 1, control.CodeFailed, "", ""},
		{General, mountpoint.ErrAlreadyMounted, 1, control.CodeConflict, "", "artifactfs unmount thing to unmount it"},
		{General, fmt.Errorf("%w at /m", mountpoint.ErrInside), 1, control.CodeConflict, "", "choose another directory"},
		{Mount, Remote(errors.New("a broken pack")), 3, control.CodeFailed, "verb https://127.0.0.1/r: a broken pack", ""},
		{Mount, far, 3, control.CodeUnreachable, "verb session remote https://127.0.0.1/s: remote unreachable",
			"--session-remote embedded or none"},
		{Mount, statedir.InUseError{Session: "s", Dir: "/m", PID: "7"}, 1, control.CodeConflict, "",
			"artifactfs unmount /m to unmount it"},
		{Mount, statedir.ErrNoSession, 4, control.CodeNotFound, "verb thing: no session s exists", "artifactfs list"},
		{Mount, statedir.ErrRecord, 1, control.CodeFailed, "",
			"artifactfs mount https://127.0.0.1/r DIR --read-only --session s"},
		{Resume, statedir.ErrNoSession, 4, control.CodeNotFound, "", "artifactfs session list to see the sessions"},
		{Session, statedir.InUseError{Session: "s", Dir: "/m", PID: "7"}, 1, control.CodeConflict, "",
			"send the request to the daemon"},
		{Session, far, 3, control.CodeUnreachable, "verb thing: session remote https://127.0.0.1/s: remote unreachable", ""},
		{Session, &session.FindError{Name: "01AB", Err: session.ErrNoCheckpoint}, 4, control.CodeNotFound,
			`verb thing: checkpoint "01AB": no such checkpoint`, "session log"},
		{SessionAt, far, 3, control.CodeUnreachable, "verb session remote https://127.0.0.1/s: remote unreachable",
			"git ls-remote URL"},
		{SessionAt, NoSuchSessionError{"https://127.0.0.1/s"}, 4, control.CodeNotFound, "",
			"--session-remote https://127.0.0.1/s"},
		{Switch, gitdir.ErrNoCommit, 2, control.CodeNotFound,
			"verb thing: no branch main exists in the mount or on the remote", "git branch -a"},
		{Switch, RefusalError{"local changes would be overwritten", "commit them", []string{"a", "b"}}, 1,
			control.CodeConflict, "verb thing: local changes would be overwritten: a, b", "commit them"},
		{Restore, gitdir.ErrLocked, 1, control.CodeFailed, "", "/h/git/index.lock"},
		{Restore, NoPathError{"x"}, 1, control.CodeFailed, "", "session diff 01AB"},
		{Delete, &session.HeldError{}, 1, control.CodeConflict, "", "--take-over to delete"},
		{Delete, fmt.Errorf("restore session s: %w", trash.ErrNone), 4, control.CodeNotFound,
			"verb thing: " + trash.ErrNone.Error(), "--deleted"},
	} {
		e := subject(c.area).Explain(c.err)
		if e.Code != c.exit || e.ErrorCode() != c.code || c.shown != "" && e.Error() != c.shown {
			t.Errorf("area %d, %v: got exit status %d, code %s, %q, want %d, %s, %q", c.area, c.err, e.Code, e.ErrorCode(),
				e.Error(), c.exit, c.code, c.shown)
		}
		if (e.Hint == "") != (c.hint == "") || !strings.Contains(e.Hint, c.hint) {
			t.Errorf("area %d, %v: hint is %q, want %q", c.area, c.err, e.Hint, c.hint)
		}
	}
}

func TestExplainedErrorsStay(t *testing.T) {
	was := &control.Error{Code: control.ExitUsage, Verb: "mount", Object: "/m", Cause: "no"}
	if e := ExplainSession("fork", "s", fmt.Errorf("outer: %w", was)); e != was {
		t.Errorf("an error that was explained became %v", e)
	}
}

func TestUnsynced(t *testing.T) {
	for _, c := range []struct {
		err   error
		code  control.ErrorCode
		cause string
	}{
		{fmt.Errorf("push: %w", context.DeadlineExceeded), control.CodeUnsynced, ErrSlow.Error()},
		{errors.New("sync: one\ntwo"), control.CodeUnsynced, "one; two"},
		{transport.ErrAuth, control.CodeAuth, "authentication failed"}, // a repetition does not help
	} {
		if e := Unsynced("sync", "/m", c.err); e.Code != control.ExitUnsynced || e.Kind != c.code || e.Cause != c.cause ||
			e.Hint == "" {
			t.Errorf("%v: got %+v, want code %s, cause %q and a hint", c.err, e, c.code, c.cause)
		}
	}
}
