package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/statedir"
)

// A mount can begin with a point instead of a commit's tree: a session that goes on here and was worked in elsewhere, a
// fork of another one, or one point that is looked at. The tree of the point is the base tree of such a mount, its overlay
// is empty, and its git directory is made from the point's State. What the session owns comes first, without contents, into
// the session's repository in the home:
//
//	from another home    its packs are linked, in no time, whatever there is
//	from a session remote    refs, meta, then points with their trees, then the small files of the State: four requests
//
// All else is the mounted remote's, and is as for other mounts. Contents that the session made and that are not here come
// from the session remote when they are read (fetch.Local.From).

// origin says that a mount is to begin with a point of a session of this host.
type origin struct {
	home    string // of that session, or of a mount that shows a point of it
	session string
	record  statedir.Record
	point   session.Point
	carried control.SessionOptions
}

func (m *mount) sessionRepoDir() string { return filepath.Join(m.home.Dir, statedir.SessionRepoName) }

// sessionObjects is where the objects lie that the session owns.
func (m *mount) sessionObjects() string { return filepath.Join(m.sessionRepoDir(), "objects") }

// lend has the store read what the mount's git directory and its session have, here and on the session remote.
func (m *mount) lend() error {
	m.local = m.store.Lend(filepath.Join(m.gitPath(), "objects"))
	m.owned = m.store.Lend(m.sessionObjects())
	if m.session == "" && m.request.At == "" {
		return nil
	}
	r := m.requestNow()
	r.SessionOptions = m.agent.Options()
	r.Session = cmp.Or(m.session, r.Session)
	var second *thin.Remote
	m.daemon.mu.Lock()
	if at, _ := sessionURL(r); at != "" {
		if second = m.known.take(at, sessionGiven(r, at)); second != nil {
			m.sessionLogin = m.known.login
		} else {
			m.known = nil
			m.sessionLogin = m.daemon.loginFor(sessionGiven(r, at))
		}
	}
	m.daemon.mu.Unlock()
	if second == nil {
		var err error
		if second, _, err = m.daemon.sessionRemote(r); err != nil {
			return err
		}
	}
	if second != nil {
		second.Keep(thinDir(m.sessionRepoDir()))
		m.second = second
		m.owned.From(second)
	}
	if p := m.record.Point; p != nil && p.From != "" {
		return m.lendElder(p.From)
	}
	return nil
}

// lendElder has the store ask the session remote of the session that this one was forked from, too.
func (m *mount) lendElder(at string) error {
	r := m.requestNow()
	if own, _ := sessionURL(r); !sameHost(at, own) {
		r.SessionToken, r.SessionTokenFile = "", ""
	}
	r.SessionOptions.Remote = at
	elder, _, err := m.daemon.sessionRemote(r)
	if err != nil || elder == nil {
		return err
	}
	m.elder, m.elders = elder, m.store.Lend(m.sessionObjects())
	m.elders.From(elder)
	return nil
}

// takeBack is the reverse of lend.
func (m *mount) takeBack() (err error) {
	for _, l := range []*fetch.Local{m.local, m.owned, m.elders} {
		if l != nil {
			err = errors.Join(err, l.Close())
		}
	}
	for _, r := range []*thin.Remote{m.second, m.elder} {
		if r != nil {
			err = errors.Join(err, r.Close())
		}
	}
	m.local, m.owned, m.elders, m.second, m.elder = nil, nil, nil, nil, nil
	return err
}

// acquirePoint makes the mount begin with a point, if it is to; false: it is not.
func (m *mount) acquirePoint(ctx context.Context, progress func(control.Progress)) (bool, error) {
	var came *arrival
	var err error
	switch {
	case m.base != nil && m.base.Point == nil:
		return false, nil
	case m.from != nil:
		came, err = m.link(ctx, *m.from)
	case m.far != nil:
		came, err = m.arriveFork(ctx, m.far, progress)
	case m.request.At != "":
		if came, err = m.arrive(ctx, m.request.Session, progress); err == nil && came == nil {
			err = statedir.ErrNoSession
		}
		if err != nil {
			err = explainResume(m.request, err)
		}
	case m.session == "":
		return false, nil
	default:
		came, err = m.arrive(ctx, m.session, progress)
	}
	if err != nil || came == nil {
		return false, err
	}
	return true, m.beginAt(ctx, came)
}

// arrival is a point whose objects are in the session's repository of the mount's home.
type arrival struct {
	from    string // session remote of another session that has contents which are not here
	point   session.Point
	ref     string // full name of what the session began with; "" of a commit
	base    object.ID
	format  object.Format
	snap    *fetch.Snapshot      // of the base; nil: it was not acquired yet
	newer   map[string]object.ID // refs that are not in the point as the session remote has them, and what they are there
	carried map[string]bool      // those of them that the session itself has moved
}

// beginAt writes into the record what the mount begins with, and acquires the rest of it.
func (m *mount) beginAt(ctx context.Context, a *arrival) error {
	if a.snap == nil {
		if err := m.acquireBase(ctx, a); err != nil {
			return err
		}
	}
	snap := a.snap
	m.newer, m.moved = a.newer, a.carried
	m.record.Ref, m.record.Format = a.ref, snap.Format.String()
	if !snap.Commit.IsZero() {
		m.record.Commit, m.record.Tree = snap.Commit.String(), snap.Tree.String()
	}
	m.record.Time = pointTime(a.point, m.since)
	m.record.Point = &statedir.Checkpoint{
		ID: string(a.point.ID), Commit: a.point.Commit.String(), Tree: a.point.Tree.String(), State: a.point.State.String(), Time: a.point.Time,
	}
	switch p := m.record.Point; {
	case m.far != nil:
		p.Parent, p.ParentRemote = m.far.session, m.far.remote.URL()
	case m.from != nil && m.from.record.Session != m.from.session: // of a mount that shows a point
		p.Parent, p.ParentRemote = m.from.session, m.from.record.Point.ParentRemote
	case m.from != nil:
		p.Parent, p.ParentRemote = m.from.session, shownRemote(m.from.carried.Remote, m.from.home, m.from.record)
	case m.request.At != "" && m.second != nil:
		p.Parent, p.ParentRemote = m.request.Session, m.second.URL()
	}
	if a.from != "" {
		m.record.Point.From = fault.WithoutSecrets(a.from)
		if err := m.lendElder(a.from); err != nil {
			return err
		}
	}
	snap.Ref, snap.Tree, snap.Time = a.ref, a.point.Tree, m.record.Time
	m.snap = snap
	return nil
}

// acquireBase acquires the commit that the session began with.
func (m *mount) acquireBase(ctx context.Context, a *arrival) error {
	snap, err := m.store.Resume(ctx, fetch.Base{Ref: a.ref, Commit: a.base, Time: m.since, Format: a.format})
	if err != nil {
		return fault.Remote(err)
	}
	a.snap = snap
	return nil
}

// acquireBeside is acquireBase beside what its caller does: wait returns its result, and stop ends it.
func (m *mount) acquireBeside(ctx context.Context, a *arrival) (wait func() error, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = m.acquireBase(ctx, a)
	}()
	wait = func() error {
		<-done
		return err
	}
	return wait, func() {
		cancel()
		<-done
	}
}

// repoOptions are those of the session's repository of the mount.
func (m *mount) repoOptions(f object.Format, name string) session.RepoOptions {
	return session.RepoOptions{
		Format: f, Session: name, Remote: m.store.URL(), Borrow: []string{filepath.Join(m.store.GitDir(), "objects")},
		Log: m.daemon.log.With(zap.String("session", name)),
	}
}

// link makes the session's repository one that has all that another of this host owns, without copying a content.
func (m *mount) link(ctx context.Context, from origin) (*arrival, error) {
	var tips forkedRefs
	refs := session.NewRefDir(filepath.Join(from.home, statedir.SessionRepoName), from.point.Tree.Format())
	var err error
	if tips.transcript, err = refs.Ref(session.TranscriptRef(from.session)); err != nil {
		return nil, err
	}
	if tips.facts, err = refs.Ref(session.FactsRef(from.session)); err != nil {
		return nil, err
	}
	if err := linkObjects(filepath.Join(from.home, statedir.SessionRepoName, "objects"), m.sessionObjects()); err != nil {
		return nil, fmt.Errorf("share the objects of session %s: %w", from.session, err)
	}
	name := m.session
	if name == "" {
		name = from.session
	}
	repo, err := session.OpenRepo(m.sessionRepoDir(), m.repoOptions(from.point.Tree.Format(), name))
	if err != nil {
		return nil, err
	}
	defer repo.Close()
	shallow, err := readLines(filepath.Join(from.home, statedir.SessionRepoName, "shallow"))
	if err == nil && len(shallow) > 0 {
		err = repo.SetShallow(shallow)
	}
	switch {
	case err != nil:
	case m.session == "":
		err = m.beginRepo(ctx, repo, from.point)
	default:
		err = m.forkRefs(ctx, repo, from.session, tips, from.point)
	}
	if err != nil {
		return nil, err
	}
	r := from.record
	elder := ""
	switch at := from.carried.Remote; at {
	case "", control.RemoteEmbedded, control.RemoteOrigin, control.RemoteNone:
		if r.Point != nil {
			elder = r.Point.From
		}
	default:
		if m.second == nil || m.second.URL() != fault.WithoutSecrets(at) {
			elder = fault.WithoutSecrets(at)
		}
	}
	return &arrival{point: from.point, from: elder, ref: r.Ref, base: from.point.Base, format: from.point.Tree.Format()}, nil
}

// linkObjects gives a directory of objects all packs and loose objects of another, which others may be changing: packs
// that are joined meanwhile are gone, and what they held is in another one.
func linkObjects(from, to string) error {
	const tries = 10
	for try := 1; ; try++ {
		err := linkOnce(from, to)
		if err == nil || !errors.Is(err, fs.ErrNotExist) || try == tries {
			return err
		}
		if err := os.RemoveAll(to); err != nil {
			return err
		}
	}
}

// linked are the files of a pack, in the order in which readers may come upon them.
var linked = []string{".pack", ".promisor", ".rev", ".idx"}

func linkOnce(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(to, "pack"), 0o755); err != nil {
		return err
	}
	packs, err := os.ReadDir(filepath.Join(from, "pack"))
	if err != nil {
		return err
	}
	for _, ending := range linked {
		for _, p := range packs {
			if strings.HasPrefix(p.Name(), "pack-") && strings.HasSuffix(p.Name(), ending) {
				if err := linkFile(filepath.Join(from, "pack", p.Name()), filepath.Join(to, "pack", p.Name())); err != nil {
					return err
				}
			}
		}
	}
	for _, e := range entries {
		if len(e.Name()) != 2 || !e.IsDir() {
			continue
		}
		loose, err := os.ReadDir(filepath.Join(from, e.Name()))
		if err == nil {
			err = os.MkdirAll(filepath.Join(to, e.Name()), 0o755)
		}
		if err != nil {
			return err
		}
		for _, l := range loose {
			if strings.HasPrefix(l.Name(), "tmp_") {
				continue
			}
			if err := linkFile(filepath.Join(from, e.Name(), l.Name()), filepath.Join(to, e.Name(), l.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

func linkFile(from, to string) error {
	err := os.Link(from, to)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// readLines reads a file of ids, a line each; none if it is not there.
func readLines(path string) (ids []object.ID, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for line := range strings.Lines(string(text)) {
		id, parseErr := object.ParseID(strings.TrimSpace(line))
		if parseErr != nil {
			return nil, fmt.Errorf("read %s: %w", path, parseErr)
		}
		ids = append(ids, id)
	}
	return ids, err
}

// pointTime is when files of a point that nobody changed were changed last.
func pointTime(p session.Point, since time.Time) time.Time {
	if latest := since.Add(-settled); p.Time.After(latest) {
		return latest
	}
	return p.Time
}

// cameFromElsewhere says whether the mount began here with a session that was worked in elsewhere.
func (m *mount) cameFromElsewhere() bool {
	return !m.resumed && m.session != "" && m.from == nil && m.far == nil && m.record.Point != nil && m.second != nil
}

// shownPoint tells that a mount shows one point of a session.
func (m *mount) shownPoint() []string {
	if m.request.At == "" || m.record.Point == nil {
		return nil
	}
	return []string{fmt.Sprintf("shows checkpoint %s of session %s", m.record.Point.ID, m.request.Session)}
}
