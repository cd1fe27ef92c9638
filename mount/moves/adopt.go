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
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/mount/origin"
	"github.com/artifactfs/artifactfs/mount/remotes"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/catalog"
	"github.com/artifactfs/artifactfs/session/mirror"
	"github.com/artifactfs/artifactfs/session/resume"
	"github.com/artifactfs/artifactfs/session/treediff"
	"github.com/artifactfs/artifactfs/statedir"
)

// Before a mount restores or merges a checkpoint of another session, it adopts that checkpoint: it copies the checkpoint's
// objects into the repository of its own session, and creates a local ref (session.AdoptedRef) that protects the objects from
// garbage collection. After that, the checkpoint can be found in the mount's own repository by its id.

// adopted is a checkpoint of another session whose commit and trees are in the repository of the mount's own session.
type adopted struct {
	checkpoint session.Checkpoint
	meta       session.Meta // metadata of the other session
}

// adopt finds the checkpoint with the given id in another session and copies its objects into the repository of the mount's
// session. The parameter of is the id of the other session. The parameter at is the URL of the session remote that stores the
// other session; if it is empty, the session is on this host. A checkpoint of the mount's own session is looked up and not
// copied. adopt returns fault.ErrOtherRemote if the other session was started from a different mounted remote.
//
// adopt creates the ref after all objects are stored. If the process crashes before that, the copied objects are unreferenced,
// and the request can be repeated.
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

// adoptHere adopts the checkpoint with the given id from another session on this host. It hard-links the object files of the
// other session instead of copying them.
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
	for try := 1; ; try++ { // a repack may remove a pack while it is linked; its objects are then in a new pack
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
		err = m.sawObjects(repo)
	}
	if err != nil {
		return a, fmt.Errorf("share the objects of session %s: %w", h.Session, err)
	}
	// Some contents of the other session may be stored only on its session remote, for example if that session was resumed from
	// there.
	if at, _ := remotes.SessionURL(control.MountRequest{Remote: h.Record.Remote, SessionOptions: h.Carried}); at != "" {
		return a, m.adoptContents(ctx, at, h.Session, a.checkpoint)
	}
	return a, nil
}

// sawObjects makes the readers of the session's objects rescan the pack directory. The caller has just added objects by a route
// that bypasses these readers, for example by hard-linking packs.
func (m *Mover) sawObjects(repo *session.Repo) error {
	packs, err := repo.Packs()
	if err == nil {
		err = packs.Refresh()
	}
	if err == nil {
		err = m.Mount.Owned.Refresh()
	}
	return err
}

// adoptFar adopts a checkpoint of a session that is stored on a session remote, whose URL is the parameter at. It fetches the
// checkpoint's commits and trees, and calls adoptFrom to make the contents available.
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
	// If this repository has the base commit, the session remote need not send the objects that are reachable from the base
	// commit.
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
	if err := m.sawObjects(repo); err != nil {
		return a, err
	}
	return a, m.adoptFrom(ctx, far.Remote(), a.checkpoint)
}

// adoptContents opens the session remote whose URL is the parameter at, and calls adoptFrom with it. The parameter of is the id
// of the session that checkpoint p belongs to. It returns nil if that URL leads to no session remote.
func (m *Mover) adoptContents(ctx context.Context, at, of string, p session.Checkpoint) error {
	remote, _, err := m.Remotes.Session(control.MountRequest{Session: of, SessionOptions: control.SessionOptions{Remote: at}})
	if err != nil || remote == nil {
		return err
	}
	defer remote.Close()
	return m.adoptFrom(ctx, remote, p)
}

// adoptFrom makes the changed contents of checkpoint p readable in this mount. It considers the contents that differ from the
// base tree and are missing among the session's own objects. If remote is also the session remote of this session, the missing
// contents are registered and fetched when they are read. Otherwise they are fetched now, because the next checkpoint of this
// session has to push them to its own session remote. A failed fetch is logged and is not an error.
func (m *Mover) adoptFrom(ctx context.Context, remote mirror.Remote, p session.Checkpoint) error {
	base, err := m.Mount.Record.Base()
	if err != nil {
		return err
	}
	var ids []object.ID
	err = treediff.Trees(ctx, m.View.Tree, base.Tree, p.Tree, func(_ string, _, to object.TreeEntry) error {
		if to.Mode.IsBlob() {
			ids = append(ids, to.ID)
		}
		return nil
	})
	if ids = m.Mount.Owned.Missing(ids); err != nil || len(ids) == 0 {
		return err
	}
	if m.SessionRemote != nil && m.SessionRemote.URL() == remote.URL() {
		m.Mount.Owned.Expect(ids)
		return nil
	}
	// A failed fetch is not fatal: contents that also exist on the mounted remote are fetched from there when they are read.
	if _, err := m.Mount.Owned.Fetch(ctx, fetch.FetchRequest{From: remote, Wants: ids}); err != nil {
		m.Log.Info("fetch contents of another session", zap.String("session", m.Mount.Session), zap.Error(err))
	}
	return nil
}
