package resume

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/session/agent"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/session/writeback"
)

// Resume fetches the session called name from the session remote of the mount: the metadata, the checkpoints with their
// trees, and the files of the checkpoint at, or of the newest one if at is "". At the same time Resume claims the lane.
// known has data of the session that were read before, or is nil. Resume calls reportStart once it knows that the
// session remote has the session. The result is nil if the session remote does not have the session, or if the session
// has no checkpoint.
func (t *Target) Resume(ctx context.Context, name, at string, known *Known, reportStart func()) (*Start, error) {
	if t.Remote == nil {
		return nil, nil
	}
	t.Store.Connect() // connects concurrently with the requests to the session remote
	k := known
	if k == nil {
		var err error
		if k, err = List(ctx, t.Remote, name); err != nil {
			return nil, err
		}
	}
	if t.Listed != nil {
		t.Listed(k.Listing)
	}
	metaID, more := k.Listing.Has(session.MetaRef(name))
	if metaID.IsZero() {
		return nil, nil
	}
	// The session exists, so the caller can report now that it is being resumed.
	reportStart()
	repo, err := session.OpenRepo(t.RepoDir, t.RepoOptions(k.Format, name))
	if err != nil {
		return nil, err
	}
	defer repo.Close()
	var claim *agent.AheadClaim
	if more {
		claim = t.Claims.ClaimAhead(ctx, t.Remote, session.MetaRef(name), metaID)
		defer claim.End()
	}
	// The metadata is fetched first, because it contains the base commit and the writers of the lanes.
	meta, err := t.putMeta(ctx, repo, k, metaID)
	if err != nil {
		return nil, err
	}
	claim.Begin(ctx, repo)
	s := &Start{Ref: meta.Ref, Format: k.Format}
	if s.Base, err = baseCommit(meta); err != nil {
		return nil, err
	}
	based := func() error { return nil }
	if more { // send the requests to the mounted remote while the requests to the session remote are running
		var stop func()
		based, stop = t.acquireBeside(ctx, s)
		defer stop()
	}
	// If the session is stored in a container, which is one commit that holds its objects, Refs fetches the container. The
	// claim is pushed at the same time.
	refs, err := k.Listing.Refs(ctx)
	if err != nil {
		return nil, fault.SessionRemote(t.Remote, err)
	}
	all := map[string]object.ID{} // ids of the refs, by their names on the session remote
	for _, r := range refs {
		all[r.Name] = r.ID
	}
	layout, err := session.LayoutOf(meta, all)
	if err != nil {
		return nil, err
	}
	// a session without a checkpoint starts like a new session, but its lane is claimed
	if len(checkpointsOf(name, all)) == 0 {
		if err := claim.Wait(); err != nil {
			return nil, err
		}
		return nil, adopt(repo, t.Remote, layout, all, claim)
	}
	if err := t.fetchCheckpoint(ctx, repo, s, at, layout, all, based); err != nil {
		return nil, err
	}
	if err := claim.Wait(); err != nil {
		return nil, err
	}
	return s, adopt(repo, t.Remote, layout, all, claim)
}

// putMeta stores the metadata of the session in their commit id in the repository, and returns them. It returns an
// error if the session belongs to another mounted remote, or if this host may not claim the session.
func (t *Target) putMeta(ctx context.Context, repo *session.Repo, k *Known, id object.ID) (session.Meta, error) {
	if err := k.keepMeta(ctx, t.Objects, t.Remote); err != nil {
		return session.Meta{}, err
	}
	if err := repo.Update(ctx,
		[]session.RefChange{{Name: session.MetaRef(repo.Session()), New: id, Force: true}}); err != nil {
		return session.Meta{}, err
	}
	meta, _, err := session.ReadMeta(repo, repo.Session())
	if err != nil {
		return meta, err
	}
	if meta.Remote != t.Mounted {
		return meta, fmt.Errorf("%w: %s", fault.ErrOtherRemote, meta.Remote)
	}
	return meta, t.Claims.Refused(meta)
}

// fetchCheckpoint fetches the checkpoints of the session, and the files and refs of the checkpoint at, from which the
// mount starts. all has the refs of the session remote. The function based waits until the base commit was fetched.
func (t *Target) fetchCheckpoint(ctx context.Context, repo *session.Repo, s *Start, at string, layout session.Layout,
	all map[string]object.ID, based func() error) error {
	name := repo.Session()
	// The keys of the map there are the names that branches and tags have in the mount. Notes are shared by all sessions:
	// in the mount, a notes ref starts with its value in the checkpoint, and it is merged with the notes on the session
	// remote when it is pushed.
	there := layout.Mapped(all)
	for ref, id := range all {
		if strings.HasPrefix(ref, session.Prefix) {
			there[ref] = id
		}
	}
	if err := t.fetchCheckpoints(ctx, repo, t.Remote, s.Base, checkpointsOf(name, all)); err != nil {
		return fault.SessionRemote(t.Remote, err)
	}
	if err := setRefs(ctx, repo, there, func(ref string) bool { return isOfCheckpoints(name, ref) }); err != nil {
		return err
	}
	var err error
	if s.Checkpoint, err = Find(repo, at, nil); err != nil {
		return fmt.Errorf("find checkpoint %s: %w", at, err)
	}
	state, err := t.fetchState(ctx, repo, t.Remote, s.Checkpoint, s.Format)
	if err != nil {
		return fault.SessionRemote(t.Remote, err)
	}
	// fetchNewer sends commits of the mounted remote as haves, so the base commit must have been fetched before.
	if err := based(); err != nil {
		return err
	}
	if err := t.fetchNewer(ctx, repo, t.Remote, s, state, there); err != nil {
		return fault.SessionRemote(t.Remote, err)
	}
	return keepBase(ctx, repo, s.Checkpoint)
}

// isOfCheckpoints reports whether ref is a lane segment or a pin of the session called name.
func isOfCheckpoints(name, ref string) bool {
	return strings.HasPrefix(ref, session.LanePrefix(name)) || strings.HasPrefix(ref, session.PinPrefix(name))
}

// checkpointsOf returns the commits of the lane segments and pins of the session called name.
func checkpointsOf(name string, refs map[string]object.ID) (ids []object.ID) {
	for ref, id := range refs {
		if isOfCheckpoints(name, ref) {
			ids = append(ids, id)
		}
	}
	return ids
}

// adopt records for the push queue which refs the session remote has, so that they are not pushed again. there has
// these refs by the names that they have in the mount. adopt must be called before any of these refs is changed on this
// host.
func adopt(repo *session.Repo, remote *thin.Remote, layout session.Layout, there map[string]object.ID,
	claim *agent.AheadClaim) error {
	refs, err := repo.Refs("refs/")
	if err != nil {
		return err
	}
	same := map[string]object.ID{}
	// A ref with the same value on this host and on the session remote need not be pushed.
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

// fetchCheckpoints fetches the checkpoints in the commits tips, with their trees, checkpoint states and history. It
// sends the commit base as a have, so that the server omits the history of the mounted remote.
func (t *Target) fetchCheckpoints(ctx context.Context, repo *session.Repo, remote *thin.Remote, base object.ID,
	tips []object.ID) error {
	var haves []object.ID
	if !base.IsZero() {
		haves = append(haves, base)
	}
	slices.SortFunc(tips, func(a, b object.ID) int { return strings.Compare(a.String(), b.String()) })
	in, err := t.Objects.Fetch(ctx, fetch.FetchRequest{From: remote, Wants: slices.Compact(tips), Haves: haves})
	if err != nil {
		return err
	}
	return repo.AddShallow(in.Shallow)
}

// fetchState fetches the files of the checkpoint state of p, except for staged contents, and returns the state.
func (t *Target) fetchState(ctx context.Context, repo *session.Repo, remote *thin.Remote, p session.Checkpoint,
	f object.Format) (session.State, error) {
	wants, err := StateBlobs(repo, p)
	if err != nil {
		return session.State{}, err
	}
	// The repository is searched for the blobs, and not the store, because the store learns its object format from the
	// mounted remote, which may not have answered yet.
	wants = slices.DeleteFunc(wants, func(id object.ID) bool { _, _, err := repo.Size(id); return err == nil })
	if len(wants) > 0 {
		if _, err := t.Objects.Fetch(ctx, fetch.FetchRequest{From: remote, Wants: wants}); err != nil {
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

// StateBlobs returns the IDs of the files of the checkpoint state of p, except for staged contents.
func StateBlobs(repo *session.Repo, p session.Checkpoint) ([]object.ID, error) {
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
			// The trees index and conflict contain staged contents.
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

// fetchNewer fetches the commits of the session's branches, tags and notes that have another value on the session
// remote than in the checkpoint. Without these commits, changes that were made after the checkpoint would be lost.
func (t *Target) fetchNewer(ctx context.Context, repo *session.Repo, remote *thin.Remote, s *Start,
	state session.State, there map[string]object.ID) error {
	var newer []object.ID
	named := map[string]bool{session.TranscriptRef(repo.Session()): true, session.FactsRef(repo.Session()): true}
	for _, r := range state.Refs {
		named[r.Name] = true
	}
	// Do not request commits of the mounted remote, although a branch may refer to such a commit: a container does not
	// have these commits, and repo.Size finds them only after the store has fetched all of their trees.
	bases := append(remote.Base().Commits, s.Base)
	for ref, id := range there {
		if !named[ref] && !strings.HasPrefix(ref, session.KeptPrefix(repo.Session())) {
			continue
		}
		named[ref] = true
		if _, _, err := repo.Size(id); err != nil && !slices.Contains(bases, id) {
			newer = append(newer, id)
		}
	}
	if len(newer) > 0 {
		in, err := t.Objects.Fetch(ctx, fetch.FetchRequest{From: remote, Wants: newer, Haves: t.haves(s, state)})
		if err == nil {
			err = repo.AddShallow(in.Shallow)
		}
		if err != nil {
			return err
		}
	}
	if err := keepNewer(ctx, repo, s, state, there); err != nil {
		return err
	}
	return setRefs(ctx, repo, there, func(ref string) bool {
		return named[ref] && (s.Newer[ref].IsZero() || s.Own[ref]) && repo.Owned(there[ref])
	})
}

// keepNewer creates refs for the commits of branches, tags and notes that are newer on the session remote than in the
// checkpoint. In the mount, these refs start with their values in the checkpoint, so the newer commits would be
// unreachable. The next push replaces commits that this session has pushed after its last checkpoint, but not commits
// of other sessions.
func keepNewer(ctx context.Context, repo *session.Repo, s *Start, state session.State,
	there map[string]object.ID) error {
	s.Newer, s.Own = map[string]object.ID{}, map[string]bool{}
	var changes []session.RefChange
	for _, r := range state.Refs {
		id := there[r.Name]
		// Skip a ref that the session remote does not have, or whose commit on the session remote is an ancestor of its
		// commit in the checkpoint.
		if id.IsZero() || session.Within(repo, r.ID, id) {
			continue
		}
		s.Newer[r.Name] = id
		if there[session.CarriedRef(repo.Session(), r.Name)] == id {
			s.Own[r.Name] = true
		}
		// A commit of the mounted remote can be fetched again, so it needs no ref that protects it.
		if repo.Owned(id) {
			name := session.KeptPrefix(repo.Session()) + string(session.NewCheckpointID(time.Now()))
			changes = append(changes, session.RefChange{Name: name, New: id})
		}
	}
	if len(changes) == 0 {
		return nil
	}
	return repo.Update(ctx, changes)
}

// maxHaves is the maximum number of commits that one request sends as haves. Each have is one line of the request.
const maxHaves = 256

// haves returns commits that a request can send as haves, because this host has these commits and everything reachable
// from them, or can fetch both from the mounted remote. The base commit is one of them, because the request for the
// checkpoint has fetched only objects that were created in the session.
func (t *Target) haves(s *Start, state session.State) []object.ID {
	known := []object.ID{s.Checkpoint.Commit}
	if !s.Base.IsZero() {
		known = append(known, s.Base)
	}
	for _, r := range slices.Concat(state.Refs, state.Remote) {
		if len(known) == maxHaves {
			break
		}
		if kind, _, err := t.Objects.Size(r.ID); err == nil && kind == object.Commit && !slices.Contains(known, r.ID) {
			known = append(known, r.ID)
		}
	}
	return known
}
