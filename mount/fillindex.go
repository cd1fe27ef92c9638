package mount

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

// The pauses between two checks for newly fetched contents. The first pause is fillFirst. Each time that nothing was fetched,
// the pause doubles, up to fillMost.
const (
	fillFirst = 2 * time.Second
	fillMost  = 10 * time.Minute
)

// fillIndex completes git's index, which was written before all contents were fetched: it adds the sizes of files, and the ids
// of ignore files. It starts when prefetching has ended, and repeats this after more contents were fetched, until ctx ends. The
// parameter filled states that the predecessor has already added everything that it had fetched.
func (m *Mount) fillIndex(ctx context.Context, filled bool) {
	if !m.tried(ctx, m.gitTried) || !m.tried(ctx, m.hydrateTried) {
		return
	}
	// The variable last is the number of fetched contents when the index was last filled. The variable arrived is the value of
	// the store's counter of received contents at the last check.
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
				done := m.host.Turns.Take(ctx, nil, nil)
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

// fillIndexOnce adds the sizes and ignore files that are known at the time of the call. If a git command is running, or if there
// is no git directory, it changes nothing and returns false.
func (m *Mount) fillIndexOnce(ctx context.Context) bool {
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
		// Git compares the index with the attributes that lstat(2) returns. Glance looks these attributes up by inode number.
		// The index stores the lower 32 bits of that number, which identify a node of the base tree. An overlay node may have
		// the same lower 32 bits, but Glance returns nothing for overlay nodes, because git has to notice their changes.
		a, ok := m.tree.Base().Glance(worktree.Node(e.Stat.Ino), e.ID)
		return a.Size, ok && a.Mtime == e.Stat.Mtime && a.Ctime == e.Stat.Ctime
	})
	if err != nil {
		m.host.Log.Debug("fill index", zap.String("dir", m.Dir), zap.Error(err))
	}
	return done
}
