package resume

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/session/transcript"
)

// A fork of a session that exists only on a session remote starts like a session that is resumed from a session remote,
// with three differences. The lane is not claimed, because the parent's writer continues to use it. Each branch starts
// with its commit in the checkpoint, even if the branch has changed since. The refs of the parent are removed, because
// the fork has its own refs.

// Parent is the parent session, on a session remote, of a fork that is about to be created.
type Parent struct {
	Remote     *thin.Remote         // session remote of the parent
	Session    string               // name of the parent
	Meta       session.Meta         // metadata of the parent
	checkpoint string               // name of the checkpoint, in the form that Find accepts
	list       *thin.Listing        // refs of the session remote
	refs       map[string]object.ID // refs in list, by name; nil before the method read
	format     object.Format        // object format of the session remote
	free       bool                 // whether the fork's session remote has no session with the name of the fork
}

// forkPrefixes returns the prefixes of the names of the refs that a fork of the session called name needs.
func forkPrefixes(name string) []string {
	return []string{session.MetaRef(name), session.LanePrefix(name), session.PinPrefix(name), session.TranscriptRef(name),
		session.FactsRef(name)}
}

// Look reads the metadata of the session called name, which is to be forked, from its session remote, in three
// requests. ok is false if the session remote does not have the session. checkpoint names the checkpoint to fork; ""
// stands for the newest one. Temporary files are created in the directory dir.
func Look(ctx context.Context, dir string, remote *thin.Remote,
	name, checkpoint string) (p *Parent, ok bool, err error) {
	p = &Parent{Remote: remote, Session: name, checkpoint: checkpoint}
	// A link that names no checkpoint forks the newest one.
	if p.checkpoint == "" {
		p.checkpoint = "@"
	}
	remote.ListAhead(ctx, forkPrefixes(name))
	caps, err := remote.Capabilities(ctx)
	if err != nil {
		return nil, false, fault.SessionRemote(remote, err)
	}
	p.format = caps.Format
	if p.list, err = remote.List(ctx, forkPrefixes(name)); err != nil {
		return nil, false, fault.SessionRemote(remote, err)
	}
	id, more := p.list.Has(session.MetaRef(name))
	switch {
	case id.IsZero():
		return nil, false, nil
	case !more:
		return nil, false, fault.ErrNoCheckpoint
	}
	if p.Meta, err = ReadMeta(ctx, dir, remote, id); err != nil {
		return nil, false, fault.SessionRemote(remote, err)
	}
	return p, true, nil
}

// Free reports whether the session remote of the fork has no session with the name of the fork. Then no other machine
// uses the session, and the claim can be pushed after the mount has started. Free must be called after Fork.
func (p *Parent) Free() bool { return p.free }

// read reads the refs of the parent into p.refs. If the parent is stored in a container, which is one commit with the
// objects of a session, read fetches the container.
func (p *Parent) read(ctx context.Context) error {
	refs, err := p.list.Refs(ctx)
	if err != nil {
		return fault.SessionRemote(p.Remote, err)
	}
	p.refs = map[string]object.ID{}
	for _, ref := range refs {
		p.refs[ref.Name] = ref.ID
	}
	if len(checkpointsOf(p.Session, p.refs)) == 0 {
		return fault.ErrNoCheckpoint
	}
	return nil
}

// Fork fetches the parent's checkpoint from which the mount starts, with everything that belongs to it. The parameter
// at is the URL of the parent's session remote, possibly with a secret.
func (t *Target) Fork(ctx context.Context, p *Parent, at string) (_ *Start, err error) {
	repo, err := session.OpenRepo(t.RepoDir, t.RepoOptions(p.format, p.Session))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, repo.Close()) }()
	s := &Start{Ref: p.Meta.Ref, Format: p.format}
	if s.Base, err = baseCommit(p.Meta); err != nil {
		return nil, err
	}
	based, stop := t.acquireBeside(ctx, s)
	defer stop()
	// While the parent is being fetched, check whether the session remote of the fork has a session with the name of the
	// fork.
	free := make(chan bool, 1)
	go func() { free <- t.isFree(ctx, p) }()
	err = t.fetchParent(ctx, repo, p, s)
	baseErr := based()
	p.free = <-free
	switch {
	case err != nil:
		return nil, err
	case baseErr != nil:
		return nil, baseErr
	}
	// Contents that the parent owns are missing on another session remote, so they are fetched from the parent's session
	// remote.
	if t.Remote == nil || t.Remote.URL() != p.Remote.URL() {
		s.ContentsFrom = at
	}
	tips := parentTips{p.refs[session.TranscriptRef(p.Session)], p.refs[session.FactsRef(p.Session)]}
	return s, t.forkRefs(ctx, repo, p.Session, tips, s.Checkpoint)
}

// isFree reports whether the fork's session remote has no session with the name of the fork. It returns false if the
// session remote does not answer.
func (t *Target) isFree(ctx context.Context, p *Parent) bool {
	if t.Remote == nil {
		return false
	}
	to := t.Remote
	if to.URL() == p.Remote.URL() {
		to = p.Remote // the fork uses the same session remote as the parent, and this connection is already open
	}
	refs, err := to.Remote.Refs(ctx, []string{session.MetaRef(t.Session), thin.Ref(t.Session)})
	return err == nil && len(refs.List) == 0
}

// fetchParent fetches the checkpoints of the parent and, concurrently, its transcript and facts.
func (t *Target) fetchParent(ctx context.Context, repo *session.Repo, p *Parent, s *Start) error {
	if err := p.read(ctx); err != nil {
		return err
	}
	recorded := make(chan error, 1)
	go func() { recorded <- t.fetchTranscript(ctx, p) }()
	err := t.fetchCheckpoints(ctx, repo, p.Remote, s.Base, checkpointsOf(p.Session, p.refs))
	if err == nil {
		err = t.findForked(ctx, repo, p, s)
	}
	if recordErr := <-recorded; err == nil && recordErr != nil {
		err = fault.SessionRemote(p.Remote, recordErr)
	}
	return err
}

// fetchTranscript fetches the transcript and the facts of the parent with their contents, because the fork appends to
// them.
func (t *Target) fetchTranscript(ctx context.Context, p *Parent) error {
	var wants []object.ID
	for _, ref := range []string{session.TranscriptRef(p.Session), session.FactsRef(p.Session)} {
		if tip := p.refs[ref]; !tip.IsZero() {
			wants = append(wants, tip)
		}
	}
	if len(wants) == 0 {
		return nil
	}
	_, err := t.Objects.Fetch(ctx, fetch.FetchRequest{From: p.Remote, Wants: wants, Contents: true})
	return err
}

// findForked sets s.Checkpoint to the checkpoint to fork, which must be on this host, and fetches the files of its
// checkpoint state.
func (t *Target) findForked(ctx context.Context, repo *session.Repo, p *Parent, s *Start) error {
	if err := setRefs(ctx, repo, p.refs, func(ref string) bool { return isOfCheckpoints(p.Session, ref) }); err != nil {
		return err
	}
	var err error
	if s.Checkpoint, err = repo.Find(p.checkpoint); err != nil {
		return fmt.Errorf("find checkpoint %s: %w", p.checkpoint, err)
	}
	if _, err = t.fetchState(ctx, repo, p.Remote, s.Checkpoint, s.Format); err != nil {
		return fault.SessionRemote(p.Remote, err)
	}
	return nil
}

// parentTips has the commits of the parent's transcript and facts, from which those of the fork start. A commit is zero
// if the parent has no transcript or facts.
type parentTips struct{ transcript, facts object.ID }

// forkRefs changes the repository of the parent into that of the fork. It creates refs for the checkpoint p, from which
// the fork starts, for the parent's transcript up to this checkpoint, and for the parent's facts. Then it removes all
// refs of the parent.
func (t *Target) forkRefs(ctx context.Context, repo *session.Repo, parent string, tips parentTips,
	p session.Checkpoint) error {
	changes := []session.RefChange{{Name: session.BaseRef(t.Session), New: p.Commit, Force: true}}
	until, err := transcript.Until(repo, tips.transcript, p.ID)
	if err != nil {
		return fmt.Errorf("read transcript of session %s: %w", parent, err)
	}
	kept := []string{session.BaseRef(t.Session)}
	for ref, id := range map[string]object.ID{session.TranscriptRef(t.Session): until,
		session.FactsRef(t.Session): tips.facts} {
		if kept = append(kept, ref); !id.IsZero() {
			changes = append(changes, session.RefChange{Name: ref, New: id, Force: true})
		}
	}
	refs, err := repo.Refs(session.Prefix)
	if err != nil {
		return err
	}
	for _, r := range refs {
		if !slices.Contains(kept, r.Name) {
			changes = append(changes, session.RefChange{Name: r.Name, Old: r.ID})
		}
	}
	return repo.Update(ctx, changes)
}
