package fault

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
	"github.com/artifactfs/artifactfs/gitdir"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/index"
	"github.com/artifactfs/artifactfs/mount/mountpoint"
	"github.com/artifactfs/artifactfs/overlay"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/transcript"
	"github.com/artifactfs/artifactfs/session/trash"
	"github.com/artifactfs/artifactfs/session/writeback"
	"github.com/artifactfs/artifactfs/statedir"
	"github.com/artifactfs/artifactfs/transport"
	"github.com/artifactfs/artifactfs/worktree/inode"
)

// row states how the errors with a certain cause are reported. A field that is empty is taken from a later row that
// matches.
type row struct {
	in Area // areas that the row applies to; 0 for all
	// match reports whether the row applies to an error.
	match func(error) bool
	code  control.ErrorCode
	exit  int
	cause func(s Subject, err error) string // returns the text that replaces the error's own
	hint  func(s Subject, err error) string // returns "" for no hint
	last  bool                              // whether the rows after this one are ignored
}

// namesSessionRemote are the areas in which the session remote is printed as the object if it has failed.
const namesSessionRemote = SessionAt | List | Mount | Resume

// is returns a function that reports whether an error is one of targets (errors.Is).
func is(targets ...error) func(error) bool {
	return func(err error) bool {
		for _, t := range targets {
			if errors.Is(err, t) {
				return true
			}
		}
		return false
	}
}

// a returns a function that reports whether an error is of type E (errors.As).
func a[E error]() func(error) bool {
	return func(err error) bool {
		var e E
		return errors.As(err, &e)
	}
}

// of returns a function that calls text with the error of type E that it is given.
func of[E error](text func(s Subject, e E) string) func(Subject, error) string {
	return func(s Subject, err error) string {
		var e E
		errors.As(err, &e)
		return text(s, e)
	}
}

// text returns a function that returns t. In t, the words {object}, {remote}, {session}, {ref}, {id} and {gitdir} are
// replaced by the values of the subject.
func text(t string) func(Subject, error) string {
	return func(s Subject, _ error) string {
		return strings.NewReplacer("{object}", s.Object, "{remote}", s.Remote, "{session}", s.Session,
			"{ref}", s.Ref, "{id}", s.ID, "{gitdir}", s.GitDir).Replace(t)
	}
}

// lockedIndex is the hint for a locked index.
const lockedIndex = "if no git command runs in the mount, remove {gitdir}/index.lock"

// specific lists the causes of single areas or operations. For each field, the first row that matches and has the field
// is used. Therefore rows for fewer areas precede those for more areas.
var specific = []row{
	{match: is(context.Canceled), code: control.CodeInterrupted, exit: control.ExitFailed, cause: text("interrupted"), last: true},

	// Mounting.
	{in: Mount, match: a[statedir.InUseError](), hint: of(func(_ Subject, e statedir.InUseError) string {
		return "artifactfs unmount " + e.Dir + " ends it there; --session NAME begins other work"
	})},
	{in: Mount, match: a[OtherCommitError](), code: control.CodeConflict, exit: control.ExitUsage,
		hint: of(func(_ Subject, e OtherCommitError) string {
			return "without --ref the session is resumed; --session NAME mounts " + e.Ref +
				" beside it; artifactfs unmount --discard --session " + e.Session + " throws its work away"
		})},
	{in: Mount, match: is(statedir.ErrNoSession), cause: text("there is no session {session}"),
		hint: text("artifactfs list shows those that are kept")},
	{in: Mount, match: is(ErrOtherRemote), code: control.CodeConflict, exit: control.ExitUsage,
		hint: text("--session NAME begins other work")},
	{in: Mount, match: is(overlay.ErrVersion, statedir.ErrNewer), code: control.CodeUnsupported,
		hint: text("use the artifactfs that made it, or --session NAME to begin other work")},
	{in: Mount, match: is(overlay.ErrInUse), code: control.CodeBusy, hint: text("--session NAME begins other work")},
	{in: Mount, match: is(overlay.ErrDamaged, statedir.ErrRecord, statedir.ErrNoRecord, inode.ErrTable),
		hint: text("artifactfs mount {remote} DIR --read-only --session {session} shows what can be read; artifactfs doctor --fix repairs it")},
	{in: Resume, match: is(statedir.ErrNoSession), hint: func(s Subject, _ error) string {
		if !s.Far {
			return ""
		}
		return "artifactfs session list shows those of this host; the session remote has none of this name"
	}},

	// Switching and following.
	{in: Switch, match: a[RefusalError](), code: control.CodeConflict, hint: of(func(_ Subject, e RefusalError) string { return e.Hint })},
	{in: Switch, match: a[GitBusyError](), code: control.CodeConflict, hint: text("finish or abort that first; git status shows how")},
	{in: Switch, match: is(ErrReadOnly), code: control.CodeUnsupported},
	{in: Switch | Restore, match: is(ErrReadOnly), hint: text("mount without --read-only to change it")},
	{in: Restore, match: is(syscall.EROFS), hint: text("mount without --read-only to change it")},
	{in: Switch, match: is(gitdir.ErrLocked), code: control.CodeBusy},
	{in: Switch | Restore, match: is(gitdir.ErrLocked), hint: text(lockedIndex)},
	{in: Switch, match: is(gitdir.ErrNoCommit), code: control.CodeNotFound, exit: control.ExitUsage,
		cause: text("there is no branch {ref}, here or on the remote"), hint: text("git branch -a lists branches; git fetch updates them")},
	{in: Switch, match: is(gitdir.ErrNotBranch), exit: control.ExitUsage,
		hint: text("--detach goes there without a branch, -c NAME makes one")},
	{in: Switch, match: is(gitdir.ErrBranchExists), code: control.CodeConflict, exit: control.ExitUsage,
		hint: text("without -c it is switched to")},
	{in: Switch, match: is(gitdir.ErrAmbiguous), exit: control.ExitUsage, hint: text("-c {ref} REMOTE/{ref} says which")},
	{in: Switch, match: is(index.ErrSplit, ErrSparse), hint: text("git switch does it")},
	{match: is(ErrNoBranch), code: control.CodeUnsupported, hint: text("mount a branch: artifactfs mount REMOTE DIR --ref BRANCH")},
	{match: is(ErrConflicts), exit: control.ExitUsage,
		hint: text("resolve them and git add the files, or git checkout them; then merge again")},
	{in: Restore, match: a[NoPathError](), hint: text("artifactfs session diff {id} --name-only lists what differs")},

	// Deleting.
	{in: Delete, match: a[*session.HeldError](), hint: text("--take-over deletes it all the same")},
	{in: Delete, match: a[SessionMountedError](), hint: of(func(_ Subject, e SessionMountedError) string {
		return "artifactfs unmount --discard " + e.Dir + " ends the mount and deletes the session"
	})},
	{in: Delete, match: is(trash.ErrNone), code: control.CodeNotFound, exit: control.ExitNotMounted, cause: text(trash.ErrNone.Error()),
		hint: text("artifactfs session list --deleted lists those that can be restored; with --session-remote those of that repository")},
	{in: Delete, match: is(trash.ErrThere), code: control.CodeConflict,
		hint: text("artifactfs session delete {object} puts that one into the trash")},
	{in: Delete, match: is(disk.ErrLocked), hint: text("artifactfs status shows who uses it")},
	{in: Delete, match: is(transport.ErrNoPush), exit: control.ExitRemote},

	// Session remotes.
	{in: SessionAt, match: a[SessionRemoteError](),
		hint: text("the URL and its credentials are looked at as git does: git ls-remote URL shows more")},
	{in: SessionAt, match: a[NoSuchSessionError](), hint: of(func(_ Subject, e NoSuchSessionError) string {
		return "artifactfs session list --session-remote " + control.ShellWord(e.Remote) + " shows those that there are"
	})},
	{in: namesSessionRemote, match: a[SessionRemoteError](), exit: control.ExitRemote,
		cause: of(func(_ Subject, e SessionRemoteError) string { return e.Err.Error() })},

	// Sessions and checkpoints.
	{match: a[*session.HeldError](), code: control.CodeConflict,
		hint: text("artifactfs session fork starts a new session from its newest checkpoint; --take-over resumes this one anyway")},
	{match: is(session.ErrClosed), code: control.CodeConflict,
		hint: text("artifactfs session reopen opens it again; --session NAME begins other work")},
	{match: is(session.ErrMoved), code: control.CodeConflict},
	{match: a[*session.FindError](), cause: of(func(s Subject, e *session.FindError) string { return findText(s.Object, e) })},
	{match: is(statedir.ErrNoSession, session.ErrNoMeta), code: control.CodeNotFound, exit: control.ExitNotMounted,
		hint: text("artifactfs session list shows those that there are")},
	{match: is(session.ErrNoCheckpoint), code: control.CodeNotFound, exit: control.ExitNotMounted,
		hint: text("artifactfs session log lists them")},
	{match: is(session.ErrAmbiguous), code: control.CodeUsage, exit: control.ExitUsage, hint: text("use a longer prefix of the id")},
	{match: is(ErrNoCheckpoint), code: control.CodeNotFound, exit: control.ExitNotMounted, hint: text("artifactfs checkpoint makes one")},
	{match: is(session.ErrNoPin), code: control.CodeNotFound, exit: control.ExitNotMounted,
		hint: text("artifactfs session log shows those that there are")},
	{match: is(ErrNoSessionRemote), code: control.CodeUnsupported,
		hint: text("mount it without --read-only and with a --session-remote other than none")},
	{match: a[*session.TransitionError](), code: control.CodeConflict, exit: control.ExitUsage},
	{match: is(transcript.ErrNoCommit), code: control.CodeNotFound, exit: control.ExitUsage},
	{match: a[*transcript.LineError](), code: control.CodeUsage, exit: control.ExitUsage},
	{match: is(transcript.ErrNotesRef, transcript.ErrNotJSON), code: control.CodeUsage, exit: control.ExitUsage},
	{match: a[SessionMountedError](), code: control.CodeConflict, hint: of(func(_ Subject, e SessionMountedError) string {
		return "artifactfs unmount " + e.Dir + " ends that"
	})},
	{match: a[statedir.InUseError](), code: control.CodeConflict, hint: text("ask the daemon that serves it, or unmount it")},
}

// common lists the causes that every operation can have. It is used for the fields that no row of specific has set. The
// first row that matches and has an exit status or a hint determines both, because the rows after it only describe causes
// of that cause.
var common = []row{
	// Failures of remotes.
	{match: a[*fetch.RefError](), code: control.CodeNotFound, exit: control.ExitRemote, hint: of(func(_ Subject, e *fetch.RefError) string {
		if len(e.Similar) > 0 {
			return "did you mean " + strings.Join(e.Similar, ", ") + "?"
		}
		return "git ls-remote lists the branches and tags that the remote has"
	})},
	{match: a[transport.NotOurRef](), code: control.CodeNotFound, exit: control.ExitRemote,
		hint: text("the remote has no such commit, or does not allow fetching it by its ID")},
	{match: is(transport.ErrURL), code: control.CodeUsage, exit: control.ExitUsage,
		hint: text("http, https, ssh, git and file URLs, HOST:PATH and local paths name remotes")},
	{match: is(transport.ErrAuth), code: control.CodeAuth, exit: control.ExitRemote,
		hint: text("set ARTIFACTFS_TOKEN, use --token-file, or let a git credential helper know the password")},
	{match: is(transport.ErrForbidden), code: control.CodeRefused, exit: control.ExitRemote,
		hint: text("the credentials are known there but not allowed to read this repository")},
	{match: is(writeback.ErrRefused), code: control.CodeRefused},
	{match: is(transport.ErrNotFound), code: control.CodeNotFound, exit: control.ExitRemote,
		hint: text("check the spelling; private repositories also look like this without credentials")},
	{match: is(fetch.ErrNotFound), code: control.CodeNotFound, exit: control.ExitRemote},
	{match: is(fetch.ErrDeadline), code: control.CodeTimeout, exit: control.ExitRemote, hint: text("--timeout allows more time")},
	{match: is(transport.ErrStalled), code: control.CodeTimeout, exit: control.ExitRemote},
	{match: a[transport.RateLimited](), code: control.CodeRateLimited, exit: control.ExitRemote},
	{match: is(transport.ErrUnreachable), code: control.CodeUnreachable, exit: control.ExitRemote},
	{match: IsGit, exit: control.ExitRemote},

	// Failures of the mount's directory, and of this host.
	{match: is(mountpoint.ErrAlreadyMounted), code: control.CodeConflict, hint: text("artifactfs unmount {object} ends the mount there")},
	{match: is(mountpoint.ErrTaken, mountpoint.ErrInside), code: control.CodeConflict, hint: text("choose another directory")},
	{match: is(mountpoint.ErrDeadMount), code: control.CodeConflict, hint: text("umount -l {object} removes it")},
	{match: is(mountpoint.ErrNotEmpty), code: control.CodeConflict, hint: text("choose an empty directory, or one that does not exist yet")},
	{match: is(mountpoint.ErrNotDirectory, ErrSessionExists, ErrHasFiles), code: control.CodeConflict},
	{match: is(mountpoint.ErrNoFUSE, fuse.ErrNoFUSE), code: control.CodeUnsupported,
		hint: text("load the kernel's fuse module; in a container pass --device /dev/fuse and the right to mount")},
	{match: is(syscall.ENOSPC), hint: text("free some space, or choose another place with --state")},
	{match: a[mountpoint.BusyError](), code: control.CodeBusy, cause: of(func(_ Subject, e mountpoint.BusyError) string { return e.Error() }),
		hint: of(func(_ Subject, e mountpoint.BusyError) string { return e.Hint() })},
	{match: is(fuse.ErrBusy), code: control.CodeBusy,
		hint: text("a process has a file or its working directory there: fuser -vm {object} names it")},
	{match: is(statedir.ErrBusySession, statedir.ErrStoreUsed, ErrNoGitDir), code: control.CodeBusy},
	{match: is(mountpoint.ErrUserMount),
		hint: text("mount as root, or see that fusermount3 works for you: own the directory, have access to /dev/fuse; the log holds " +
			"what it said")},
	{match: noGit,
		hint: text("install git; a daemon that runs already has the PATH that it was started with: artifactfs unmount --all ends it")},
	{match: is(exec.ErrNotFound, fs.ErrPermission), hint: text("mount as root, or have fusermount3 installed and own the directory")},
	{match: is(errRemote), exit: control.ExitRemote},
}

// sessionRemoteHint is the hint for a failure of a session remote, if no row has another hint.
const sessionRemoteHint = "--session-remote names it; with embedded or none the mount does without"

// noGit reports whether err means that git is not installed.
func noGit(err error) bool {
	var program *exec.Error
	return errors.As(err, &program) && errors.Is(err, exec.ErrNotFound) && program.Name == "git"
}
