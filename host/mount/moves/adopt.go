package moves

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/treediff"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/mount/origin"
	"github.com/artifactfs/artifactfs/host/remotes"
	"github.com/artifactfs/artifactfs/host/session/catalog"
	"github.com/artifactfs/artifactfs/host/session/resume"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/mirror"
)

// Before a mount restores or merges a checkpoint of another session, it adopts that checkpoint: it copies the
// checkpoint's objects to the repository of its own session, and creates a local ref (session.AdoptedRef) that protects
// the objects from garbage collection. After that, the ID of the checkpoint can be looked up in the repository of the
// mount's own session.

// adopted is a checkpoint of another session whose commit and trees were copied to the repository of the mount's own
// session.
type adopted struct {
	checkpoint session.Checkpoint
	meta       session.Meta // metadata of the session to which the checkpoint belongs
}

// adopt finds the checkpoint id in the session called of, and copies its objects to the repository of the mount's
// session. at is the URL of the session remote that has the other session, or "" if it is on this host. A checkpoint of
// the mount's own session is not copied. adopt returns fault.ErrOtherRemote if the other session belongs to a different
// mounted remote.
//
// adopt creates the ref after all objects are stored. If the process crashes before that, no ref leads to the copied
// objects, and the request can be repeated.
func (m *Mover) adopt(ctx context.Context, of, at, id string) (a adopted, err error) {
	repo, err := m.Mount.Agent.Open(ctx)
	if err != nil {
		return a, err
	}
	// A checkpoint of the mount's own session is already in this repository.
	if of == m.Mount.Session && at == "" {
		if a.checkpoint, err = catalog.Find(ctx, repo, m.Mount, id); err == nil {
			a.meta, _, err = session.ReadMeta(repo, m.Mount.Session)
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
	adopted := session.AdoptedRef(m.Mount.Session, a.checkpoint.ID)
	return a, repo.Update(ctx, []session.RefChange{{Name: adopted, New: a.checkpoint.Commit, Force: true}})
}

// adoptHere adopts the checkpoint id of another session on this host, called of. It hard-links the object files of that
// session.
func (m *Mover) adoptHere(ctx context.Context, repo *session.Repo, of, id string) (a adopted, err error) {
	h, err := m.HomeOf(of)
	if err != nil {
		return a, err
	}
	if h.Record.Remote != m.Mount.Record.Remote {
		return a, fmt.Errorf("%w: %s", fault.ErrOtherRemote, h.Record.Remote)
	}
	if a.checkpoint, err = h.Find(ctx, id); err == nil && a.checkpoint.ID == "" {
		err = fault.ErrNoCheckpoint
	}
	if err != nil {
		return a, err
	}
	theirs, err := h.Open()
	if err != nil {
		return a, err
	}
	defer theirs.Close()
	if a.meta, _, err = session.ReadMeta(theirs, h.Session); err != nil {
		return a, err
	}
	for try := 1; ; try++ { // a repack may remove a pack before the pack is linked; then a new pack contains its objects
		err = resume.LinkOnce(filepath.Join(h.Dir, statedir.SessionRepoName, "objects"), origin.SessionObjects(m.Mount.Home))
		if !errors.Is(err, fs.ErrNotExist) || try == 10 {
			break
		}
	}
	shallow, shallowErr := theirs.Shallow()
	if err = errors.Join(err, shallowErr); err == nil {
		err = repo.AddShallow(shallow)
	}
	if err == nil {
		err = m.refreshObjects(repo)
	}
	if err != nil {
		return a, fmt.Errorf("share the objects of session %s: %w", h.Session, err)
	}
	// Contents of the other session may be only on its session remote, for example if that session was resumed from there.
	if at, _ := remotes.SessionURL(control.MountRequest{Remote: h.Record.Remote, SessionOptions: h.Carried}); at != "" {
		return a, m.adoptContents(ctx, at, h.Session, a.checkpoint)
	}
	return a, nil
}

// refreshObjects makes repo and m.Mount.Owned, the two readers of the session repository, find packs that were added in
// other ways, for example by hard links.
func (m *Mover) refreshObjects(repo *session.Repo) error {
	packs, err := repo.Packs()
	if err == nil {
		err = packs.Refresh()
	}
	if err == nil {
		err = m.Mount.Owned.Refresh()
	}
	return err
}

// adoptFar adopts the checkpoint id of a session called of on the session remote with the URL at. It fetches the
// checkpoint's commits and trees, and calls adoptFrom to make its contents available.
func (m *Mover) adoptFar(ctx context.Context, repo *session.Repo, of, at, id string) (a adopted, err error) {
	all := m.Catalog
	far, err := all.MirrorOf(ctx, at, of)
	if err != nil {
		return a, err
	}
	defer all.CloseMirror(far)
	o, err := catalog.OpenFar(ctx, far, of, false)
	if err != nil {
		return a, err
	}
	if a.meta, _ = far.Meta(of); a.meta.Remote != m.Mount.Record.Remote {
		return a, fmt.Errorf("%w: %s", fault.ErrOtherRemote, a.meta.Remote)
	}
	if a.checkpoint, err = o.Find(ctx, id); err != nil {
		return a, err
	}
	r := fetch.FetchRequest{From: far.Remote(), Wants: []object.ID{a.checkpoint.Commit}}
	// If this repository has the base commit, the session remote need not send the objects that are reachable from it.
	if base, err := object.ParseID(a.meta.Base); err == nil {
		if _, err := repo.Commit(base); err == nil {
			r.Haves = []object.ID{base}
		}
	}
	in, err := m.Mount.Owned.Fetch(ctx, r)
	if err == nil {
		err = repo.AddShallow(in.Shallow)
	}
	if err != nil {
		return a, fault.SessionRemote(far.Remote(), err)
	}
	if err := m.refreshObjects(repo); err != nil {
		return a, err
	}
	return a, m.adoptFrom(ctx, far.Remote(), a.checkpoint)
}

// adoptContents opens the session remote with the URL at, and calls adoptFrom with it. of is the name of the session of
// the checkpoint p. It does nothing if at is not the URL of a session remote.
func (m *Mover) adoptContents(ctx context.Context, at, of string, p session.Checkpoint) error {
	remote, _, err := m.Remotes.Session(control.MountRequest{Session: of,
		SessionOptions: control.SessionOptions{Remote: at}})
	if err != nil || remote == nil {
		return err
	}
	defer remote.Close()
	return m.adoptFrom(ctx, remote, p)
}

// adoptFrom makes the contents of the checkpoint p that differ from the base tree readable in this mount. If remote is
// also the session remote of the mount's session, missing contents are registered, and fetched from there when they are
// read. Otherwise they are fetched at once, because the next checkpoint has to push them to the session remote of the
// mount's session. A failed fetch is only logged.
func (m *Mover) adoptFrom(ctx context.Context, remote mirror.Remote, p session.Checkpoint) error {
	base, err := m.Mount.Record.Base()
	if err != nil {
		return err
	}
	var ids []object.ID
	err = treediff.Trees(ctx, m.Contents.View.Tree, base.Tree, p.Tree, func(_ string, _, to object.TreeEntry) error {
		if to.Mode.IsBlob() {
			ids = append(ids, to.ID)
		}
		return nil
	})
	if ids = m.Mount.Owned.Missing(ids); err != nil || len(ids) == 0 {
		return err
	}
	if m.Contents.Objects.SessionRemote != nil && m.Contents.Objects.SessionRemote.URL() == remote.URL() {
		m.Mount.Owned.Expect(ids)
		return nil
	}
	// A failed fetch is only logged, because contents that also exist on the mounted remote can be fetched from there when
	// they are read.
	if _, err := m.Mount.Owned.Fetch(ctx, fetch.FetchRequest{From: remote, Wants: ids}); err != nil {
		m.Log.Info("fetch contents of another session", zap.String("session", m.Mount.Session), zap.Error(err))
	}
	return nil
}
