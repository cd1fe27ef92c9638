package mount

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/control/sessionlink"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/session/agent"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/session/trash"
	"github.com/artifactfs/artifactfs/worktree"
)

// settled is the minimum age that the files of the base tree have when a mount is created.
const settled = 2 * time.Second

// leaveTime is the maximum time that closeHome takes to close an ending mount. None of its steps waits for the network.
const leaveTime = 5 * time.Second

// enter locks the mount's home (its directory below the state directory), and reads the record of the session that is stored
// there. It sets m.resumed if there is a session to resume.
func (m *Mount) enter(ctx context.Context) error {
	// If the session does not exist, a read-only mount must not create it.
	if m.Session != "" && m.Request.ReadOnly {
		if _, err := os.Lstat(filepath.Join(m.host.Homes.Dir(), m.ID)); errors.Is(err, fs.ErrNotExist) {
			return statedir.ErrNoSession
		}
	}
	var err error
	if m.home, err = m.host.Homes.Lock(ctx, m.ID, m.Dir); err != nil || m.Session == "" {
		return err
	}
	m.record, err = statedir.ReadRecord(m.home.Dir)
	switch {
	// Without a record, the changes cannot be assigned to a base commit. They must not be overwritten.
	case errors.Is(err, fs.ErrNotExist) && statedir.HasOverlay(m.home.Dir):
		return statedir.ErrNoRecord
	case errors.Is(err, fs.ErrNotExist) && m.Request.ReadOnly:
		return statedir.ErrNoSession
	case errors.Is(err, fs.ErrNotExist):
		return m.initRecord()
	case err != nil:
		return err
	case m.record.Session != m.Session:
		return fmt.Errorf("read session %s: %w: it says %q", m.home.Dir, statedir.ErrRecord, m.record.Session)
	case m.Request.Tenant != "" && m.record.Tenant != m.Request.Tenant:
		return fault.ErrOtherTenant
	case m.record.Remote != m.store.URL():
		return fmt.Errorf("%w: %s", fault.ErrOtherRemote, m.record.Remote)
	}
	// A large log is not read here, because reading it twice would delay the mount.
	if !m.record.Counted && !m.Request.ReadOnly && !statedir.HasLargeLog(m.home.Dir) {
		if _, w, err := m.home.Inspect(); err == nil && !w.Any() {
			return m.recreateHome(ctx)
		}
	}
	m.resumed = true
	// The files keep the owner and the permissions that they had when the session was started.
	m.otherOwner = m.Request.UID != m.record.UID || m.Request.GID != m.record.GID
	m.Request.UID, m.Request.GID, m.Request.Umask = m.record.UID, m.record.GID, m.record.Umask
	return nil
}

// initRecord sets the fields of the record of a new session that are known before the commit. acquire sets the commit, and open
// saves the record.
func (m *Mount) initRecord() error {
	m.record = statedir.Record{
		Session: m.Session, Tenant: m.Request.Tenant, Remote: m.store.URL(), Dir: m.Dir, Asked: m.Request.Ref,
		UID: m.Request.UID, GID: m.Request.GID, Umask: m.Request.Umask, Began: m.since,
	}
	m.home.Created = true
	return nil
}

// recreateHome replaces the home by a new one. A process that was killed has left the home without changes in it.
func (m *Mount) recreateHome(ctx context.Context) error {
	if err := m.home.Remove(); err != nil {
		m.home = nil
		return err
	}
	var err error
	if m.home, err = m.host.Homes.Lock(ctx, m.ID, m.Dir); err != nil {
		return err
	}
	return m.initRecord()
}

// acquire acquires the snapshot that is mounted. For a new session, this is the commit that the request names. For a resumed
// session, it is the session's base commit, even if the ref has moved on the remote since.
func (m *Mount) acquire(ctx context.Context, progress func(control.Progress)) error {
	if !m.resumed {
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
		m.snap = snap
		m.record.SetBase(snap)
		return nil
	}
	if err := m.checkRef(ctx, progress); err != nil {
		return err
	}
	base, err := m.record.Base()
	if err != nil {
		return err
	}
	base.Own = m.objects.own()
	if m.snap, err = m.store.Resume(ctx, base); err != nil {
		return fault.Remote(err)
	}
	// A commit always has the same tree, so a difference shows that the record or the remote is damaged.
	if m.snap.Tree != base.Tree && base.Shown.IsZero() {
		return fmt.Errorf("read session %s: %w: commit %s has another tree", m.home.Dir, statedir.ErrRecord, m.record.Commit)
	}
	return nil
}

// acquireFirst acquires the commit that the request names, or, if the mount has a base, the commit of the earlier mount.
func (m *Mount) acquireFirst(ctx context.Context) (*fetch.Snapshot, error) {
	if m.base == nil {
		return m.store.Acquire(ctx, m.Request.Ref)
	}
	base, err := m.base.Base()
	if err != nil {
		return nil, err
	}
	base.Own = m.objects.own()
	return m.store.Resume(ctx, base)
}

// checkRef returns an error if the requested ref does not resolve to the base commit of the session. If the remote cannot be
// reached, and the session was started from this ref, checkRef reports this as progress and returns nil.
func (m *Mount) checkRef(ctx context.Context, progress func(control.Progress)) error {
	ref, r := m.Request.Ref, m.record
	if ref == "" || ref == r.Commit || m.Request.Follow {
		return nil
	}
	commit, err := m.store.Resolve(ctx, ref)
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

// open opens the working tree of the mount. It saves the session's record before that, so that no overlay with changes exists
// without a record.
func (m *Mount) open() error {
	o := worktree.Options{
		Root: m.snap.Tree, Time: m.snap.Time, TakeOver: m.takeoverDone != nil, UID: m.Request.UID, GID: m.Request.GID,
		Modes: m.modes, Log: m.host.Log.With(zap.String("mount", m.Dir)),
	}
	o.Overlay, o.Journal = filepath.Join(m.home.Dir, "overlay"), filepath.Join(m.home.Dir, "journal")
	switch {
	case m.Writable():
		o.GitFile, o.GitDir, o.KeepRemoved = gitFile(m.home), m.inside.Wanted(), m.agent.Automatic()
	case m.Session != "":
		o.OverlayReadOnly = true
	default: // in a mount without a session, the overlay contains nothing but .git
		o.GitFile, o.GitDir, o.ReadOnly = gitFile(m.home), m.inside.Wanted(), true
	}
	if m.Writable() && m.takeoverDone == nil {
		// The directories were created by a mount that was killed. This mount removes them when it ends.
		if m.record.Dir == m.Dir && len(m.point.Created) == 0 {
			m.point.Created = m.record.Made
		}
		// The counts in the record become invalid with the first change.
		m.record.Dir, m.record.Made, m.record.Counted = m.Dir, m.point.Created, false
		if err := m.record.Save(m.home.Dir); err != nil {
			return err
		}
	}
	var err error
	o.ForgetSizes = !m.sameSizes
	if m.tree, err = worktree.Open(filepath.Join(m.home.Dir, "inodes"), source{m.view}, o); err == nil {
		err = m.filters.Begin()
		m.openSide()
	}
	return err
}

// Writable reports whether the mount has a session and is not read-only.
func (m *Mount) Writable() bool { return m.Session != "" && !m.Request.ReadOnly }

// announce reports as progress which session the mount resumes, and which problems were found.
func (m *Mount) announce(progress func(control.Progress)) {
	if m.resumed {
		progress(control.Progress{Message: fmt.Sprintf("resuming session %s: %s", m.Session, statedir.Unsaved{Paths: m.changed()})})
	}
	if m.cameFromElsewhere() {
		progress(control.Progress{Message: fmt.Sprintf("resuming session %s of %s at its checkpoint %s of %s",
			m.Session, m.objects.sessionRemote.URL(), m.record.Checkpoint.ID, m.record.Checkpoint.Time.Local().Format(time.DateTime))})
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
	if f := m.far; f != nil && m.record.Checkpoint != nil {
		progress(control.Progress{Message: fmt.Sprintf("begins with checkpoint %s of %s of session %s of %s",
			m.record.Checkpoint.ID, m.record.Checkpoint.Time.Local().Format(time.DateTime), f.Session, f.Remote.URL())})
	}
	if by, newest := m.agent.ContinuedBy(); m.resumed && by != "" {
		of := m.Session + "@" + string(newest)
		if m.objects.sessionRemote != nil {
			of = sessionlink.Link{Remote: m.objects.sessionRemote.URL(), Session: m.Session}.String()
		}
		progress(control.Progress{Message: fmt.Sprintf("%s has continued session %s since: these are the files of this host; "+
			"artifactfs session fork %s DIR mounts the newest ones", by, m.Session, control.ShellWord(of))})
	}
	if m.otherOwner {
		progress(control.Progress{Message: fmt.Sprintf("files belong to user %d and group %d, as when the session began",
			m.record.UID, m.record.GID)})
	}
	for _, problem := range m.tree.Overlay().Recovery().Problems {
		progress(control.Progress{Message: problem})
	}
	for _, note := range append(m.redirects.Notes(), m.submodules.problems()...) {
		progress(control.Progress{Message: note})
	}
}

// changed returns the number of paths that the user has changed. It does not count the directories that were created for
// redirects.
func (m *Mount) changed() int64 { return max(0, m.tree.Overlay().Changed()-m.redirects.Placeholders()) }

// outcome describes what remains of the user's changes after a mount has ended.
type outcome struct {
	unsaved statedir.Unsaved // changes that were kept; zero if there were none
	err     error            // error because of which changes were not stored completely in the home

	trashed string    // name of the session that was moved to the trash; "" if none was
	until   time.Time // time at which the session, kept or in the trash, expires; zero if it does not expire
}

// closeHome closes the tree of a mount that the kernel has unmounted, and then keeps, moves or removes the home (the mount's
// directory below the state directory). It is also called for a mount whose start has failed; some fields of such a mount are
// nil, and a session that existed before the start is left unchanged.
func (m *Mount) closeHome() (o outcome) {
	if m.home == nil {
		return o
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
	defer cancel()
	var w statedir.Unsaved
	if m.tree != nil {
		if m.Writable() {
			m.endRedirects(ctx)
			w.Paths, w.Bytes = m.tree.Overlay().Changed(), m.tree.Overlay().Stats().Bytes
		}
		// If the mount was detached, calls may still wait for objects, and Close of the tree would wait for these calls. Closing
		// the view ends them.
		m.view.Close()
		o.err = m.tree.Close()
	}
	var err error
	// Objects and refs in the git directory are changes of the user even if no file was changed.
	if w.Git, err = gitdir.HasWork(ctx, filepath.Join(m.home.Dir, "git")); err != nil {
		o.err = errors.Join(o.err, err)
	}
	// If this mount has created the session and was never served, the checkpoints of the session are not kept.
	w.Checkpoints = statedir.HasSessionRepo(m.home.Dir) && !m.agent.Empty() && (m.phase.Served() || !m.home.Created)
	switch {
	// The home is removed in three cases: the mount has no session, the session is deleted without the trash, or the session is
	// discarded and has no changes.
	case m.Session == "" || m.Writable() && m.options.removes(), m.Writable() && m.options.discards() && o.err == nil && !w.Any():
		m.removeHome()
		return outcome{}
	// This mount cannot have changed the home, so the home is left as it was.
	case m.Request.ReadOnly, m.tree == nil && !m.home.Created:
		m.home.Release()
		return outcome{err: o.err}
	// The home is also removed if it was never in use, or contains no changes of the user.
	case m.tree == nil, m.home.Created && !m.phase.Served(), o.err == nil && !w.Any():
		m.removeHome()
		return o
	}
	o.unsaved = w
	m.record.Made = nil // the caller of closeHome removes the directories that this field lists
	m.record.Counted, m.record.Changed, m.record.Bytes = o.err == nil, w.Paths, w.Bytes
	m.record.Until = m.options.expiry(time.Now())
	o.until = m.record.Until
	if err := m.record.Save(m.home.Dir); err != nil { // if the counts cannot be saved, they are computed when a client lists the session
		m.host.Log.Warn("count a session's changes", zap.String("home", m.home.Dir), zap.Error(err))
	}
	if o.err != nil {
		m.host.Log.Error("store the state of an unmounted session", zap.String("home", m.home.Dir), zap.Error(o.err))
	}
	if m.options.discards() && o.err == nil {
		now := time.Now()
		// The lock file of a home in the trash must not name a mount.
		m.home.Sign("")
		if o.err = m.home.ToTrash(m.Session, now); o.err != nil {
			return o
		}
		m.host.Log.Info("discarded session", zap.String("session", m.Session), zap.Int64("changed", w.Paths))
		return outcome{trashed: m.Session, until: now.Add(trash.Keep)}
	}
	m.home.Release()
	return o
}

// removeHome removes the home and logs a failure.
func (m *Mount) removeHome() {
	if err := m.home.Remove(); err != nil {
		m.host.Log.Warn("remove mount's directory", zap.Error(err))
	}
}
