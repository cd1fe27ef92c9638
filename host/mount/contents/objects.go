package contents

import (
	"context"
	"errors"
	"path/filepath"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/treediff"
	"github.com/artifactfs/artifactfs/host/mount/home"
	"github.com/artifactfs/artifactfs/host/mount/origin"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/session/locks/keeper"
	"github.com/artifactfs/artifactfs/session/thin"
)

// Objects has the objects of one mount that its store can read in addition to its own, and the session remotes from
// which missing objects are fetched. The fields are set when the mount starts, and do not change after that.
type Objects struct {
	Local         *fetch.Local // objects in the git directory of the mount
	Owned         *fetch.Local // objects in the session repository
	SessionRemote *thin.Remote // session remote; nil if there is none
	// refs that the session remote had at the start of the mount; nil if they were not requested
	Listed      *keeper.Listed
	ForkObjects *fetch.Local // objects fetched from ForkRemote; nil if there is none
	ForkRemote  *thin.Remote // session remote of the parent session; nil if there is none
}

// Own returns the object directories of the mount.
func (o *Objects) Own() (all []*fetch.Local) {
	for _, l := range []*fetch.Local{o.Local, o.Owned, o.ForkObjects} {
		if l != nil {
			all = append(all, l)
		}
	}
	return all
}

// OpenObjects lets the store read the objects in the git directory and in the session repository, which are in the home
// h. Missing ones are fetched from the session remote.
func (c *Contents) OpenObjects(h *home.Home) {
	c.Objects.Local = c.Store.OpenLocal(filepath.Join(h.GitDir(), "objects"))
	c.Objects.Owned = c.Store.OpenLocal(origin.SessionObjects(h.Dir))
}

// UseSessionRemote makes a session remote a source of the session's objects. The method close closes the remote.
func (o *Objects) UseSessionRemote(remote *thin.Remote) {
	o.SessionRemote = remote
	o.Owned.SetSessionRemote(remote)
}

// UseForkRemote makes the session remote of the parent session a source of objects. Fetched objects are stored in the
// session repository in the home h. Close closes the remote.
func (c *Contents) UseForkRemote(remote *thin.Remote, h *home.Home) {
	c.Objects.ForkRemote, c.Objects.ForkObjects = remote, c.Store.OpenLocal(origin.SessionObjects(h.Dir))
	c.Objects.ForkObjects.SetSessionRemote(remote)
}

// Expect registers the blobs that are in the mounted checkpoint but not in the base commit, so that the store requests
// them from the session remote and not from the mounted remote. It waits until the trees of both commits are fetched.
func (c *Contents) Expect(ctx context.Context, r statedir.Record) {
	o := &c.Objects
	base, err := r.Base()
	if err != nil || base.Shown.IsZero() || o.SessionRemote == nil && o.ForkRemote == nil {
		return
	}
	var ids []object.ID
	err = treediff.Trees(ctx, c.Store.Tree, base.Tree, base.Shown, func(_ string, _, to object.TreeEntry) error {
		if to.Mode.IsBlob() {
			ids = append(ids, to.ID)
		}
		return nil
	})
	if err != nil {
		c.of.Log.Debug("look for contents of the session", zap.String("dir", c.of.Dir), zap.Error(err))
	}
	// Blobs on this host are never requested, so only the missing blobs have to be registered.
	ids = o.Owned.Missing(ids)
	o.Owned.Expect(ids)
	if o.ForkObjects != nil {
		o.ForkObjects.Expect(ids)
	}
}

// close closes all sources of objects and session remotes, and returns all errors joined.
func (o *Objects) close() (err error) {
	for _, l := range o.Own() {
		err = errors.Join(err, l.Close())
	}
	for _, r := range []*thin.Remote{o.SessionRemote, o.ForkRemote} {
		if r != nil {
			err = errors.Join(err, r.Close())
		}
	}
	return err
}
