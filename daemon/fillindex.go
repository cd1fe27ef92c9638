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

// The index is looked at after fillFirst, and after twice as long each time that nothing was fetched, up to fillMost.
const (
	fillFirst = 2 * time.Second
	fillMost  = 10 * time.Minute
)

// fillIndex adds the sizes and ignore files to git's index that were not known when it was written, until ctx ends: once
// prefetching has finished, and again when more contents were fetched. filled says that the predecessor has added
// everything that was fetched then.
func (m *mount) fillIndex(ctx context.Context, filled bool) {
	if !m.tried(ctx, m.gitTried) || !m.tried(ctx, m.hydrateTried) {
		return
	}
	last, arrived := -1, m.indexed
	if filled {
		arrived = m.before.Blobs
	}
	for pause := fillFirst; ; pause = min(2*pause, fillMost) {
		// Counting what was fetched walks the whole tree: it is done only if anything was.
		if now := m.store.Stats().Blobs; now != arrived {
			if here := m.view.Counts(ctx).Fetched; here == last {
				arrived = now
			} else {
				done := m.daemon.turns.take(ctx, nil, nil)
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

// fillIndexOnce adds what is known now. It returns false if a git command runs, or there is no git directory.
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
		// By its inode: what lstat says of it is what git will compare with. An index has 32 bits of it, which is all of
		// a base node, and some base node's number in one of the overlay's own. Those have no size that git could not see.
		a, ok := m.tree.Glance(worktree.Node(e.Stat.Ino), e.ID)
		return a.Size, ok && a.Mtime == e.Stat.Mtime && a.Ctime == e.Stat.Ctime
	})
	if err != nil {
		m.daemon.log.Debug("fill index", zap.String("dir", m.dir), zap.Error(err))
	}
	return done
}
