package daemon

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

// awaitTakeover is how much older than the mount the files of the base tree are at least.
const settled = 2 * time.Second

// leaveTime is how long a mount that ends may take to tidy up its tree; nothing in there waits for a network.
const leaveTime = 5 * time.Second

// enter takes the mount's home and finds out whether there is a session to go on with.
func (m *mount) enter(ctx context.Context) error {
	if m.session != "" && m.request.ReadOnly {
		if _, err := os.Lstat(filepath.Join(m.daemon.homes.Dir(), m.id)); errors.Is(err, fs.ErrNotExist) {
			return statedir.ErrNoSession
		}
	}
	var err error
	if m.home, err = m.daemon.homes.Lock(ctx, m.id, m.dir); err != nil || m.session == "" {
		return err
	}
	m.record, err = statedir.ReadRecord(m.home.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) && statedir.HasOverlay(m.home.Dir):
		return statedir.ErrNoRecord
	case errors.Is(err, fs.ErrNotExist) && m.request.ReadOnly:
		return statedir.ErrNoSession
	case errors.Is(err, fs.ErrNotExist):
		return m.begin()
	case err != nil:
		return err
	case m.record.Session != m.session:
		return fmt.Errorf("read session %s: %w: it says %q", m.home.Dir, statedir.ErrRecord, m.record.Session)
	case m.record.Remote != m.store.URL():
		return fmt.Errorf("%w: %s", fault.ErrOtherRemote, m.record.Remote)
	}
	if !m.record.Counted && !m.request.ReadOnly && !statedir.HasLargeLog(m.home.Dir) { // a large one is not read twice
		if _, w, err := m.home.Inspect(); err == nil && !w.Any() {
			return m.beginAnew(ctx)
		}
	}
	m.resumed = true
	m.otherOwner = m.request.UID != m.record.UID || m.request.GID != m.record.GID
	m.request.UID, m.request.GID = m.record.UID, m.record.GID
	return nil
}

// begin notes what the session will be; acquire adds the commit, and only then is it written down.
func (m *mount) begin() error {
	m.record = statedir.Record{
		Session: m.session, Remote: m.store.URL(), Dir: m.dir, Asked: m.request.Ref, UID: m.request.UID, GID: m.request.GID, Began: m.since,
	}
	m.home.Created = true
	return nil
}

// beginAnew replaces what somebody left who was killed before he had changed anything.
func (m *mount) beginAnew(ctx context.Context) error {
	if err := m.home.Remove(); err != nil {
		m.home = nil
		return err
	}
	var err error
	if m.home, err = m.daemon.homes.Lock(ctx, m.id, m.dir); err != nil {
		return err
	}
	return m.begin()
}

// acquire gets the commit: what --ref names, or what the session is on top of, whatever became of the ref since.
func (m *mount) acquire(ctx context.Context, progress func(control.Progress)) error {
	if !m.resumed {
		if began, err := m.acquirePoint(ctx, progress); began || err != nil {
			return err
		}
		snap, err := m.acquireFirst(ctx)
		if err != nil {
			return fault.Remote(err)
		}
		// A file as young as git's index might have been changed in the same tick: git would compare its contents.
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
	if m.snap.Tree != base.Tree && base.Shown.IsZero() {
		return fmt.Errorf("read session %s: %w: commit %s has another tree", m.home.Dir, statedir.ErrRecord, m.record.Commit)
	}
	return nil
}

// acquireFirst acquires what is mounted for the first time, or was mounted and not changed.
func (m *mount) acquireFirst(ctx context.Context) (*fetch.Snapshot, error) {
	if m.base == nil {
		return m.store.Acquire(ctx, m.request.Ref)
	}
	base, err := m.base.Base()
	if err != nil {
		return nil, err
	}
	return m.store.Resume(ctx, base)
}

// checkRef sees that --ref means the commit that the session began with. If that is the ref it began with, and the
// remote cannot be asked, it goes on.
func (m *mount) checkRef(ctx context.Context, progress func(control.Progress)) error {
	ref, r := m.request.Ref, m.record
	if ref == "" || ref == r.Commit || m.request.Follow {
		return nil
	}
	commit, err := m.store.Resolve(ctx, ref)
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

// open opens the namespace. A session is on record before its overlay can hold anything.
func (m *mount) open() error {
	o := worktree.Options{
		Root: m.snap.Tree, Time: m.snap.Time, TakeOver: m.taking != nil, UID: m.request.UID, GID: m.request.GID, Log: m.daemon.log.With(zap.String("mount", m.dir)),
	}
	o.Overlay, o.Journal = filepath.Join(m.home.Dir, "overlay"), filepath.Join(m.home.Dir, "journal")
	switch {
	case m.writable():
		o.GitFile, o.GitDir, o.KeepRemoved = m.gitFile(), m.inside.Wanted(), m.agent.Automatic()
	case m.session != "":
		o.OverlayReadOnly = true
	default: // an overlay for nothing but .git
		o.GitFile, o.GitDir, o.ReadOnly = m.gitFile(), m.inside.Wanted(), true
	}
	if m.writable() && m.taking == nil {
		if m.record.Dir == m.dir && len(m.point.Created) == 0 {
			m.point.Created = m.record.Made
		}
		m.record.Dir, m.record.Made, m.record.Counted = m.dir, m.point.Created, false
		if err := m.record.Save(m.home.Dir); err != nil {
			return err
		}
	}
	var err error
	m.tree, err = worktree.Open(filepath.Join(m.home.Dir, "inodes"), source{m.view}, o)
	return err
}

func (m *mount) writable() bool { return m.session != "" && !m.request.ReadOnly }

// announce says what the mount goes on with, and what is not as it should be.
func (m *mount) announce(progress func(control.Progress)) {
	if m.resumed {
		progress(control.Progress{Message: fmt.Sprintf("resuming session %s: %s", m.session, statedir.Unsaved{Paths: m.changed()})})
	}
	if m.cameFromElsewhere() {
		progress(control.Progress{Message: fmt.Sprintf("resuming session %s of %s at its checkpoint %s of %s", m.session, m.second.URL(), m.record.Point.ID, m.record.Point.Time.Local().Format(time.DateTime))})
		for _, ref := range slices.Sorted(maps.Keys(m.newer)) {
			text := agent.AheadText(ref, m.newer[ref].String())
			if m.moved[ref] {
				text = lostText(ref, m.newer[ref].String())
			}
			progress(control.Progress{Message: text})
		}
	}
	if f := m.far; f != nil && m.record.Point != nil {
		progress(control.Progress{Message: fmt.Sprintf("begins with checkpoint %s of %s of session %s of %s", m.record.Point.ID, m.record.Point.Time.Local().Format(time.DateTime), f.Session, f.Remote.URL())})
	}
	if m.otherOwner {
		progress(control.Progress{Message: fmt.Sprintf("files belong to user %d and group %d, as when the session began", m.record.UID, m.record.GID)})
	}
	for _, problem := range m.tree.Recovery().Problems {
		progress(control.Progress{Message: problem})
	}
	for _, note := range append(m.redirects.Notes(), m.submodules.problems()...) {
		progress(control.Progress{Message: note})
	}
}

// changed returns the number of paths that the user changed.
func (m *mount) changed() int64 { return max(0, m.tree.Changed()-m.redirects.Placeholders()) }

// outcome is what became of a mount's work when it ended.
type outcome struct {
	kept statedir.Unsaved // zero if nothing was kept
	err  error            // the work could not be settled: it is kept as it is

	trashed string    // session that was put into the trash
	until   time.Time // it, or the session that is kept, is there so long; zero: no time was said
}

// leave ends the tree of a mount that the kernel does not have any more, and keeps or removes the home. Several things
// may be missing if the mount never came to be; a session that was there before is then left as it was.
func (m *mount) leave() (o outcome) {
	if m.home == nil {
		return o
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
	defer cancel()
	var w statedir.Unsaved
	if m.tree != nil {
		if m.writable() {
			m.endRedirects(ctx)
			w.Paths, w.Bytes = m.tree.Changed(), m.tree.Stats().Bytes
		}
		m.view.Close() // whoever of a detached mount waits for an object waits inside of the tree
		o.err = m.tree.Close()
	}
	var err error
	if w.Git, err = gitdir.HasWork(ctx, filepath.Join(m.home.Dir, "git")); err != nil {
		o.err = errors.Join(o.err, err)
	}
	w.Checkpoints = statedir.HasSessionRepo(m.home.Dir) && !m.agent.Empty() && (m.wasServed() || !m.home.Created) // a mount that never came to be leaves nothing
	switch {
	case m.session == "" || m.writable() && m.removes(), m.writable() && m.discards() && o.err == nil && !w.Any():
		m.removeHome()
		return outcome{}
	case m.request.ReadOnly, m.tree == nil && !m.home.Created:
		m.home.Release()
		return outcome{err: o.err}
	case m.tree == nil, m.home.Created && !m.wasServed(), o.err == nil && !w.Any():
		m.removeHome()
		return o
	}
	o.kept = w
	m.record.Made = nil // whoever calls removes them
	m.record.Counted, m.record.Changed, m.record.Bytes = o.err == nil, w.Paths, w.Bytes
	m.record.Until = m.keptUntil(time.Now())
	o.until = m.record.Until
	if err := m.record.Save(m.home.Dir); err != nil { // it is counted when somebody asks
		m.daemon.log.Warn("count a session's changes", zap.String("home", m.home.Dir), zap.Error(err))
	}
	if o.err != nil {
		m.daemon.log.Error("settle session", zap.String("home", m.home.Dir), zap.Error(o.err))
	}
	if m.discards() && o.err == nil {
		now := time.Now()
		m.home.Sign("")
		if o.err = m.home.ToTrash(m.session, now); o.err != nil {
			return o
		}
		m.daemon.log.Info("discarded session", zap.String("session", m.session), zap.Int64("changed", w.Paths))
		return outcome{trashed: m.session, until: now.Add(trash.Keep)}
	}
	m.home.Release()
	return o
}

// keptUntil returns when a session is to go to the trash; zero: never by itself.
func (m *mount) keptUntil(now time.Time) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.keepFor <= 0 {
		return time.Time{}
	}
	return now.Add(m.keepFor).UTC()
}

func (m *mount) removeHome() {
	if err := m.home.Remove(); err != nil {
		m.daemon.log.Warn("remove mount's directory", zap.Error(err))
	}
}

// discards says whether the work is thrown away.
func (m *mount) discards() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.discard
}

// removes says whether the work is thrown away and cannot be brought back.
func (m *mount) removes() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.discard && !m.trash
}
