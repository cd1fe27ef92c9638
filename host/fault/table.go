package fault

import (
	"context"
	"errors"
	"io/fs"
	"os/exec"
	"strings"
	"syscall"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/control/profile"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/fetch/bare"
	"github.com/artifactfs/artifactfs/fetch/remoteref"
	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/git/index"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/host/mount/mountpoint"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/annotate"
	"github.com/artifactfs/artifactfs/session/cacheentry"
	"github.com/artifactfs/artifactfs/session/locks"
	"github.com/artifactfs/artifactfs/session/reffile"
	"github.com/artifactfs/artifactfs/session/transcript"
	"github.com/artifactfs/artifactfs/session/trash"
	"github.com/artifactfs/artifactfs/session/writeback"
	"github.com/artifactfs/artifactfs/worktree/inode"
	"github.com/artifactfs/artifactfs/worktree/overlay"
)

// row is a row of the tables specific and common. It states how errors with a certain cause are reported. The value of
// an empty field (code, exit, cause, hint) is taken from a later row that matches the error.
type row struct {
	in Area // areas that the row applies to; 0 for all areas
	// match reports whether err has the cause that the row is for.
	match func(error) bool
	code  control.ErrorCode
	exit  int
	cause func(s Subject, err error) string // returns the text that replaces the text of the error
	hint  func(s Subject, err error) string // returns the hint; nil if the row has no hint
	last  bool                              // whether the rows after a match of this row are ignored
}

// namesSessionRemote is the set of areas in which a message about a failed session remote has the session remote as its
// object.
const namesSessionRemote = SessionAt | List | Mount | Resume

// is returns the match function of a row: it reports whether an error wraps one of the errors in targets (errors.Is).
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

// a returns the match function of a row: it reports whether an error wraps an error of type E (errors.As).
func a[E error]() func(error) bool {
	return func(err error) bool {
		var e E
		return errors.As(err, &e)
	}
}

// of returns the function of a row that computes a cause or a hint from an error of type E. The function calls text
// with the error of this type that its argument wraps.
func of[E error](text func(s Subject, e E) string) func(Subject, error) string {
	return func(s Subject, err error) string {
		var e E
		errors.As(err, &e)
		return text(s, e)
	}
}

// text returns the function of a row that computes a cause or a hint from the string t. The function replaces the words
// {object}, {remote}, {session}, {ref}, {id} and {gitdir} in t by the values of the subject.
func text(t string) func(Subject, error) string {
	return func(s Subject, _ error) string {
		return strings.NewReplacer("{object}", s.Object, "{remote}", s.Remote, "{session}", s.Session,
			"{ref}", s.Ref, "{id}", s.ID, "{gitdir}", s.GitDir).Replace(t)
	}
}

// lockedIndex is the hint that is printed if the git index of a mount is locked.
const lockedIndex = "if no git command is running in the mount, remove {gitdir}/index.lock"

// specific is the table of the causes that concern single areas or operations. The value of each field is taken from
// the first row that matches and has a value for the field, so rows for fewer areas precede rows for more areas.
var specific = []row{
	{match: is(context.Canceled), code: control.CodeInterrupted, exit: control.ExitFailed,
		cause: text("interrupted"), last: true},

	// Rows for mounting.
	{in: Mount, match: is(ErrUnmounted), code: control.CodeNotMounted, exit: control.ExitFailed},
	{in: Mount, match: a[statedir.InUseError](), hint: of(func(_ Subject, e statedir.InUseError) string {
		return "run artifactfs unmount " + e.Dir + " to unmount it there, or add --session NAME to mount another session"
	})},
	{in: Mount, match: a[OtherCommitError](), code: control.CodeConflict, exit: control.ExitUsage,
		hint: of(func(_ Subject, e OtherCommitError) string {
			return "omit --ref to resume the session; add --session NAME to mount " + e.Ref +
				" as another session; run artifactfs unmount --discard --session " + e.Session +
				" to delete the session and its changes"
		})},
	{in: Mount, match: is(statedir.ErrNoSession), cause: text("no session {session} exists"),
		hint: text("run artifactfs list to see the sessions on this host")},
	{in: Mount, match: is(ErrOtherRemote), code: control.CodeConflict, exit: control.ExitUsage,
		hint: text("add --session NAME to mount another session")},
	{in: Mount, match: is(ErrOtherTenant), code: control.CodePermission, hint: text("use another name for the session")},
	{in: Mount, match: is(overlay.ErrVersion, statedir.ErrNewer), code: control.CodeUnsupported,
		hint: text("use the artifactfs version that created the session, or add --session NAME to mount another session")},
	{in: Mount, match: is(overlay.ErrInUse), code: control.CodeBusy,
		hint: text("add --session NAME to mount another session")},
	{in: Mount, match: is(overlay.ErrDamaged, statedir.ErrRecord, statedir.ErrNoRecord, inode.ErrTable),
		hint: text("run artifactfs mount {remote} DIR --read-only --session {session} to see the readable files, " +
			"or artifactfs doctor --fix to repair the session")},
	{in: Mount, match: is(gitdir.ErrBranchExists, gitdir.ErrBranchBlocked), code: control.CodeConflict,
		exit: control.ExitFailed,
		hint: text("choose another name with -b NAME; -B NAME moves an existing branch of the new session")},
	{in: Mount, match: a[GitBusyError](), code: control.CodeConflict, exit: control.ExitFailed,
		hint: text("finish or abort the git operation first, or omit -b NAME")},
	{in: Mount, match: is(gitdir.ErrNoCommit), exit: control.ExitFailed, cause: text("branch has no commit to detach HEAD at")},
	{in: Resume, match: is(statedir.ErrNoSession), hint: func(s Subject, _ error) string {
		if !s.Far {
			return ""
		}
		return "the session remote has no session with this name; run artifactfs session list to see the sessions on this host"
	}},

	// Rows for switching, and for following a branch.
	{in: Switch | SessionAt, match: a[RefusalError](), code: control.CodeConflict,
		hint: of(func(_ Subject, e RefusalError) string { return e.Hint })},
	{in: Switch, match: a[GitBusyError](), code: control.CodeConflict,
		hint: text("finish or abort the git operation first; git status shows how")},
	{in: Switch, match: is(ErrReadOnly), code: control.CodeUnsupported},
	{in: Switch | Restore, match: is(ErrReadOnly), hint: text("mount without --read-only to change files")},
	{match: a[*locks.HeldError](), code: control.CodeConflict,
		hint: text("nothing was changed; run artifactfs session locks to see the locks of other sessions")},
	{in: Restore, match: is(syscall.EROFS), hint: text("mount without --read-only to change files")},
	{in: Switch, match: is(gitdir.ErrLocked), code: control.CodeBusy},
	{in: Switch | Restore, match: is(gitdir.ErrLocked), hint: text(lockedIndex)},
	{in: Switch, match: is(gitdir.ErrNoCommit), code: control.CodeNotFound, exit: control.ExitUsage,
		cause: text("no branch {ref} exists in the mount or on the remote"),
		hint:  text("run git branch -a to list the branches, and git fetch to update them")},
	{in: Switch, match: is(gitdir.ErrNotBranch), exit: control.ExitUsage,
		hint: text("add --detach to switch to the commit without a branch, or -c NAME to create a branch")},
	{in: Switch, match: is(gitdir.ErrBranchExists), code: control.CodeConflict, exit: control.ExitUsage,
		hint: text("omit -c to switch to the existing branch")},
	{in: Switch, match: is(gitdir.ErrAmbiguous), exit: control.ExitUsage,
		hint: text("add -c {ref} REMOTE/{ref} to choose the remote")},
	{in: Switch, match: is(index.ErrSplit, ErrSparse), hint: text("use git switch instead")},
	{match: is(ErrNoBranch), code: control.CodeUnsupported,
		hint: text("run artifactfs mount REMOTE DIR --ref BRANCH to mount a branch")},
	{match: is(ErrConflicts), exit: control.ExitUsage,
		hint: text("resolve the conflicts and run git add on the files, or restore them with git checkout; then merge again")},
	{in: Restore, match: a[NoPathError](),
		hint: text("run artifactfs session diff {id} --name-only to list the paths that differ")},

	// Rows for deleting.
	{in: Delete, match: a[*session.HeldError](), hint: text("add --take-over to delete the session nevertheless")},
	{in: Delete, match: a[SessionMountedError](), hint: of(func(_ Subject, e SessionMountedError) string {
		return "run artifactfs unmount --discard " + e.Dir + " to unmount and delete the session"
	})},
	{in: Delete, match: is(trash.ErrNone), code: control.CodeNotFound, exit: control.ExitNotMounted,
		cause: text(trash.ErrNone.Error()),
		hint: text("run artifactfs session list --deleted to see the sessions that can be restored, with --session-remote URL " +
			"those on a session remote")},
	{in: Delete, match: is(trash.ErrThere), code: control.CodeConflict,
		hint: text("run artifactfs session delete {object} to move the existing session to the trash")},
	{in: Delete, match: is(disk.ErrLocked), hint: text("run artifactfs status to see the process that uses the session")},
	{in: Delete, match: is(transport.ErrNoPush), exit: control.ExitRemote},

	// Rows for cache entries.
	{match: is(cacheentry.ErrNone), code: control.CodeNotFound, exit: control.ExitFailed,
		cause: text(cacheentry.ErrNone.Error()),
		hint:  text("run artifactfs session cache keys to list the entries, and artifactfs session cache put to store one")},
	{match: is(cacheentry.ErrKey, cacheentry.ErrExpect, cacheentry.ErrTooLarge), code: control.CodeUsage,
		exit: control.ExitUsage},
	{match: is(cacheentry.ErrDamaged), exit: control.ExitFailed,
		hint: text("run artifactfs session cache put to store the entry again, or artifactfs session cache delete to remove it")},
	{match: is(cacheentry.ErrNewer), code: control.CodeUnsupported, exit: control.ExitFailed},
	{match: is(cacheentry.ErrBusy), code: control.CodeBusy, exit: control.ExitFailed},

	// Rows for failures of session remotes.
	{in: SessionAt, match: a[SessionRemoteError](),
		hint: text("run git ls-remote URL to check the URL and its credentials")},
	{in: SessionAt, match: a[NoSuchSessionError](), hint: of(func(_ Subject, e NoSuchSessionError) string {
		return "run artifactfs session list --session-remote " + control.ShellWord(e.Remote) + " to see the sessions there"
	})},
	{in: namesSessionRemote, match: a[SessionRemoteError](), exit: control.ExitRemote,
		cause: of(func(_ Subject, e SessionRemoteError) string { return e.Err.Error() })},

	// Rows for sessions and checkpoints.
	{match: a[*session.HeldError](), code: control.CodeConflict,
		hint: text("run artifactfs session fork to start a new session from its newest checkpoint, or add --take-over to resume " +
			"the session nevertheless")},
	{match: is(session.ErrClosed), code: control.CodeConflict,
		hint: text("run artifactfs session reopen to open the session again, or add --session NAME to mount another session")},
	{match: a[*writeback.DeletedError](), code: control.CodeConflict,
		hint: of(func(_ Subject, e *writeback.DeletedError) string { return e.Remedy() })},
	{match: is(session.ErrMoved), code: control.CodeConflict},
	{match: a[*session.FindError](),
		cause: of(func(s Subject, e *session.FindError) string { return findText(s.Object, e) })},
	{match: is(statedir.ErrNoSession, session.ErrNoMeta), code: control.CodeNotFound, exit: control.ExitNotMounted,
		hint: text("run artifactfs session list to see the sessions")},
	{match: is(session.ErrNoCheckpoint), code: control.CodeNotFound, exit: control.ExitNotMounted,
		hint: text("run artifactfs session log to list the checkpoints")},
	{match: is(session.ErrAmbiguous), code: control.CodeUsage, exit: control.ExitUsage,
		hint: text("type more characters of the checkpoint's ID")},
	{match: is(ErrNoCheckpoint), code: control.CodeNotFound, exit: control.ExitNotMounted,
		hint: text("run artifactfs checkpoint to create a checkpoint")},
	{match: is(session.ErrNoPin), code: control.CodeNotFound, exit: control.ExitNotMounted,
		hint: text("run artifactfs session log to see the pins")},
	{match: is(ErrNoSessionRemote), code: control.CodeUnsupported,
		hint: text("mount without --read-only and without --session-remote none")},
	{match: a[*profile.OnHoldError](), code: control.CodeConflict,
		hint: of(func(_ Subject, e *profile.OnHoldError) string {
			return "run artifactfs session set -C " + e.Session + " --no-hold to release the hold"
		})},
	{match: a[*session.TransitionError](), code: control.CodeConflict, exit: control.ExitUsage},
	{match: is(annotate.ErrNoThread), code: control.CodeNotFound, exit: control.ExitNotMounted,
		hint: text("run artifactfs session annotations --all to see the threads and their IDs")},
	{match: is(annotate.ErrAmbiguous), code: control.CodeUsage, exit: control.ExitUsage,
		hint: text("type more characters of the thread's ID")},
	{match: is(annotate.ErrInvalid), code: control.CodeUsage, exit: control.ExitUsage},
	{match: is(annotate.ErrFull, reffile.ErrTooLarge), code: control.CodeNoSpace},
	{match: is(reffile.ErrBusy), code: control.CodeBusy},
	{match: is(transcript.ErrNoCommit), code: control.CodeNotFound, exit: control.ExitUsage},
	{match: a[*transcript.LineError](), code: control.CodeUsage, exit: control.ExitUsage},
	{match: is(transcript.ErrNotesRef, transcript.ErrNotJSON), code: control.CodeUsage, exit: control.ExitUsage},
	{match: a[SessionMountedError](), code: control.CodeConflict, hint: of(func(_ Subject, e SessionMountedError) string {
		return "run artifactfs unmount " + e.Dir + " to unmount the session"
	})},
	{match: a[statedir.InUseError](), code: control.CodeConflict,
		hint: text("unmount the session first, or send the request to the daemon that serves it")},
}

// common is the table of the causes that every operation can have. It determines the fields for which no row of
// specific has a value. The first matching row with an exit status or a hint determines both, because later rows match
// only errors that the matched error wraps.
var common = []row{
	// Rows for failures of remotes.
	{match: a[*remoteref.Error](), code: control.CodeNotFound, exit: control.ExitRemote,
		hint: of(func(_ Subject, e *remoteref.Error) string {
			if len(e.Similar) > 0 {
				return "did you mean " + strings.Join(e.Similar, ", ") + "?"
			}
			return "run git ls-remote URL to list the branches and tags of the remote"
		})},
	{match: a[transport.NotOurRef](), code: control.CodeNotFound, exit: control.ExitRemote,
		hint: text("check the ID; some remotes do not allow fetching a commit by its ID")},
	{match: is(transport.ErrURL), code: control.CodeUsage, exit: control.ExitUsage,
		hint: text("type an http, https, ssh, git or file URL, HOST:PATH, or a local path")},
	{match: is(transport.ErrAuth), code: control.CodeAuth, exit: control.ExitRemote,
		hint: text("set ARTIFACTFS_TOKEN, use --token-file, or store the password in a git credential helper")},
	{match: is(transport.ErrForbidden), code: control.CodeRefused, exit: control.ExitRemote,
		hint: text("use credentials that may read this repository")},
	{match: is(writeback.ErrRefused), code: control.CodeRefused},
	{match: is(transport.ErrNotFound), code: control.CodeNotFound, exit: control.ExitRemote,
		hint: text("check the spelling, and the credentials if the repository is private")},
	{match: is(fetch.ErrNotFound), code: control.CodeNotFound, exit: control.ExitRemote},
	{match: is(fetch.ErrDeadline), code: control.CodeTimeout, exit: control.ExitRemote,
		hint: text("add --timeout DURATION to allow more time")},
	{match: is(transport.ErrStalled), code: control.CodeTimeout, exit: control.ExitRemote},
	{match: a[transport.RateLimited](), code: control.CodeRateLimited, exit: control.ExitRemote},
	{match: is(transport.ErrUnreachable), code: control.CodeUnreachable, exit: control.ExitRemote},
	{match: a[bare.ContactError](), exit: control.ExitRemote},

	// Rows for failures of the mount's directory, and of this host.
	{match: is(mountpoint.ErrAlreadyMounted), code: control.CodeConflict,
		hint: text("run artifactfs unmount {object} to unmount it")},
	{match: is(mountpoint.ErrTaken, mountpoint.ErrInside), code: control.CodeConflict,
		hint: text("choose another directory")},
	{match: is(mountpoint.ErrDeadMount), code: control.CodeConflict,
		hint: text("run artifactfs unmount {object} to remove the dead mount")},
	{match: is(mountpoint.ErrNotEmpty), code: control.CodeConflict,
		hint: text("choose an empty directory, or one that does not exist yet")},
	{match: is(mountpoint.ErrNotDirectory, ErrSessionExists, ErrHasFiles), code: control.CodeConflict},
	{match: is(mountpoint.ErrNoFUSE, fuse.ErrNoFUSE), code: control.CodeUnsupported,
		hint: text("load the kernel's fuse module; for a container add --device /dev/fuse and --cap-add SYS_ADMIN")},
	{match: is(syscall.ENOSPC), hint: text("free some space, or choose a state directory on another disk with --state")},
	{match: a[mountpoint.BusyError](), code: control.CodeBusy,
		cause: of(func(_ Subject, e mountpoint.BusyError) string { return e.Error() }),
		hint: of(func(s Subject, e mountpoint.BusyError) string {
			return e.Hint() + "; artifactfs unmount --detach " + s.Object + " unmounts anyway"
		})},
	{match: is(fuse.ErrBusy), code: control.CodeBusy,
		hint: text("run fuser -vm {object} to see the processes that use the mount")},
	{match: is(statedir.ErrBusySession, statedir.ErrStoreUsed, ErrNoGitDir), code: control.CodeBusy},
	{match: is(mountpoint.ErrUserMount),
		hint: text("mount as root, or make fusermount3 work: own the directory, and have access to /dev/fuse; the daemon's log has " +
			"the output of fusermount3")},
	{match: noGit,
		hint: text("install git; if the daemon was started with another PATH, run artifactfs unmount --all and mount again")},
	{match: is(exec.ErrNotFound, fs.ErrPermission),
		hint: text("mount as root, or install fusermount3 and mount at a directory that you own")},
	{match: is(errRemote), exit: control.ExitRemote},
}

// sessionRemoteHint is the hint for a failure of a session remote if no row of the tables has a hint.
const sessionRemoteHint = "check --session-remote; with --session-remote embedded or none no other repository is used"

// noGit reports whether err means that git is not installed.
func noGit(err error) bool {
	var program *exec.Error
	return errors.As(err, &program) && errors.Is(err, exec.ErrNotFound) && program.Name == "git"
}
