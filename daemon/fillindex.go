package daemon

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/gitdir"
	"github.com/artifactfs/artifactfs/internal/index"
	"github.com/artifactfs/artifactfs/mount/takeover"
	"github.com/artifactfs/artifactfs/worktree"
)

// The background work looks for newly fetched contents after fillFirst, and after twice the previous pause each time that
// nothing was fetched, up to fillMost.
const (
	fillFirst = 2 * time.Second
	fillMost  = 10 * time.Minute
)

// fillIndex adds the sizes of files and the ids of ignore files to git's index that were not known when the index was written.
// It does so after prefetching has ended, and again after more contents were fetched, until ctx ends. filled states that the
// predecessor has added everything that was fetched then.
func (m *mount) fillIndex(ctx context.Context, filled bool) {
	if !m.tried(ctx, m.gitTried) || !m.tried(ctx, m.hydrateTried) {
		return
	}
	// last is the number of fetched contents at the last fill, arrived the store's counter of received contents at the last
	// check.
	last, arrived := -1, m.indexed
	if filled {
		arrived = m.before.Blobs
	}
	for pause := fillFirst; ; pause = min(2*pause, fillMost) {
		// Counts walks the whole tree, so it is called only if the store has fetched contents.
		if now := m.store.Stats().Blobs; now != arrived {
			if here := m.view.Counts(ctx).Fetched; here == last {
				arrived = now
			} else {
				done := m.daemon.backgroundTurns.take(ctx, nil, nil)
				filled := m.fillIndexOnce(ctx)
				done()
				if filled {
					last, arrived, pause = here, now, fillFirst
					m.handover.Update(func(h *takeover.State) { h.Filled = true })
				}
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// fillIndexOnce adds the sizes and ignore files that are known now. It returns false, and changes nothing, if a git command
// runs, or if there is no git directory.
func (m *mount) fillIndexOnce(ctx context.Context) bool {
	m.mu.Lock()
	dir, ready := m.git.dir, m.gitReady
	m.mu.Unlock()
	if !ready {
		return false
	}
	done, err := dir.FillIndex(gitdir.IndexOptions{
		Ignore: func(e index.Entry) ([]byte, bool) {
			b := fetch.Blob{ID: e.ID, Path: e.Path}
			if !m.view.IsFetched(b) {
				return nil, false
			}
			content, err := m.readIgnoreFile(ctx, b)
			return content, err == nil && content != nil
		},
		Converts: func(e index.Entry) bool { return m.view.Converts(e.Path) },
		Bar:      m.passes.bar,
	}, func(e index.Entry) (int64, bool) {
		// Glance finds the attributes that lstat would return, with which git compares, by inode number. The index stores 32
		// bits of that number, enough for nodes of the base tree. The lower half of an overlay node's number may equal the
		// number of a base node; Glance returns nothing for overlay nodes, whose changes git must notice.
		a, ok := m.tree.Glance(worktree.Node(e.Stat.Ino), e.ID)
		return a.Size, ok && a.Mtime == e.Stat.Mtime && a.Ctime == e.Stat.Ctime
	})
	if err != nil {
		m.daemon.log.Debug("fill index", zap.String("dir", m.dir), zap.Error(err))
	}
	return done
}
