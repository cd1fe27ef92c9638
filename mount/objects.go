package mount

import (
	"context"
	"errors"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/session/treediff"
	"github.com/artifactfs/artifactfs/statedir"
)

// objects are the objects of one mount that its store can read besides its own, and the session remotes from which missing ones are
// fetched. The start of the mount sets the fields; they are constant until close.
type objects struct {
	local         *fetch.Local // objects in the git directory of the mount
	owned         *fetch.Local // objects in the repository of the session
	sessionRemote *thin.Remote // session remote; nil: none
	forkObjects   *fetch.Local // objects fetched from forkRemote; nil: none
	forkRemote    *thin.Remote // session remote of the parent session; nil: none
}

// addFork adds the session remote of the parent session as a source of objects, which are stored in l.
func (o *objects) addFork(remote *thin.Remote, l *fetch.Local) {
	o.forkRemote, o.forkObjects = remote, l
	l.SetSessionRemote(remote)
}

// expect registers the blobs that the mounted checkpoint has and the base commit lacks, so that the store does not request them
// from the mounted remote. It waits until the trees are fetched.
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
	// Only missing blobs matter; those on this host are never requested.
	ids = o.owned.Missing(ids)
	o.owned.Expect(ids)
	if o.forkObjects != nil {
		o.forkObjects.Expect(ids)
	}
}

// close closes everything and sets o to its zero value. It returns all errors joined.
func (o *objects) close() (err error) {
	for _, l := range []*fetch.Local{o.local, o.owned, o.forkObjects} {
		if l != nil {
			err = errors.Join(err, l.Close())
		}
	}
	for _, r := range []*thin.Remote{o.sessionRemote, o.forkRemote} {
		if r != nil {
			err = errors.Join(err, r.Close())
		}
	}
	*o = objects{}
	return err
}
