package mount

import (
	"context"
	"errors"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/session/locks/keeper"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/session/treediff"
)

// objects contains the objects of one mount that its store can read in addition to its own, and the session remotes from which
// missing objects are fetched. The fields are set when the mount starts, and do not change until close.
type objects struct {
	local         *fetch.Local   // objects in the git directory of the mount
	owned         *fetch.Local   // objects in the repository of the session
	sessionRemote *thin.Remote   // session remote; nil: none
	listed        *keeper.Listed // refs that the session remote has listed at the start of the mount; nil: it was not asked
	forkObjects   *fetch.Local   // objects fetched from forkRemote; nil: none
	forkRemote    *thin.Remote   // session remote of the parent session; nil: none
}

// own returns the object directories of the mount.
func (o *objects) own() (all []*fetch.Local) {
	for _, l := range []*fetch.Local{o.local, o.owned, o.forkObjects} {
		if l != nil {
			all = append(all, l)
		}
	}
	return all
}

// addFork adds the session remote of the parent session as a source of objects. Fetched objects are stored in l.
func (o *objects) addFork(remote *thin.Remote, l *fetch.Local) {
	o.forkRemote, o.forkObjects = remote, l
	l.SetSessionRemote(remote)
}

// expect registers the blobs that are in the mounted checkpoint and not in the base commit, so that the store requests these
// blobs from the session remote and not from the mounted remote. It waits until the trees of both commits are fetched.
func (o *objects) expect(ctx context.Context, store *fetch.Store, r statedir.Record, log *zap.Logger) {
	base, err := r.Base()
	if err != nil || base.Shown.IsZero() || o.sessionRemote == nil && o.forkRemote == nil {
		return
	}
	var ids []object.ID
	err = treediff.Trees(ctx, store.Tree, base.Tree, base.Shown, func(_ string, _, to object.TreeEntry) error {
		if to.Mode.IsBlob() {
			ids = append(ids, to.ID)
		}
		return nil
	})
	if err != nil {
		log.Debug("look for contents of the session", zap.Error(err))
	}
	// Blobs on this host are never requested, so only the missing blobs have to be registered.
	ids = o.owned.Missing(ids)
	o.owned.Expect(ids)
	if o.forkObjects != nil {
		o.forkObjects.Expect(ids)
	}
}

// close closes all sources of objects and session remotes, and sets o to its zero value. It returns all errors joined.
func (o *objects) close() (err error) {
	for _, l := range o.own() {
		err = errors.Join(err, l.Close())
	}
	for _, r := range []*thin.Remote{o.sessionRemote, o.forkRemote} {
		if r != nil {
			err = errors.Join(err, r.Close())
		}
	}
	*o = objects{}
	return err
}
