package gitside

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/git/index"
	"github.com/artifactfs/artifactfs/host/mount/takeover"
	"github.com/artifactfs/artifactfs/worktree"
)

// fillFirst and fillMost are the first and the longest pause between two checks for newly fetched contents. After each
// check that finds no new contents, the pause doubles.
const (
	fillFirst = 2 * time.Second
	fillMost  = 10 * time.Minute
)

// Fill adds sizes of files and IDs of ignore files to git's index, which was written before all contents were fetched.
// It starts when prefetching has ended, and continues when more contents were fetched, until ctx ends. filled states
// that the predecessor has already added the data of all contents that it had fetched.
func (ix *Index) Fill(ctx context.Context, filled bool) {
	if !ix.Events.Await(ctx, ix.Events.GitTried) || !ix.Events.Await(ctx, ix.Events.HydrateTried) {
		return
	}
	// last is the number of fetched contents when data were last added to the index. arrived is the store's count of
	// received blobs at the last check.
	last, arrived := -1, ix.indexed
	if filled {
		arrived = ix.Contents.Before.Blobs
	}
	ix.filled.Store(arrived)
	for pause := fillFirst; ; pause = min(2*pause, fillMost) {
		// Counts walks through the whole tree, so it is called only if the store has received blobs since the last check.
		if now := ix.Mount.Store.Stats().Blobs; now != arrived {
			if here := ix.Contents.View.Counts(ctx).Fetched; here == last {
				arrived = now
			} else {
				done := ix.Turns.Take(ctx, nil, nil)
				filled := ix.fillOnce(ctx)
				done()
				if filled {
					last, arrived, pause = here, now, fillFirst
					ix.Handover.Update(func(h *takeover.State) { h.Filled = true })
				}
			}
		}
		ix.filled.Store(arrived)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// fillOnce adds to the index the sizes and ignore files that are known at this moment. If a git command is running, or
// if there is no git directory, it changes nothing and returns false.
func (ix *Index) fillOnce(ctx context.Context) bool {
	dir := ix.Git()
	if dir == nil {
		return false
	}
	done, err := dir.FillIndex(gitdir.IndexOptions{
		Ignore: func(e index.Entry) ([]byte, bool) {
			b := fetch.Blob{ID: e.ID, Path: e.Path}
			if !ix.Contents.View.IsFetched(b) {
				return nil, false
			}
			content, err := ix.ReadSmall(ctx, b)
			return content, err == nil && content != nil
		},
		Converts: func(e index.Entry) bool { return ix.Contents.View.Converts(e.Path) },
		Bar:      ix.Bar,
	}, func(e index.Entry) (int64, bool) {
		// Git compares the index with the attributes that lstat(2) returns. Glance finds these attributes by the inode number
		// of which the index stores the lower 32 bits. They identify a node of the base tree. A file that was created in the
		// mount may have the same lower 32 bits, but Glance returns false for such a file, because git has to notice it.
		a, ok := ix.Tree.Base().Glance(worktree.Node(e.Stat.Ino), e.ID)
		return a.Size, ok && a.Mtime == e.Stat.Mtime && a.Ctime == e.Stat.Ctime
	})
	if err != nil {
		ix.Log.Debug("fill index", zap.String("dir", ix.Mount.Dir), zap.Error(err))
	}
	return done
}
