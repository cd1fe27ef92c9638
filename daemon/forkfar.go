package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/session/transcript"
	"github.com/artifactfs/artifactfs/statedir"
)

// A fork of a session that only a session remote has begins as a session does that is resumed from there, with three
// differences: the lane is not claimed, since its writer goes on; the branches are those of the checkpoint, whatever
// became of them since; and nothing of the parent's refs stays, since the new session has its own.

// farOrigin says that a mount is to begin with a checkpoint of a session of a session remote.
type farOrigin struct {
	at      string // session remote; it may hold a secret
	remote  *thin.Remote
	session string
	point   string // as session.Repo.Find has it
	list    *thin.Listing
	there   map[string]object.ID // what list says; nil: it was not read yet
	meta    session.Meta
	format  object.Format
	free    bool // no session of the new session's name is on its session remote
}

// forkPrefixes are those of the refs that a fork of a session begins with.
func forkPrefixes(name string) []string {
	return []string{session.MetaRef(name), session.LanePrefix(name), session.PinPrefix(name), session.TranscriptRef(name), session.FactsRef(name)}
}

// forkFar begins a session at a checkpoint of one that a session remote has, and mounts it.
func (d *Daemon) forkFar(ctx context.Context, r control.ForkRequest, progress func(control.Progress)) (control.MountReply, error) {
	to := r.Mount
	if to.ReadOnly {
		to.Remote, to.Ref, to.Session, to.At, to.SessionOptions.Remote = "", "", r.Of, r.ID, r.SessionRemote
		if to.At == "" {
			to.At = "@"
		}
		return d.Mount(ctx, to, progress)
	}
	from, err := d.lookFar(ctx, r)
	if err != nil {
		return control.MountReply{}, fault.ExplainSessionAt("fork", "session "+r.Of, err)
	}
	defer from.remote.Close()
	to.Ref = ""
	if to.Remote == "" {
		to.Remote = from.meta.Remote
	}
	if to.SessionOptions.Remote == "" {
		to.SessionOptions.Remote = r.SessionRemote
	}
	if err := d.nameFork(&to, r.Of); err != nil {
		return control.MountReply{}, err
	}
	_, reply, err := d.mount(ctx, to, beginning{far: from}, progress)
	return reply, err
}

// lookFar asks a session remote what a session is: three requests.
func (d *Daemon) lookFar(ctx context.Context, r control.ForkRequest) (_ *farOrigin, err error) {
	at := r.Mount
	at.Session, at.SessionOptions.Remote = r.Of, r.SessionRemote
	remote, _, err := d.sessionRemote(at)
	if err != nil {
		return nil, err
	}
	if remote == nil {
		return nil, statedir.ErrNoSession
	}
	defer func() {
		if err != nil {
			remote.Close()
		}
	}()
	f := &farOrigin{at: r.SessionRemote, remote: remote, session: r.Of, point: r.ID}
	if f.point == "" {
		f.point = "@"
	}
	remote.ListAhead(ctx, forkPrefixes(r.Of))
	caps, err := remote.Capabilities(ctx)
	if err != nil {
		return nil, fault.SessionRemote(remote, err)
	}
	f.format = caps.Format
	if f.list, err = remote.List(ctx, forkPrefixes(r.Of)); err != nil {
		return nil, fault.SessionRemote(remote, err)
	}
	id, more := f.list.Has(session.MetaRef(r.Of))
	switch {
	case id.IsZero():
		return nil, fault.NoSuchSessionError{Remote: remote.URL()}
	case !more:
		return nil, fault.ErrNoCheckpoint
	}
	if f.meta, err = d.fetchMeta(ctx, remote, id); err != nil {
		return nil, fault.SessionRemote(remote, err)
	}
	return f, nil
}

// read reads the refs of the session; a container is fetched for that.
func (f *farOrigin) read(ctx context.Context) error {
	refs, err := f.list.Refs(ctx)
	if err != nil {
		return fault.SessionRemote(f.remote, err)
	}
	f.there = map[string]object.ID{}
	for _, ref := range refs {
		f.there[ref.Name] = ref.ID
	}
	if len(f.points()) == 0 {
		return fault.ErrNoCheckpoint
	}
	return nil
}

// isFree reports whether the session remote has no session with the name of the new one. The claim can then
// be pushed after the mount is made: no other machine uses the session.
func (m *mount) isFree(ctx context.Context, f *farOrigin) bool {
	if m.second == nil {
		return false
	}
	to := m.second
	if to.URL() == f.remote.URL() {
		to = f.remote // there is a connection to it
	}
	refs, err := to.Remote.Refs(ctx, []string{session.MetaRef(m.session), thin.Ref(m.session)})
	return err == nil && len(refs.List) == 0
}

// ofPoints says whether a ref leads to checkpoints of the session.
func (f *farOrigin) ofPoints(ref string) bool {
	return strings.HasPrefix(ref, session.LanePrefix(f.session)) || strings.HasPrefix(ref, session.PinPrefix(f.session))
}

func (f *farOrigin) points() (ids []object.ID) {
	for ref, id := range f.there {
		if f.ofPoints(ref) {
			ids = append(ids, id)
		}
	}
	return ids
}

// arriveFork brings the checkpoint that the mount begins with, and what belongs to it.
func (m *mount) arriveFork(ctx context.Context, f *farOrigin, progress func(control.Progress)) (_ *arrival, err error) {
	progress(control.Progress{Phase: "session"})
	repo, err := session.OpenRepo(m.sessionRepoDir(), m.repoOptions(f.format, f.session))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, repo.Close()) }()
	a := &arrival{ref: f.meta.Ref, format: f.format}
	if f.meta.Base != "" {
		if a.base, err = object.ParseID(f.meta.Base); err != nil {
			return nil, fmt.Errorf("read session %s: %w", f.session, err)
		}
	}
	based, stop := m.acquireBeside(ctx, a)
	defer stop()
	free := make(chan bool, 1)
	go func() { free <- m.isFree(ctx, f) }()
	err = m.bringParent(ctx, repo, f, a)
	baseErr := based()
	f.free = <-free
	switch {
	case err != nil:
		return nil, err
	case baseErr != nil:
		return nil, baseErr
	}
	if m.second == nil || m.second.URL() != f.remote.URL() {
		a.from = f.at
	}
	return a, m.forkRefs(ctx, repo, f.session, forkedRefs{f.there[session.TranscriptRef(f.session)], f.there[session.FactsRef(f.session)]}, a.point)
}

// bringParent brings what the session remote has of the parent.
func (m *mount) bringParent(ctx context.Context, repo *session.Repo, f *farOrigin, a *arrival) error {
	if err := f.read(ctx); err != nil {
		return err
	}
	recorded := make(chan error, 1)
	go func() { recorded <- m.bringTranscript(ctx, f) }()
	err := m.bringPoints(ctx, repo, f.remote, a.base, f.points())
	if err == nil {
		err = m.bringForked(ctx, repo, f, a)
	}
	if recordErr := <-recorded; err == nil && recordErr != nil {
		err = fault.SessionRemote(f.remote, recordErr)
	}
	return err
}

// bringTranscript brings what was recorded in the parent, and its facts, with contents: the fork adds to them.
func (m *mount) bringTranscript(ctx context.Context, f *farOrigin) error {
	var wants []object.ID
	for _, ref := range []string{session.TranscriptRef(f.session), session.FactsRef(f.session)} {
		if tip := f.there[ref]; !tip.IsZero() {
			wants = append(wants, tip)
		}
	}
	if len(wants) == 0 {
		return nil
	}
	_, err := m.owned.Bring(ctx, fetch.BringRequest{From: f.remote, Wants: wants, Contents: true})
	return err
}

// bringForked finds the checkpoint among what was brought, and brings the small files of its State.
func (m *mount) bringForked(ctx context.Context, repo *session.Repo, f *farOrigin, a *arrival) error {
	if err := setRefs(ctx, repo, f.there, f.ofPoints); err != nil {
		return err
	}
	var err error
	if a.point, err = repo.Find(f.point); err != nil {
		return fmt.Errorf("find %s: %w", f.point, err)
	}
	if _, err = m.bringState(ctx, repo, f.remote, a.point, a.format); err != nil {
		return fault.SessionRemote(f.remote, err)
	}
	return nil
}

// forkedRefs are tips of the parent that a fork takes along; zero: the parent has none.
type forkedRefs struct{ transcript, facts object.ID }

// forkRefs has the repository be the new session's: it keeps the checkpoint that the session begins with, what was recorded
// of the parent up to it and the parent's facts, and none of the parent's own refs.
func (m *mount) forkRefs(ctx context.Context, repo *session.Repo, parent string, tips forkedRefs, p session.Point) error {
	changes := []session.RefChange{{Name: session.BaseRef(m.session), New: p.Commit, Force: true}}
	until, err := transcript.Until(repo, tips.transcript, p.ID)
	if err != nil {
		return fmt.Errorf("read the transcript of session %s: %w", parent, err)
	}
	kept := []string{session.BaseRef(m.session)}
	for ref, id := range map[string]object.ID{session.TranscriptRef(m.session): until, session.FactsRef(m.session): tips.facts} {
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

// nameFork sees that the session of a fork is a new one.
func (d *Daemon) nameFork(to *control.MountRequest, of string) error {
	if to.Session == "" {
		to.Session = statedir.SessionName(fault.WithoutSecrets(to.Remote), filepath.Clean(to.Dir))
	}
	if _, err := statedir.ReadRecord(filepath.Join(d.homes.Dir(), to.Session)); !errors.Is(err, fs.ErrNotExist) {
		e := fault.ExplainSession("fork", of, fmt.Errorf("%w: %s", fault.ErrSessionExists, to.Session))
		e.Hint = "choose another name with --session NAME"
		return e
	}
	return nil
}
