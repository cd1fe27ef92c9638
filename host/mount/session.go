package mount

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/control/sessionlink"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/mount/attach"
	"github.com/artifactfs/artifactfs/host/mount/home"
	"github.com/artifactfs/artifactfs/host/session/agent"
	"github.com/artifactfs/artifactfs/host/statedir"
)

// settled is the minimum age that the files of the base tree have when a mount is created.
const settled = 2 * time.Second

// leaveTime is the maximum time that closeHome takes to close an ending mount. None of its steps waits for the network.
const leaveTime = 5 * time.Second

// acquire acquires the snapshot that is mounted. For a new session, this is the commit that the request names. For a resumed
// session, it is the session's base commit, even if the ref has moved on the remote since.
func (m *Mount) acquire(ctx context.Context, progress func(control.Progress)) error {
	if !m.home.Resumed {
		// If the session is on the session remote, or a checkpoint is requested, the requested ref is not used.
		if found, err := m.acquireCheckpoint(ctx, progress); found || err != nil {
			return err
		}
		snap, err := m.acquireFirst(ctx)
		if err != nil {
			return fault.Remote(err)
		}
		// If a file's mtime is not older than the index, git assumes that the file may have changed, and compares its contents.
		// Therefore a time that is too late is replaced by a time before the start of the mount.
		if latest := m.since.Add(-settled); snap.Time.After(latest) {
			snap.Time = latest
		}
		m.contents.SetSnapshot(snap)
		m.home.Record.SetBase(snap)
		return nil
	}
	if err := m.checkRef(ctx, progress); err != nil {
		return err
	}
	base, err := m.home.Record.Base()
	if err != nil {
		return err
	}
	base.Own = m.contents.Objects.Own()
	snap, err := m.contents.Store.Resume(ctx, base)
	if err != nil {
		return fault.Remote(err)
	}
	m.contents.SetSnapshot(snap)
	// A commit always has the same tree, so a difference shows that the record or the remote is damaged.
	if snap.Tree != base.Tree && base.Shown.IsZero() {
		return fmt.Errorf("read session %s: %w: commit %s has another tree", m.home.Dir, statedir.ErrRecord, m.home.Record.Commit)
	}
	return nil
}

// acquireFirst acquires the commit that the request names, or, if the mount has a base, the commit of the earlier mount.
func (m *Mount) acquireFirst(ctx context.Context) (*fetch.Snapshot, error) {
	if m.base == nil {
		return m.contents.Store.Acquire(ctx, m.Request.Ref)
	}
	base, err := m.base.Base()
	if err != nil {
		return nil, err
	}
	base.Own = m.contents.Objects.Own()
	return m.contents.Store.Resume(ctx, base)
}

// checkRef returns an error if the requested ref does not resolve to the base commit of the session. If the remote cannot be
// reached, and the session was started from this ref, checkRef reports this as progress and returns nil.
func (m *Mount) checkRef(ctx context.Context, progress func(control.Progress)) error {
	ref, r := m.Request.Ref, m.home.Record
	if ref == "" || ref == r.Commit || m.Request.Follow {
		return nil
	}
	commit, err := m.contents.Store.Resolve(ctx, ref)
	// The user may give the short or the full name of the ref from which the session was started.
	same := ref == r.Asked || ref == r.Ref || ref == statedir.ShortRef(r.Ref)
	switch {
	case err != nil && ctx.Err() == nil && same && (errors.Is(err, transport.ErrUnreachable) || errors.Is(err, transport.ErrStalled)):
		progress(control.Progress{Message: "the remote cannot be reached to find " + ref + ": mounting " + fmt.Sprintf("%.12s", r.Commit)})
		return nil
	case err != nil:
		return fault.Remote(err)
	case commit.String() != r.Commit:
		return fault.OtherCommitError{Ref: ref, Commit: commit.String(), Session: r.Session, Base: r.Commit}
	}
	return nil
}

// open opens the working tree of the mount, and the part of the mount that serves git commands.
func (m *Mount) open() error {
	err := m.attachment.Open(m.agent.Automatic())
	if m.attachment.Tree != nil {
		m.openSide()
	}
	return err
}

// services returns the parts of the mount that package fuse calls.
func (m *Mount) services() attach.Services {
	s := attach.Services{Await: m.side.Await, Objects: m.side.Objects()}
	if m.locking = newLocking(m); m.locking != nil {
		s.Guard = m.locking.view
	}
	return s
}

// parentDir returns the directory of the mount that contains this one as a submodule. It returns "" if there is none.
func (m *Mount) parentDir() string {
	if m.Parent == nil {
		return ""
	}
	return m.Parent.Dir
}

// Writable reports whether the mount has a session and is not read-only.
func (m *Mount) Writable() bool { return m.attachment.Writable() }

// announce reports as progress which session the mount resumes, and which problems were found.
func (m *Mount) announce(progress func(control.Progress)) {
	if m.home.Resumed {
		progress(control.Progress{Message: fmt.Sprintf("resuming session %s: %s", m.Session,
			statedir.Unsaved{Paths: m.attachment.Changed()})})
	}
	if m.cameFromElsewhere() {
		progress(control.Progress{Message: fmt.Sprintf("resuming session %s of %s at its checkpoint %s of %s",
			m.Session, m.contents.Objects.SessionRemote.URL(), m.home.Record.Checkpoint.ID,
			m.home.Record.Checkpoint.Time.Local().Format(time.DateTime))})
		// If refs on the session remote have commits that the checkpoint lacks, the mount does not contain these commits, and the
		// user may want to merge them.
		for _, ref := range slices.Sorted(maps.Keys(m.newer)) {
			text := agent.AheadText(ref, m.newer[ref].String())
			if m.moved[ref] {
				text = lostText(ref, m.newer[ref].String())
			}
			progress(control.Progress{Message: text})
		}
	}
	if f := m.far; f != nil && m.home.Record.Checkpoint != nil {
		progress(control.Progress{Message: fmt.Sprintf("begins with checkpoint %s of %s of session %s of %s",
			m.home.Record.Checkpoint.ID, m.home.Record.Checkpoint.Time.Local().Format(time.DateTime), f.Session, f.Remote.URL())})
	}
	if by, newest := m.agent.ContinuedBy(); m.home.Resumed && by != "" {
		of := m.Session + "@" + string(newest)
		if m.contents.Objects.SessionRemote != nil {
			of = sessionlink.Link{Remote: m.contents.Objects.SessionRemote.URL(), Session: m.Session}.String()
		}
		progress(control.Progress{Message: fmt.Sprintf("%s has continued session %s since: these are the files of this host; "+
			"artifactfs session fork %s DIR mounts the newest ones", by, m.Session, control.ShellWord(of))})
	}
	if m.home.OtherOwner {
		progress(control.Progress{Message: fmt.Sprintf("files belong to user %d and group %d, as when the session began",
			m.home.Record.UID, m.home.Record.GID)})
	}
	for _, problem := range m.attachment.Tree.Overlay().Recovery().Problems {
		progress(control.Progress{Message: problem})
	}
	for _, note := range append(m.attachment.Redirects.Notes(), m.submodules.problems()...) {
		progress(control.Progress{Message: note})
	}
}

// closeHome closes the tree of a mount that the kernel has unmounted, and then closes the home. It is also called for a
// mount whose start has failed; some fields of such a mount are nil.
func (m *Mount) closeHome() home.Outcome {
	if !m.home.Locked() {
		return home.Outcome{}
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
	defer cancel()
	e := home.End{
		ReadOnly: m.Request.ReadOnly, Opened: m.attachment.Tree != nil, Served: m.phase.Served(),
		Discard: m.options.discards(), Remove: m.options.removes(), Until: m.options.expiry(time.Now()),
	}
	var err error
	e.Left, e.Err = m.attachment.Close(ctx)
	// Objects and refs in the git directory are changes of the user even if no file was changed.
	if e.Left.Git, err = gitdir.HasWork(ctx, m.home.GitDir()); err != nil {
		e.Err = errors.Join(e.Err, err)
	}
	// If this mount has created the session and was never served, the checkpoints of the session are not kept.
	e.Left.Checkpoints = statedir.HasSessionRepo(m.home.Dir) && !m.agent.Empty() && (e.Served || !m.home.Created)
	return m.home.Close(e)
}
