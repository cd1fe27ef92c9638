package mount

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/host/mount/origin"
	"github.com/artifactfs/artifactfs/host/remotes"
	"github.com/artifactfs/artifactfs/host/session/catalog"
	"github.com/artifactfs/artifactfs/host/session/resume"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/approval"
	"github.com/artifactfs/artifactfs/session/locks"
	"github.com/artifactfs/artifactfs/session/locks/keeper"
	"github.com/artifactfs/artifactfs/session/thin"
)

// A mount can start from a checkpoint instead of a commit: if its session was last mounted on another host, if it is a fork of
// another session, or if it shows one checkpoint read-only. The tree of the checkpoint is then the base tree, the overlay is empty,
// and the git directory is created from the checkpoint state. The objects of the session, without the contents of files, are first
// copied to the session's repository in the home of the mount (its directory below the state directory):
//
//	from another home        the packs are hard-linked, which takes the same short time for any size
//	from a session remote    four requests fetch refs, metadata, checkpoints with their trees, and small files of the state
//
// All other objects are on the mounted remote, and are fetched as for any mount. Missing contents that were created in the session
// are fetched from the session remote when they are read (fetch.Local).

// openObjects opens the objects of the mount, and the session remotes from which missing objects are fetched.
func (m *Mount) openObjects() error {
	m.contents.OpenObjects(m.home)
	if m.Session == "" && m.Request.At == "" {
		return nil
	}
	r := m.Request.Now()
	r.SessionOptions = m.agent.Options()
	r.Session = cmp.Or(m.Session, r.Session)
	var remote *thin.Remote
	// If the daemon has already asked the session remote which repository is mounted, that connection is still open and is
	// reused.
	if at, _ := remotes.SessionURL(r); at != "" {
		given := remotes.GivenForSession(r, at)
		var l *remotes.Login
		if remote = m.known.Take(m.host.Remotes, at, given); remote != nil {
			l = m.known.Login
		} else {
			m.known = nil
		}
		m.Request.holdSessionLogin(l, given)
	}
	if remote == nil {
		var err error
		if remote, _, err = m.host.Remotes.Session(r); err != nil {
			return err
		}
	}
	if remote != nil {
		remote.Keep(catalog.ThinDir(m.home.RepoDir()))
		m.contents.Objects.UseSessionRemote(remote)
	}
	if p := m.home.Record.Checkpoint; p != nil && p.From != "" {
		return m.addForkRemote(p.From)
	}
	return nil
}

// addForkRemote adds the session remote of the parent session as another source of objects. The parameter at is the URL of this
// remote. The session token is sent to this remote only if it is on the same host as the mount's own session remote.
func (m *Mount) addForkRemote(at string) error {
	remote, _, err := m.host.Remotes.Session(remotes.WithSessionRemote(m.Request.Now(), at))
	if err != nil || remote == nil {
		return err
	}
	m.contents.UseForkRemote(remote, m.home)
	return nil
}

// acquireCheckpoint fetches or links the checkpoint from which the mount starts, and calls startAt with it. It returns false if
// the mount starts from a commit instead.
func (m *Mount) acquireCheckpoint(ctx context.Context, progress func(control.Progress)) (bool, error) {
	var s *resume.Start
	var err error
	reportStart := func() { progress(control.Progress{Phase: "session"}) }
	switch {
	// The mount uses the base of an earlier mount again, which is a commit.
	case m.base != nil && m.base.Checkpoint == nil:
		return false, nil
	// The session of the checkpoint is on this host.
	case m.from != nil:
		s, err = m.target().Link(ctx, m.from.Resume(m.contents.Objects.SessionRemote))
	// The parent session is on a session remote, so the checkpoint is fetched from there.
	case m.far != nil:
		reportStart()
		s, err = m.target().Fork(ctx, m.far.Parent, m.far.At)
	// The mount shows one checkpoint of a session that is only on the session remote.
	case m.Request.At != "":
		if s, err = m.resumeSession(ctx, m.Request.Session, reportStart); err == nil && s == nil {
			err = statedir.ErrNoSession
		}
		if err != nil {
			err = origin.Explain(m.Request.MountRequest, err)
		}
	case m.Session == "":
		return false, nil
	// The session may be on the session remote, because it was mounted on another machine.
	default:
		s, err = m.resumeSession(ctx, m.Session, reportStart)
	}
	if err != nil || s == nil {
		return false, err
	}
	return true, m.startAt(ctx, s)
}

// target returns the fields of the mount that package resume needs. The caller holds the lock of the mount's home (its directory
// below the state directory), and has called openObjects.
func (m *Mount) target() *resume.Target {
	return &resume.Target{
		Session: m.Session, Mounted: m.contents.Store.URL(), RepoDir: m.home.RepoDir(),
		Remote: m.contents.Objects.SessionRemote,
		Since:  m.since, RepoOptions: m.contents.RepoOptions,
		Objects: m.contents.Objects.Owned, Own: m.contents.Objects.Own(), Store: m.contents.Store, Claims: m.agent,
	}
}

// resumeSession fetches a session from the session remote. It returns nil if the session remote does not have the
// session, or if the session has no checkpoint.
func (m *Mount) resumeSession(ctx context.Context, name string, reportStart func()) (*resume.Start, error) {
	var known *resume.Known
	if m.known != nil {
		known = m.known.Known
	}
	m.known = nil // the list of refs in m.known is out of date after its first use
	t := m.target()
	t.Listed = func(l *thin.Listing) {
		m.contents.Objects.Listed = &keeper.Listed{}
		m.contents.Objects.Listed.Locks, _ = l.Has(locks.Ref)
		m.contents.Objects.Listed.Policy, _ = l.Has(approval.PolicyRef)
	}
	return t.Resume(ctx, name, m.Request.At, known, reportStart)
}

// startAt records that the mount starts from checkpoint a, and fetches the rest of its snapshot if necessary. It sets
// the snapshot.
func (m *Mount) startAt(ctx context.Context, a *resume.Start) error {
	// The field Snapshot is nil if the checkpoint was linked from this host. If the checkpoint was fetched, Resume has acquired
	// the snapshot at the same time.
	if a.Snapshot == nil {
		if err := m.target().Acquire(ctx, a); err != nil {
			return err
		}
	}
	snap := a.Snapshot
	m.newer, m.moved = a.Newer, a.Own
	m.home.Record.Ref, m.home.Record.Format = a.Ref, snap.Format.String()
	if !snap.Commit.IsZero() {
		m.home.Record.Commit, m.home.Record.Tree = snap.Commit.String(), snap.Tree.String()
	}
	// Unchanged files get the time of the checkpoint, so that they have the same times in every mount of this checkpoint.
	m.home.Record.Time = checkpointTime(a.Checkpoint, m.since)
	m.home.Record.Checkpoint = &statedir.Checkpoint{
		ID: string(a.Checkpoint.ID), Commit: a.Checkpoint.Commit.String(), Tree: a.Checkpoint.Tree.String(),
		State: a.Checkpoint.State.String(), Time: a.Checkpoint.Time,
	}
	// The status shows the parent session, and the session inherits its transcript and erasures.
	switch p := m.home.Record.Checkpoint; {
	case m.far != nil:
		p.Parent, p.ParentRemote = m.far.Session, m.far.Remote.URL()
	case m.from != nil && m.from.Record.Session != m.from.Session: // the parent is a mount that shows one checkpoint
		p.Parent, p.ParentRemote = m.from.Session, m.from.Record.Checkpoint.ParentRemote
	case m.from != nil:
		p.Parent, p.ParentRemote = m.from.Session, statedir.ShownRemote(m.from.Carried.Remote, m.from.Home, m.from.Record)
	case m.Request.At != "" && m.contents.Objects.SessionRemote != nil:
		p.Parent, p.ParentRemote = m.Request.Session, m.contents.Objects.SessionRemote.URL()
	}
	if a.ContentsFrom != "" {
		m.home.Record.Checkpoint.From = statedir.WithoutSecrets(a.ContentsFrom)
		if err := m.addForkRemote(a.ContentsFrom); err != nil {
			return err
		}
	}
	snap.Ref, snap.Tree, snap.Time = a.Ref, a.Checkpoint.Tree, m.home.Record.Time
	m.contents.SetSnapshot(snap)
	return nil
}

// knownBase returns the base commit of the mount's session. It returns false if the metadata of the session was not read before
// the mount was created. The id is zero if the session was started on a branch without commits.
func (m *Mount) knownBase() (object.ID, bool) {
	var base string
	switch {
	case m.far != nil:
		base = m.far.Meta.Base
	case m.known != nil:
		base = m.known.Meta.Base
	default:
		return object.ID{}, false
	}
	id, err := object.ParseID(base)
	return id, err == nil || base == ""
}

// checkpointTime returns the modification time for files that are unchanged since the checkpoint p. This is the time of the
// checkpoint, but at the latest the time since, at which the mount was started, minus the duration settled.
func checkpointTime(p session.Checkpoint, since time.Time) time.Time {
	if latest := since.Add(-settled); p.Time.After(latest) {
		return latest
	}
	return p.Time
}

// cameFromElsewhere reports whether this is the first mount of its session on this host, and the session was resumed from the
// session remote.
func (m *Mount) cameFromElsewhere() bool {
	return !m.home.Resumed && m.Session != "" && m.from == nil && m.far == nil && m.home.Record.Checkpoint != nil &&
		m.contents.Objects.SessionRemote != nil
}

// shownCheckpoint returns a note for status if the mount shows one checkpoint of a session.
func (m *Mount) shownCheckpoint() []string {
	if m.Request.At == "" || m.home.Record.Checkpoint == nil {
		return nil
	}
	return []string{fmt.Sprintf("shows checkpoint %s of session %s", m.home.Record.Checkpoint.ID, m.Request.Session)}
}
