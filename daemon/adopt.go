package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/mount/remotes"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/catalog"
	"github.com/artifactfs/artifactfs/session/mirror"
	"github.com/artifactfs/artifactfs/session/resume"
	"github.com/artifactfs/artifactfs/session/treediff"
	"github.com/artifactfs/artifactfs/statedir"
)

// A mount adopts a checkpoint of another session before it restores or merges it: it copies the checkpoint's objects into the
// repository of its own session, and creates a local ref (session.AdoptedRef) that keeps them from gc. From then on the
// checkpoint is found there by its id.

// adopted is a checkpoint of another session whose commit and trees are in the repository of the mount's own session.
type adopted struct {
	checkpoint session.Checkpoint
	meta       session.Meta // metadata of the other session
}

// adopt finds a checkpoint by id in the session named by of, and copies its objects into the repository of the mount's session.
// at is the URL of the session remote that has the other session; "" means a session on this host. A checkpoint of the mount's
// own session is only looked up. adopt returns fault.ErrOtherRemote if the other session is of another mounted remote.
//
// It creates the ref last: after a crash before that, no ref keeps the objects, and the request can be repeated.
func (m *mount) adopt(ctx context.Context, of, at, id string) (a adopted, err error) {
	repo, err := m.agent.Open(ctx)
	if err != nil {
		return a, err
	}
	// A checkpoint of the mount's own session is already in this repository.
	if of == m.session && at == "" {
		if a.checkpoint, err = catalog.Find(ctx, repo, m.listed(), id); err == nil {
			a.meta, _, err = session.ReadMeta(repo, m.session)
		}
		return a, err
	}
	if at == "" {
		a, err = m.adoptHere(ctx, repo, of, id)
	} else {
		a, err = m.adoptFar(ctx, repo, of, at, id)
	}
	if err != nil {
		return a, err
	}
	adopted := session.AdoptedRef(m.session, a.checkpoint.ID)
	return a, repo.Update(ctx, []session.RefChange{{Name: adopted, New: a.checkpoint.Commit, Force: true}})
}

// adoptHere adopts a checkpoint of another session of this host. It hard-links that session's object files instead of copying
// them.
func (m *mount) adoptHere(ctx context.Context, repo *session.Repo, of, id string) (a adopted, err error) {
	h, err := m.daemon.homeOf(of)
	if err != nil {
		return a, err
	}
	if h.record.Remote != m.record.Remote {
		return a, fmt.Errorf("%w: %s", fault.ErrOtherRemote, h.record.Remote)
	}
	if a.checkpoint, err = h.find(ctx, id); err == nil && a.checkpoint.ID == "" {
		err = fault.ErrNoCheckpoint
	}
	if err != nil {
		return a, err
	}
	theirs, err := h.open()
	if err != nil {
		return a, err
	}
	defer theirs.Close()
	if a.meta, _, err = session.ReadMeta(theirs, h.session); err != nil {
		return a, err
	}
	for try := 1; ; try++ { // a repack may remove a pack while it is linked; its objects are then in a new pack
		err = resume.LinkOnce(filepath.Join(h.dir, statedir.SessionRepoName, "objects"), m.sessionObjects())
		if !errors.Is(err, fs.ErrNotExist) || try == 10 {
			break
		}
	}
	shallow, shallowErr := theirs.Shallow()
	if err = errors.Join(err, shallowErr); err == nil {
		err = repo.AddShallow(shallow)
	}
	if err == nil {
		err = m.sawObjects(repo)
	}
	if err != nil {
		return a, fmt.Errorf("share the objects of session %s: %w", h.session, err)
	}
	// The other session may itself have contents only on its session remote, for example if it was resumed from there.
	if at, _ := remotes.SessionURL(control.MountRequest{Remote: h.record.Remote, SessionOptions: h.carried}); at != "" {
		return a, m.adoptContents(ctx, at, h.session, a.checkpoint)
	}
	return a, nil
}

// sawObjects makes the readers of the session's objects look for new packs. It is called after objects were added in a way that
// these readers do not see.
func (m *mount) sawObjects(repo *session.Repo) error {
	packs, err := repo.Packs()
	if err == nil {
		err = packs.Refresh()
	}
	if err == nil {
		err = m.owned.Refresh()
	}
	return err
}

// adoptFar adopts a checkpoint of a session that is on the session remote with the URL at. It fetches commits and trees;
// adoptFrom arranges for the contents.
func (m *mount) adoptFar(ctx context.Context, repo *session.Repo, of, at, id string) (a adopted, err error) {
	d := m.daemon
	far, err := d.Catalog.MirrorOf(ctx, at, of)
	if err != nil {
		return a, err
	}
	defer d.Catalog.CloseMirror(far)
	o, err := catalog.OpenFar(ctx, far, of, false)
	if err != nil {
		return a, err
	}
	if a.meta, _ = far.Meta(of); a.meta.Remote != m.record.Remote {
		return a, fmt.Errorf("%w: %s", fault.ErrOtherRemote, a.meta.Remote)
	}
	if a.checkpoint, err = o.Find(ctx, id); err != nil {
		return a, err
	}
	r := fetch.FetchRequest{From: far.Remote(), Wants: []object.ID{a.checkpoint.Commit}}
	// The session remote need not send what the base commit reaches, if this repository has that commit.
	if base, err := object.ParseID(a.meta.Base); err == nil {
		if _, err := repo.Commit(base); err == nil {
			r.Haves = []object.ID{base}
		}
	}
	in, err := m.owned.Fetch(ctx, r)
	if err == nil {
		err = repo.AddShallow(in.Shallow)
	}
	if err != nil {
		return a, fault.SessionRemote(far.Remote(), err)
	}
	if err := m.sawObjects(repo); err != nil {
		return a, err
	}
	return a, m.adoptFrom(ctx, far.Remote(), a.checkpoint)
}

// adoptContents calls adoptFrom for the session remote with the URL at, which has the session named by of.
func (m *mount) adoptContents(ctx context.Context, at, of string, p session.Checkpoint) error {
	remote, _, err := m.daemon.remotes.Session(control.MountRequest{Session: of, SessionOptions: control.SessionOptions{Remote: at}})
	if err != nil || remote == nil {
		return err
	}
	defer remote.Close()
	return m.adoptFrom(ctx, remote, p)
}

// adoptFrom makes the contents readable that checkpoint p has and that neither this host nor the mounted remote is known to
// have. If remote is the session remote of this session as well, they are fetched when they are read. Otherwise they are
// fetched now, since the next checkpoint of this session pushes them to its own session remote. A failed fetch is only logged.
func (m *mount) adoptFrom(ctx context.Context, remote mirror.Remote, p session.Checkpoint) error {
	base, err := m.record.Base()
	if err != nil {
		return err
	}
	var ids []object.ID
	err = treediff.Trees(ctx, m.view.Tree, base.Tree, p.Tree, func(_ string, _, to object.TreeEntry) error {
		if to.Mode.IsBlob() {
			ids = append(ids, to.ID)
		}
		return nil
	})
	if ids = m.owned.Missing(ids); err != nil || len(ids) == 0 {
		return err
	}
	if m.sessionRemote != nil && m.sessionRemote.URL() == remote.URL() {
		m.owned.Expect(ids)
		return nil
	}
	// A failure is not fatal: contents that the mounted remote has as well are fetched from there when they are read.
	if _, err := m.owned.Fetch(ctx, fetch.FetchRequest{From: remote, Wants: ids}); err != nil {
		m.daemon.log.Info("fetch contents of another session", zap.String("session", m.session), zap.Error(err))
	}
	return nil
}
