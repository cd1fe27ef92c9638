package daemon

import (
	"context"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/object"
)

// expect registers the blobs in which the checkpoint that the mount starts from differs from the base commit, so that
// the store does not ask the mounted remote for them. It waits until the trees are fetched.
func (m *mount) expect(ctx context.Context) {
	base, err := m.record.Base()
	if err != nil || base.Shown.IsZero() || m.second == nil && m.forkRemote == nil {
		return
	}
	var ids []object.ID
	err = diffTrees(ctx, m.store.Tree, base.Tree, base.Shown, func(_ string, _, to object.TreeEntry) error {
		if to.Mode.IsBlob() {
			ids = append(ids, to.ID)
		}
		return nil
	})
	if err != nil {
		m.daemon.log.Debug("look for contents of the session", zap.String("dir", m.dir), zap.Error(err))
	}
	// Only missing blobs matter; those on this host are never requested.
	ids = m.owned.Missing(ids)
	m.owned.Expect(ids)
	if m.forkObjects != nil {
		m.forkObjects.Expect(ids)
	}
}
