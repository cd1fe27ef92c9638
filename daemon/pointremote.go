package daemon

import (
	"context"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/agent"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/session/writeback"
	"github.com/artifactfs/artifactfs/transport"
)

// sessionRemote opens the session remote of a mount; nil: it has none but the repository in its home. Kind is one of the
// constants of control, or "" for a URL. The token of the mounted remote goes to the host of that alone.
func (d *Daemon) sessionRemote(r control.MountRequest) (remote *thin.Remote, kind string, err error) {
	remote, _, kind, err = d.openSessionRemote(r)
	return remote, kind, err
}

// openSessionRemote is sessionRemote, and returns the login that it is opened with.
func (d *Daemon) openSessionRemote(r control.MountRequest) (remote *thin.Remote, l *login, kind string, err error) {
	at, kind := sessionURL(r)
	if at == "" {
		return nil, nil, kind, nil
	}
	patience := r.Timeout
	if patience == 0 {
		patience = DefaultDeadline
	}
	d.mu.Lock()
	l = d.loginFor(sessionGiven(r, at))
	d.mu.Unlock()
	o := transport.Options{Login: l.Login, Env: environment(r), Retries: retries, Log: d.log, Stall: r.Timeout, Patience: patience, Ahead: &d.ahead}
	far, err := transport.Open(at, o)
	if err != nil {
		return nil, nil, kind, fmt.Errorf("open session remote: %w", err)
	}
	return thin.New(far, r.Session, d.log), l, kind, nil
}

// sessionURL returns where the session remote of a request is, "" if it is none but the repository in the mount's home, and
// its kind: one of the constants of control, or "" for a URL.
func sessionURL(r control.MountRequest) (at, kind string) {
	switch r.SessionOptions.Remote {
	case "", control.RemoteEmbedded:
		return "", control.RemoteEmbedded
	case control.RemoteNone:
		return "", control.RemoteNone
	case control.RemoteOrigin:
		return r.Remote, control.RemoteOrigin
	}
	if r.SessionToken == "" && r.SessionTokenFile == "" {
		return likeUser(r.SessionOptions.Remote, r.Remote), ""
	}
	return r.SessionOptions.Remote, ""
}

// arrive brings a session that is on its session remote and not here; nil: it is not there either, or nobody else has it.
func (m *mount) arrive(ctx context.Context, name string, progress func(control.Progress)) (*arrival, error) {
	if m.second == nil {
		return nil, nil
	}
	return m.arriveFrom(ctx, m.second, name, progress)
}

// arriveFrom brings a session's points, their trees and what is to be known of them, into the repository of the home.
func (m *mount) arriveFrom(ctx context.Context, remote *thin.Remote, name string, progress func(control.Progress)) (*arrival, error) {
	m.store.Approach() // while the session remote is asked
	k := m.known
	m.known = nil // it is read once
	if k == nil || remote != m.second {
		var err error
		if k, err = listSession(ctx, remote, name); err != nil {
			return nil, err
		}
	}
	metaID, more := k.list.Has(session.MetaRef(name))
	if metaID.IsZero() {
		return nil, nil
	}
	progress(control.Progress{Phase: "session"})
	repo, err := session.OpenRepo(m.sessionRepoDir(), m.repoOptions(k.format, name))
	if err != nil {
		return nil, err
	}
	defer repo.Close()
	var claim *agent.AheadClaim
	if more {
		claim = m.agent.ClaimAhead(ctx, remote, session.MetaRef(name), metaID)
		defer claim.End()
	}
	if err := m.bringMeta(ctx, k, remote); err != nil {
		return nil, err
	}
	if err := repo.Update(ctx, []session.RefChange{{Name: session.MetaRef(name), New: metaID, Force: true}}); err != nil {
		return nil, err
	}
	meta, _, err := session.ReadMeta(repo, name)
	if err != nil {
		return nil, err
	}
	if meta.Remote != m.store.URL() {
		return nil, fmt.Errorf("%w: %s", fault.ErrOtherRemote, meta.Remote)
	}
	if err := m.agent.Refused(meta); err != nil {
		return nil, err
	}
	claim.Begin(ctx, repo)
	a := &arrival{ref: meta.Ref, format: k.format}
	if meta.Base != "" {
		if a.base, err = object.ParseID(meta.Base); err != nil {
			return nil, fmt.Errorf("read session %s: %w", name, err)
		}
	}
	based := func() error { return nil }
	if more { // the mounted remote is asked beside the session remote
		var stop func()
		based, stop = m.acquireBeside(ctx, a)
		defer stop()
	}
	refs, err := k.list.Refs(ctx) // a container comes while the claim is under way
	if err != nil {
		return nil, fault.SessionRemote(remote, err)
	}
	all := map[string]object.ID{} // by their names there
	var points []object.ID
	for _, r := range refs {
		all[r.Name] = r.ID
		if strings.HasPrefix(r.Name, session.LanePrefix(name)) || strings.HasPrefix(r.Name, session.PinPrefix(name)) {
			points = append(points, r.ID)
		}
	}
	layout, err := session.LayoutOf(meta, all)
	if err != nil {
		return nil, err
	}
	if len(points) == 0 { // there is nothing to go on from, but a session that is claimed as any other
		if err := claim.Wait(); err != nil {
			return nil, err
		}
		return nil, adopt(repo, remote, layout, all, claim)
	}
	// From here on branches and tags have their names in the mount. Notes are those of all sessions: here they begin as in the
	// point, and are merged with those there when they are sent.
	there := layout.Mapped(all)
	for ref, id := range all {
		if strings.HasPrefix(ref, session.Prefix) {
			there[ref] = id
		}
	}
	if err = m.bringPoints(ctx, repo, remote, a.base, points); err != nil {
		return nil, fault.SessionRemote(remote, err)
	}
	ofPoints := func(ref string) bool {
		return strings.HasPrefix(ref, session.LanePrefix(name)) || strings.HasPrefix(ref, session.PinPrefix(name))
	}
	if err := setRefs(ctx, repo, there, ofPoints); err != nil {
		return nil, err
	}
	at := m.request.At
	if a.point, err = findPoint(ctx, repo, nil, at); err != nil {
		return nil, fmt.Errorf("find %s: %w", at, err)
	}
	state, err := m.bringState(ctx, repo, remote, a.point, a.format)
	if err != nil {
		return nil, fault.SessionRemote(remote, err)
	}
	if err := based(); err != nil {
		return nil, err
	}
	if err := m.bringNewer(ctx, repo, remote, a, state, there); err != nil {
		return nil, fault.SessionRemote(remote, err)
	}
	if err := m.beginRepo(ctx, repo, a.point); err != nil {
		return nil, err
	}
	if err := claim.Wait(); err != nil {
		return nil, err
	}
	return a, adopt(repo, remote, layout, all, claim)
}

// adopt has the queue know what the session remote has, by the names there, before anything else of it is changed here.
func adopt(repo *session.Repo, remote *thin.Remote, layout session.Layout, there map[string]object.ID, claim *agent.AheadClaim) error {
	refs, err := repo.Refs("refs/")
	if err != nil {
		return err
	}
	same := map[string]object.ID{}
	for _, r := range refs {
		if there[layout.There(r.Name)] == r.ID {
			same[r.Name] = r.ID
		}
	}
	asked := map[string]object.ID{}
	claim.AddTo(same, asked)
	if err := remote.Adopt(); err != nil {
		return err
	}
	return writeback.Adopt(repo, remote.URL(), layout, same, asked)
}

// beginRepo keeps the point that the mount begins with, whatever becomes of its lane.
func (m *mount) beginRepo(ctx context.Context, repo *session.Repo, p session.Point) error {
	return repo.Update(ctx, []session.RefChange{{Name: session.BaseRef(repo.Session()), New: p.Commit, Force: true}})
}

// bringPoints brings points, with trees, States, and the session's commits.
func (m *mount) bringPoints(ctx context.Context, repo *session.Repo, remote *thin.Remote, base object.ID, points []object.ID) error {
	var haves []object.ID
	if !base.IsZero() {
		haves = append(haves, base)
	}
	slices.SortFunc(points, func(a, b object.ID) int { return strings.Compare(a.String(), b.String()) })
	in, err := m.owned.Bring(ctx, fetch.BringRequest{From: remote, Wants: slices.Compact(points), Haves: haves})
	if err != nil {
		return err
	}
	return repo.AddShallow(in.Shallow)
}

// bringState brings the small files of a point's State.
func (m *mount) bringState(ctx context.Context, repo *session.Repo, remote *thin.Remote, p session.Point, f object.Format) (session.State, error) {
	wants, err := stateBlobs(repo, p)
	if err != nil {
		return session.State{}, err
	}
	// The store knows its format when the mounted remote has answered, which may be later: so it is not asked.
	wants = slices.DeleteFunc(wants, func(id object.ID) bool { _, _, err := repo.Size(id); return err == nil })
	if len(wants) > 0 {
		if _, err := m.owned.Bring(ctx, fetch.BringRequest{From: remote, Wants: wants}); err != nil {
			return session.State{}, err
		}
	}
	state, err := repo.State(p)
	if err != nil {
		return state, err
	}
	tags, err := state.TagObjects(f)
	if err == nil {
		err = repo.Write(ctx, tags)
	}
	return state, err
}

// bringNewer brings what the session's branches, tags and notes have become since the point on the session remote: commits that
// are newer than the point are not to be lost.
func (m *mount) bringNewer(ctx context.Context, repo *session.Repo, remote *thin.Remote, a *arrival, state session.State, there map[string]object.ID) error {
	var newer []object.ID
	named := map[string]bool{session.TranscriptRef(repo.Session()): true, session.FactsRef(repo.Session()): true}
	for _, r := range state.Refs {
		named[r.Name] = true
	}
	// A branch may be at one of these commits of the mounted remote, which a container does not hold, and which cannot be read from
	// the store before all trees have come.
	ground := append(remote.Base().Commits, a.base)
	for ref, id := range there {
		if !named[ref] && !strings.HasPrefix(ref, session.KeptPrefix(repo.Session())) {
			continue
		}
		named[ref] = true
		if _, _, err := repo.Size(id); err != nil && !slices.Contains(ground, id) {
			newer = append(newer, id)
		}
	}
	if len(newer) > 0 {
		in, err := m.owned.Bring(ctx, fetch.BringRequest{From: remote, Wants: newer, Haves: m.knownCommits(a, state)})
		if err == nil {
			err = repo.AddShallow(in.Shallow)
		}
		if err != nil {
			return err
		}
	}
	if err := keepNewer(ctx, repo, a, state, there); err != nil {
		return err
	}
	return setRefs(ctx, repo, there, func(ref string) bool {
		return named[ref] && (a.newer[ref].IsZero() || a.carried[ref]) && repo.Owned(there[ref])
	})
}

// keepNewer keeps the tips of branches, tags and notes on the session remote that the point does not know of; here they begin
// as in the point. What the session itself has made of them before it died without another point is the session's, and goes
// on from there; somebody else's work stays there as it is.
func keepNewer(ctx context.Context, repo *session.Repo, a *arrival, state session.State, there map[string]object.ID) error {
	a.newer, a.carried = map[string]object.ID{}, map[string]bool{}
	var changes []session.RefChange
	for _, r := range state.Refs {
		id := there[r.Name]
		if id.IsZero() || writeback.Within(repo, r.ID, id) {
			continue
		}
		a.newer[r.Name] = id
		if there[session.CarriedRef(repo.Session(), r.Name)] == id {
			a.carried[r.Name] = true
		}
		if repo.Owned(id) {
			changes = append(changes, session.RefChange{Name: session.KeptPrefix(repo.Session()) + string(session.NewPointID(time.Now())), New: id})
		}
	}
	if len(changes) == 0 {
		return nil
	}
	return repo.Update(ctx, changes)
}

// mostKnown is how many commits a session remote is told that we have; each costs a line.
const mostKnown = 256

// knownCommits lists commits that are here with all that they reach, as far as the mounted remote gives it: below a point
// there is nothing but what the session owns, so its base has to be named too.
func (m *mount) knownCommits(a *arrival, s session.State) []object.ID {
	known := []object.ID{a.point.Commit}
	if !a.base.IsZero() {
		known = append(known, a.base)
	}
	for _, r := range slices.Concat(s.Refs, s.Remote) {
		if len(known) == mostKnown {
			break
		}
		if t, _, err := m.owned.Size(r.ID); err == nil && t == object.Commit && !slices.Contains(known, r.ID) {
			known = append(known, r.ID)
		}
	}
	return known
}

// stateBlobs lists the files of a State, without what was staged.
func stateBlobs(repo *session.Repo, p session.Point) ([]object.ID, error) {
	c, err := repo.Commit(p.State)
	if err != nil {
		return nil, err
	}
	var blobs []object.ID
	var walk func(tree object.ID, at string) error
	walk = func(tree object.ID, at string) error {
		entries, err := repo.Tree(tree)
		if err != nil {
			return err
		}
		for _, e := range entries {
			name := path.Join(at, e.Name)
			switch {
			case e.Mode == object.ModeDir && name != "index" && name != "conflict":
				if err := walk(e.ID, name); err != nil {
					return err
				}
			case e.Mode.IsBlob():
				blobs = append(blobs, e.ID)
			}
		}
		return nil
	}
	return blobs, walk(c.Tree, "")
}

// setRefs has refs of the repository name what those of the session remote name.
func setRefs(ctx context.Context, repo *session.Repo, there map[string]object.ID, which func(ref string) bool) error {
	var changes []session.RefChange
	for ref, id := range there {
		if which(ref) {
			changes = append(changes, session.RefChange{Name: ref, New: id, Force: true})
		}
	}
	if len(changes) == 0 {
		return nil
	}
	return repo.Update(ctx, changes)
}

// expect tells the store which blobs it need not ask the mounted remote for: those in which the point that the mount began
// with differs from the base. It waits for trees.
func (m *mount) expect(ctx context.Context) {
	base, err := m.record.Base()
	if err != nil || base.Shown.IsZero() || m.second == nil && m.elder == nil {
		return
	}
	var ids []object.ID
	err = diffTrees(ctx, m.store.Tree, base.Tree, base.Shown, func(_ string, _, to object.TreeEntry) error {
		if to.Mode.IsBlob() {
			ids = append(ids, to.ID)
		}
		return nil
	})
	if err != nil {
		m.daemon.log.Debug("look for contents of the session", zap.String("dir", m.dir), zap.Error(err))
	}
	ids = m.owned.Missing(ids)
	m.owned.Expect(ids)
	if m.elders != nil {
		m.elders.Expect(ids)
	}
}

// fetcher is a remote that objects can be fetched from.
type fetcher interface {
	Fetch(ctx context.Context, req transport.FetchRequest) (*transport.FetchResponse, error)
}

// fetchMeta reads what a session is from its remote, and keeps nothing.
func (d *Daemon) fetchMeta(ctx context.Context, remote fetcher, id object.ID) (session.Meta, error) {
	meta, _, err := d.fetchMetas(ctx, remote, id, 1)
	return meta, err
}

// fetchMetas is fetchMeta, and returns the objects as well; none: one is too large for memory. A depth of 0 brings the
// predecessors, too.
func (d *Daemon) fetchMetas(ctx context.Context, remote fetcher, id object.ID, depth int) (session.Meta, []odb.Outgoing, error) {
	tmp, err := os.MkdirTemp(d.state, "meta-*.tmp")
	if err != nil {
		return session.Meta{}, nil, err
	}
	defer os.RemoveAll(tmp)
	objects, err := odb.Open(tmp, id.Format())
	if err != nil {
		return session.Meta{}, nil, err
	}
	defer objects.Close()
	resp, err := remote.Fetch(ctx, transport.FetchRequest{Wants: []object.ID{id}, Depth: depth})
	if err != nil {
		return session.Meta{}, nil, err
	}
	defer resp.Pack.Close()
	var all []odb.Outgoing
	whole := true
	_, err = objects.Ingest(ctx, resp.Pack, odb.IngestOptions{MaxObjectSize: maxMeta, Temporary: true}, func(id object.ID, t object.Type, content []byte) {
		whole = whole && content != nil
		all = append(all, inMemory(id, t, content))
	})
	if err != nil {
		return session.Meta{}, nil, err
	}
	if !whole {
		all = nil
	}
	meta, err := session.MetaAt(objects, id.Format(), id)
	return meta, all, err
}

// maxMeta is the size in bytes of the largest object of what is to be known of a session.
const maxMeta = 16 << 20
