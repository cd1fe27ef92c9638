package fuse

import (
	"errors"
	"path"
	"sync"
	"sync/atomic"

	"github.com/artifactfs/artifactfs/worktree"
)

// resized counts, for files whose size was told wrong, how often. With a writeback cache the kernel takes no other
// size for a file that it knows, but it takes a node of another generation for another file (fs/fuse/inode.c,
// fuse_iget): it looks at that afresh, and whoever has the old one open gets EIO from then on.
type resized struct {
	any atomic.Bool // there hardly ever is one

	mu     sync.Mutex
	counts map[worktree.Node]uint64
}

func (r *resized) generation(n worktree.Node) uint64 {
	if !r.any.Load() {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts[n]
}

func (r *resized) add(n worktree.Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counts == nil {
		r.counts = make(map[worktree.Node]uint64)
	}
	r.counts[n]++
	r.any.Store(true)
}

// lookAgain makes the kernel look up a file whose size was told wrong. This is done behind the request that found it
// out: to drop an entry takes the directory's lock, and who has that may wait for the page that the request is to fill.
func (f *writable) lookAgain(n worktree.Node) {
	f.resized.add(n)
	f.notices.Go(func() {
		parent, err := f.tree.Parent(n)
		at, pathErr := f.tree.Path(n)
		if errors.Join(err, pathErr) == nil {
			f.server.EntryNotify(uint64(parent), path.Base(at))
		}
	})
}
