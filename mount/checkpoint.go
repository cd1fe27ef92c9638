package mount

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/mount/origin"
	"github.com/artifactfs/artifactfs/mount/remotes"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/catalog"
	"github.com/artifactfs/artifactfs/session/resume"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/statedir"
)

// A mount can start from a checkpoint instead of a commit's tree: a session that was last mounted elsewhere, a fork of
// another session, or one checkpoint that is shown read-only. The tree of the checkpoint is then the base tree, the
// overlay is empty, and the git directory is created from the checkpoint state. The objects that the session owns are
// copied first, without contents, into the session's repository in the home:
//
//	from another home        its packs are hard-linked, which takes no time whatever their size
//	from a session remote    four requests: refs, meta, checkpoints with their trees, small files of the state
//
// All other objects are on the mounted remote, and are fetched as for any mount. Contents that the session created and
// that are missing are fetched from the session remote when they are read (fetch.Local.From).

// gitPath returns the path of the git directory of the mount with the given home. The mount has a file .git in its root that refers to
// this path.
func gitPath(home *statedir.Home) string { return filepath.Join(home.Dir, "git") }

// gitFile returns the content of the file .git in the root of the mount (gitrepository-layout(5)).
func gitFile(home *statedir.Home) string { return "gitdir: " + gitPath(home) + "\n" }

// sessionRepoDir returns the directory of the session's repository in a home.
func sessionRepoDir(home *statedir.Home) string {
	return filepath.Join(home.Dir, statedir.SessionRepoName)
}

// lend registers the objects of the mount's git directory and of its session with the store, which can then read them on this
// host and fetch missing ones from the session remote. It opens the session remotes; objects.close closes them.
func (m *Mount) lend() error {
	m.objects.local = m.store.OpenLocal(filepath.Join(gitPath(m.home), "objects"))
	m.objects.owned = m.store.OpenLocal(origin.SessionObjects(m.home.Dir))
	if m.Session == "" && m.Request.At == "" {
		return nil
	}
	r := m.requestNow()
	r.SessionOptions = m.agent.Options()
	r.Session = cmp.Or(m.Session, r.Session)
	var remote *thin.Remote
	// If the daemon had to ask the session remote which repository to mount, its connection is still open and is used here.
	if at, _ := remotes.SessionURL(r); at != "" {
		var l *remotes.Login
		if remote = m.known.Take(m.host.Remotes, at, remotes.GivenForSession(r, at)); remote != nil {
			l = m.known.Login
			m.host.Remotes.HoldLogin(m, l)
		} else {
			m.known = nil
			l = m.host.Remotes.Hold(m, remotes.GivenForSession(r, at))
		}
		m.mu.Lock()
		m.sessionLogin = l
		m.mu.Unlock()
	}
	if remote == nil {
		var err error
		if remote, _, err = m.host.Remotes.Session(r); err != nil {
			return err
		}
	}
	if remote != nil {
		remote.Keep(catalog.ThinDir(sessionRepoDir(m.home)))
		m.objects.sessionRemote = remote
		m.objects.owned.SetSessionRemote(remote)
	}
	if p := m.record.Checkpoint; p != nil && p.From != "" {
		return m.addForkRemote(p.From)
	}
	return nil
}

// addForkRemote registers the session remote of the parent session, whose URL is the parameter at, as another source of objects.
// The session token is sent to it only if it is on the same host as the mount's own session remote.
func (m *Mount) addForkRemote(at string) error {
	r := m.requestNow()
	// A token for one host must not be sent to another.
	if own, _ := remotes.SessionURL(r); !remotes.SameHost(at, own) {
		r.SessionToken, r.SessionTokenFile = "", ""
	}
	r.SessionOptions.Remote = at
	remote, _, err := m.host.Remotes.Session(r)
	if err != nil || remote == nil {
		return err
	}
	m.objects.addFork(remote, m.store.OpenLocal(origin.SessionObjects(m.home.Dir)))
	return nil
}

// acquireCheckpoint fetches or links the checkpoint that the mount starts from, and calls startAt with it. It returns false if
// the mount starts from a commit instead.
func (m *Mount) acquireCheckpoint(ctx context.Context, progress func(control.Progress)) (bool, error) {
	var s *resume.Start
	var err error
	reportStart := func() { progress(control.Progress{Phase: "session"}) }
	switch {
	// The mount uses the base of an earlier mount again, and that base is a commit.
	case m.base != nil && m.base.Checkpoint == nil:
		return false, nil
	// The session is on this host.
	case m.from != nil:
		s, err = m.target().Link(ctx, m.from.Resume(m.objects.sessionRemote))
	// The parent session is on a session remote.
	case m.far != nil:
		reportStart()
		s, err = m.target().Fork(ctx, m.far.Parent, m.far.At)
	// The mount shows one checkpoint of a session that only the session remote has.
	case m.Request.At != "":
		if s, err = m.resumeSession(ctx, m.Request.Session, reportStart); err == nil && s == nil {
			err = statedir.ErrNoSession
		}
		if err != nil {
			err = origin.Explain(m.Request, err)
		}
	case m.Session == "":
		return false, nil
	// The session may exist on the session remote, from another machine.
	default:
		s, err = m.resumeSession(ctx, m.Session, reportStart)
	}
	if err != nil || s == nil {
		return false, err
	}
	return true, m.startAt(ctx, s)
}

// target returns the mount in the form that package resume uses. The caller holds the lock of the mount's home, its directory
// below the state directory, and has called lend.
func (m *Mount) target() *resume.Target {
	return &resume.Target{
		Session: m.Session, Mounted: m.store.URL(), RepoDir: sessionRepoDir(m.home), Remote: m.objects.sessionRemote,
		Since: m.since, RepoOptions: m.repoOptions,
		Objects: m.objects.owned, Store: m.store, Claims: m.agent,
	}
}

// resumeSession fetches a session from the session remote. It returns nil if the session remote does not have the
// session, or if the session has no checkpoint.
func (m *Mount) resumeSession(ctx context.Context, name string, reportStart func()) (*resume.Start, error) {
	var known *resume.Known
	if m.known != nil {
		known = m.known.Known
	}
	m.known = nil // it is used once: its list of refs is out of date afterwards
	return m.target().Resume(ctx, name, m.Request.At, known, reportStart)
}

// startAt records the checkpoint that the mount starts from, and acquires the rest of its snapshot. It sets m.snap.
func (m *Mount) startAt(ctx context.Context, a *resume.Start) error {
	// Resume acquires the snapshot concurrently with its own requests; Link does not.
	if a.Snapshot == nil {
		if err := m.target().Acquire(ctx, a); err != nil {
			return err
		}
	}
	snap := a.Snapshot
	m.newer, m.moved = a.Newer, a.Own
	m.record.Ref, m.record.Format = a.Ref, snap.Format.String()
	if !snap.Commit.IsZero() {
		m.record.Commit, m.record.Tree = snap.Commit.String(), snap.Tree.String()
	}
	// Unchanged files get the time of the checkpoint, so that they look the same in every mount of it.
	m.record.Time = checkpointTime(a.Checkpoint, m.since)
	m.record.Checkpoint = &statedir.Checkpoint{
		ID: string(a.Checkpoint.ID), Commit: a.Checkpoint.Commit.String(), Tree: a.Checkpoint.Tree.String(),
		State: a.Checkpoint.State.String(), Time: a.Checkpoint.Time,
	}
	// The parent is recorded for status, and for the transcript and erasures that the session inherits.
	switch p := m.record.Checkpoint; {
	case m.far != nil:
		p.Parent, p.ParentRemote = m.far.Session, m.far.Remote.URL()
	case m.from != nil && m.from.Record.Session != m.from.Session: // the parent is a mount that shows one checkpoint
		p.Parent, p.ParentRemote = m.from.Session, m.from.Record.Checkpoint.ParentRemote
	case m.from != nil:
		p.Parent, p.ParentRemote = m.from.Session, statedir.ShownRemote(m.from.Carried.Remote, m.from.Home, m.from.Record)
	case m.Request.At != "" && m.objects.sessionRemote != nil:
		p.Parent, p.ParentRemote = m.Request.Session, m.objects.sessionRemote.URL()
	}
	if a.ContentsFrom != "" {
		m.record.Checkpoint.From = statedir.WithoutSecrets(a.ContentsFrom)
		if err := m.addForkRemote(a.ContentsFrom); err != nil {
			return err
		}
	}
	snap.Ref, snap.Tree, snap.Time = a.Ref, a.Checkpoint.Tree, m.record.Time
	m.snap = snap
	return nil
}

// knownBase returns the base commit of the mount's session, and true, if the metadata of the session was read before the mount
// was created. The zero id means that the session was started on an unborn branch.
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

// repoOptions returns the options of the session's repository, which uses the object directory of the store as an alternate.
func (m *Mount) repoOptions(f object.Format, name string) session.RepoOptions {
	return session.RepoOptions{
		Format: f, Session: name, Remote: m.store.URL(), Borrow: []string{filepath.Join(m.store.GitDir(), "objects")},
		Log: m.host.Log.With(zap.String("session", name)),
	}
}

// checkpointTime returns the modification time for the files that are unchanged since a checkpoint. It is the time of the
// checkpoint, or the time since minus settled, whichever is earlier.
func checkpointTime(p session.Checkpoint, since time.Time) time.Time {
	if latest := since.Add(-settled); p.Time.After(latest) {
		return latest
	}
	return p.Time
}

// cameFromElsewhere reports whether this mount is the first one of its session on this host, resumed from the session
// remote.
func (m *Mount) cameFromElsewhere() bool {
	return !m.resumed && m.Session != "" && m.from == nil && m.far == nil && m.record.Checkpoint != nil && m.objects.sessionRemote != nil
}

// shownCheckpoint returns a note for status if the mount shows one checkpoint of a session.
func (m *Mount) shownCheckpoint() []string {
	if m.Request.At == "" || m.record.Checkpoint == nil {
		return nil
	}
	return []string{fmt.Sprintf("shows checkpoint %s of session %s", m.record.Checkpoint.ID, m.Request.Session)}
}
