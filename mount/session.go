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
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/gitdir"
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/session/agent"
	"github.com/artifactfs/artifactfs/session/trash"
	"github.com/artifactfs/artifactfs/statedir"
	"github.com/artifactfs/artifactfs/transport"
	"github.com/artifactfs/artifactfs/worktree"
)

// settled is the smallest age that the files of the base tree have when a mount starts.
const settled = 2 * time.Second

// leaveTime limits how long the tree of an ending mount takes to close. No step of that waits for the network.
const leaveTime = 5 * time.Second

// enter locks the mount's home, and reads the record of the session that the home stores. It sets m.resumed if there is a
// session to resume.
func (m *Mount) enter(ctx context.Context) error {
	// A read-only mount must not create the home of a session that does not exist.
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
	// Changes without a record cannot be assigned to a base commit, so they must not be overwritten.
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
	case m.record.Remote != m.store.URL():
		return fmt.Errorf("%w: %s", fault.ErrOtherRemote, m.record.Remote)
	}
	// Reading a large log twice would delay the mount.
	if !m.record.Counted && !m.Request.ReadOnly && !statedir.HasLargeLog(m.home.Dir) {
		if _, w, err := m.home.Inspect(); err == nil && !w.Any() {
			return m.recreateHome(ctx)
		}
	}
	m.resumed = true
	// Files keep the owner that they had when the session started.
	m.otherOwner = m.Request.UID != m.record.UID || m.Request.GID != m.record.GID
	m.Request.UID, m.Request.GID = m.record.UID, m.record.GID
	return nil
}

// initRecord fills in the record of a new session. acquire adds the commit, and open saves the record.
func (m *Mount) initRecord() error {
	m.record = statedir.Record{
		Session: m.Session, Remote: m.store.URL(), Dir: m.Dir, Asked: m.Request.Ref, UID: m.Request.UID, GID: m.Request.GID, Began: m.since,
	}
	m.home.Created = true
	return nil
}

// recreateHome replaces a home without changes, which a process left when it was killed, by a new home.
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
// session, it is the session's base commit, even if the ref on the remote has moved since.
func (m *Mount) acquire(ctx context.Context, progress func(control.Progress)) error {
	if !m.resumed {
		// A session on the session remote, or a checkpoint of it, takes precedence over the requested ref.
		if found, err := m.acquireCheckpoint(ctx, progress); found || err != nil {
			return err
		}
		snap, err := m.acquireFirst(ctx)
		if err != nil {
			return fault.Remote(err)
		}
		// Git assumes that a file may have changed if its mtime is not older than the index, and would compare its contents.
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
	if m.snap, err = m.store.Resume(ctx, base); err != nil {
		return fault.Remote(err)
	}
	// The tree of a commit never changes, unless the record or the remote is damaged.
	if m.snap.Tree != base.Tree && base.Shown.IsZero() {
		return fmt.Errorf("read session %s: %w: commit %s has another tree", m.home.Dir, statedir.ErrRecord, m.record.Commit)
	}
	return nil
}

// acquireFirst acquires the commit that the request names, or the base of an earlier mount without changes.
func (m *Mount) acquireFirst(ctx context.Context) (*fetch.Snapshot, error) {
	if m.base == nil {
		return m.store.Acquire(ctx, m.Request.Ref)
	}
	base, err := m.base.Base()
	if err != nil {
		return nil, err
	}
	return m.store.Resume(ctx, base)
}

// checkRef returns an error if the requested ref does not resolve to the base commit of the session. If the remote cannot be
// reached, and the ref is the one that the session was started from, checkRef reports a progress message and returns nil.
func (m *Mount) checkRef(ctx context.Context, progress func(control.Progress)) error {
	ref, r := m.Request.Ref, m.record
	if ref == "" || ref == r.Commit || m.Request.Follow {
		return nil
	}
	commit, err := m.store.Resolve(ctx, ref)
	// The short and the full name of the ref that the session started from are equivalent.
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

// open opens the working tree of the mount. It saves the session's record first, so that no overlay with changes can exist
// without a record.
func (m *Mount) open() error {
	o := worktree.Options{
		Root: m.snap.Tree, Time: m.snap.Time, TakeOver: m.takeoverDone != nil, UID: m.Request.UID, GID: m.Request.GID,
		Log: m.host.Log.With(zap.String("mount", m.Dir)),
	}
	o.Overlay, o.Journal = filepath.Join(m.home.Dir, "overlay"), filepath.Join(m.home.Dir, "journal")
	switch {
	case m.Writable():
		o.GitFile, o.GitDir, o.KeepRemoved = gitFile(m.home), m.inside.Wanted(), m.agent.Automatic()
	case m.Session != "":
		o.OverlayReadOnly = true
	default: // the overlay holds nothing but .git
		o.GitFile, o.GitDir, o.ReadOnly = gitFile(m.home), m.inside.Wanted(), true
	}
	if m.Writable() && m.takeoverDone == nil {
		// A killed mount left the directories that it had created; this mount removes them when it ends.
		if m.record.Dir == m.Dir && len(m.point.Created) == 0 {
			m.point.Created = m.record.Made
		}
		// The counts become invalid before the first change can be made.
		m.record.Dir, m.record.Made, m.record.Counted = m.Dir, m.point.Created, false
		if err := m.record.Save(m.home.Dir); err != nil {
			return err
		}
	}
	var err error
	if m.tree, err = worktree.Open(filepath.Join(m.home.Dir, "inodes"), source{m.view}, o); err == nil {
		m.openSide()
	}
	return err
}

// Writable reports whether the mount has a session and is not read-only.
func (m *Mount) Writable() bool { return m.Session != "" && !m.Request.ReadOnly }

// announce reports as progress which session the mount resumes, and all problems that were found.
func (m *Mount) announce(progress func(control.Progress)) {
	if m.resumed {
		progress(control.Progress{Message: fmt.Sprintf("resuming session %s: %s", m.Session, statedir.Unsaved{Paths: m.changed()})})
	}
	if m.cameFromElsewhere() {
		progress(control.Progress{Message: fmt.Sprintf("resuming session %s of %s at its checkpoint %s of %s",
			m.Session, m.objects.sessionRemote.URL(), m.record.Checkpoint.ID, m.record.Checkpoint.Time.Local().Format(time.DateTime))})
		// Commits on the session remote that the checkpoint lacks are not in the mount; the user may want to merge them.
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

// changed returns the number of paths that the user changed. Directories that redirects created are not counted.
func (m *Mount) changed() int64 { return max(0, m.tree.Overlay().Changed()-m.redirects.Placeholders()) }

// outcome is what remains of the user's changes after a mount has ended.
type outcome struct {
	unsaved statedir.Unsaved // work that was kept; zero if there was none
	err     error            // error that left the work in the home unfinished

	trashed string    // name of the session that was moved to the trash; "" if none was
	until   time.Time // when the trashed or kept session expires; zero if it does not
}

// leave closes the tree of a mount that the kernel has unmounted, and keeps or removes the home. It is also called for a mount
// whose start failed, and some parts of such a mount are nil. A session that existed before that start is then left unchanged.
func (m *Mount) leave() (o outcome) {
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
		m.view.Close() // it wakes callers of a lazily detached mount that wait for objects, which Close would wait for
		o.err = m.tree.Close()
	}
	var err error
	// Objects and refs in the git directory count as work even if no file was changed.
	if w.Git, err = gitdir.HasWork(ctx, filepath.Join(m.home.Dir, "git")); err != nil {
		o.err = errors.Join(o.err, err)
	}
	// A mount that was never served leaves no new session.
	w.Checkpoints = statedir.HasSessionRepo(m.home.Dir) && !m.agent.Empty() && (m.wasServed() || !m.home.Created)
	switch {
	// The mount has no session, or the session is deleted without the trash, or it is discarded and has nothing to keep.
	case m.Session == "" || m.Writable() && m.options.removes(), m.Writable() && m.options.discards() && o.err == nil && !w.Any():
		m.removeHome()
		return outcome{}
	// The home existed before, and this mount could not have changed it.
	case m.Request.ReadOnly, m.tree == nil && !m.home.Created:
		m.home.Release()
		return outcome{err: o.err}
	// A new home without work is removed.
	case m.tree == nil, m.home.Created && !m.wasServed(), o.err == nil && !w.Any():
		m.removeHome()
		return o
	}
	o.unsaved = w
	m.record.Made = nil // the caller of leave removes these directories
	m.record.Counted, m.record.Changed, m.record.Bytes = o.err == nil, w.Paths, w.Bytes
	m.record.Until = m.options.expiry(time.Now())
	o.until = m.record.Until
	if err := m.record.Save(m.home.Dir); err != nil { // without the counts, they are computed when a caller lists the session
		m.host.Log.Warn("count a session's changes", zap.String("home", m.home.Dir), zap.Error(err))
	}
	if o.err != nil {
		m.host.Log.Error("settle session", zap.String("home", m.home.Dir), zap.Error(o.err))
	}
	if m.options.discards() && o.err == nil {
		now := time.Now()
		// The home in the trash must not name a mount in its lock file.
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
