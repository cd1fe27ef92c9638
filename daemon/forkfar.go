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
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/session/transcript"
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
	there   map[string]object.ID
	meta    session.Meta
	format  object.Format
}

// forkPrefixes are those of the refs that a fork of a session begins with.
func forkPrefixes(name string) []string {
	return []string{session.MetaRef(name), session.LanePrefix(name), session.PinPrefix(name), session.TranscriptRef(name)}
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
		return control.MountReply{}, explainAt("fork", "session "+r.Of, err)
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
		return nil, errNoSession
	}
	defer func() {
		if err != nil {
			remote.Close()
		}
	}()
	f := &farOrigin{at: r.SessionRemote, remote: remote, session: r.Of, point: r.ID, there: map[string]object.ID{}}
	if f.point == "" {
		f.point = "@"
	}
	caps, err := remote.Capabilities(ctx)
	if err != nil {
		return nil, sessionFault(remote, err)
	}
	f.format = caps.Format
	refs, err := remote.Refs(ctx, forkPrefixes(r.Of))
	if err != nil {
		return nil, sessionFault(remote, err)
	}
	for _, ref := range refs.List {
		f.there[ref.Name] = ref.ID
	}
	id, ok := f.there[session.MetaRef(r.Of)]
	if !ok {
		return nil, noSuchSession{remote.URL()}
	}
	if len(f.points()) == 0 {
		return nil, errNothingCarried
	}
	if f.meta, err = d.fetchMeta(ctx, remote, id); err != nil {
		return nil, sessionFault(remote, err)
	}
	return f, nil
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
	m.store.Approach()
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
	based := make(chan error, 1)
	go func() { based <- m.acquireBase(ctx, a) }()
	recorded := make(chan error, 1)
	go func() { recorded <- m.bringTranscript(ctx, f) }()
	err = m.bringPoints(ctx, repo, f.remote, a.base, f.points())
	if err == nil {
		err = m.bringForked(ctx, repo, f, a)
	}
	baseErr, recordErr := <-based, <-recorded
	switch {
	case err != nil:
		return nil, err
	case baseErr != nil:
		return nil, baseErr
	case recordErr != nil:
		return nil, sessionFault(f.remote, recordErr)
	}
	if m.second == nil || m.second.URL() != f.remote.URL() {
		a.from = f.at
	}
	return a, m.forkRefs(ctx, repo, f.session, f.there[session.TranscriptRef(f.session)], a.point)
}

// bringTranscript brings what was recorded in the parent, with contents: the fork adds to it.
func (m *mount) bringTranscript(ctx context.Context, f *farOrigin) error {
	tip, ok := f.there[session.TranscriptRef(f.session)]
	if !ok {
		return nil
	}
	_, err := m.owned.Bring(ctx, fetch.BringRequest{From: f.remote, Wants: []object.ID{tip}, Contents: true})
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
	wants, err := stateBlobs(repo, a.point)
	if err != nil {
		return err
	}
	if wants = m.owned.Missing(wants); len(wants) > 0 {
		if _, err := m.owned.Bring(ctx, fetch.BringRequest{From: f.remote, Wants: wants}); err != nil {
			return sessionFault(f.remote, err)
		}
	}
	state, err := repo.State(a.point)
	if err != nil {
		return err
	}
	tags, err := state.TagObjects(a.format)
	if err != nil {
		return err
	}
	return repo.Write(ctx, tags)
}

// forkRefs has the repository be the new session's: it keeps the checkpoint that the session begins with and what was recorded
// of the parent up to it, whose transcript ends at recorded, and none of the parent's own refs.
func (m *mount) forkRefs(ctx context.Context, repo *session.Repo, parent string, recorded object.ID, p session.Point) error {
	changes := []session.RefChange{{Name: session.BaseRef(m.session), New: p.Commit, Force: true}}
	until, err := transcript.Until(repo, recorded, p.ID)
	if err != nil {
		return fmt.Errorf("read the transcript of session %s: %w", parent, err)
	}
	if !until.IsZero() {
		changes = append(changes, session.RefChange{Name: session.TranscriptRef(m.session), New: until, Force: true})
	}
	kept := []string{session.BaseRef(m.session), session.TranscriptRef(m.session)}
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
		to.Session = SessionName(secretFree(to.Remote), filepath.Clean(to.Dir))
	}
	if _, err := readRecord(filepath.Join(d.homes.dir(), to.Session)); !errors.Is(err, fs.ErrNotExist) {
		e := explainCarry("fork", of, fmt.Errorf("%w: %s", errSessionExists, to.Session))
		e.Hint = "--session NAME gives it another name"
		return e
	}
	return nil
}
