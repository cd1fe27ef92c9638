package fuse

import (
	"errors"
	"path"
	"sync"
	"sync/atomic"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/worktree"
)

// resized knows the files whose size was told wrong. With a writeback cache the kernel takes no other size for a file
// that it knows, but it takes a node of another generation for another file (fs/fuse/inode.c, fuse_iget): it looks at
// that afresh, and whoever has the old one open gets EIO from then on. Until it is shown the new generation every READ
// fails: behind one that failed it tries again page by page, and would fill up what the wrong size has too much with
// zeros.
//
// The generation is one of four, which come again after four such changes of one file. That suffices to tell it from the
// one before.
type resized struct {
	tree *worktree.Tree

	any atomic.Bool // there hardly ever is one

	mu     sync.Mutex
	hidden map[worktree.Node]bool // files that the kernel was not yet shown in their new generation
}

// show gives the generation of a node that the kernel is about to be shown.
func (r *resized) show(n worktree.Node) uint64 {
	if n.Own() {
		return 0
	}
	if r.any.Load() {
		r.mu.Lock()
		delete(r.hidden, n)
		r.mu.Unlock()
	}
	w, shift := r.tree.Shown(n)
	return uint64(w.Load() >> shift & generationBits >> generationShift)
}

// wrong says whether the kernel still has the wrong size of a file.
func (r *resized) wrong(n worktree.Node) bool {
	if !r.any.Load() {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hidden[n]
}

func (r *resized) add(n worktree.Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hidden == nil {
		r.hidden = make(map[worktree.Node]bool)
	}
	r.hidden[n] = true
	r.any.Store(true)
	w, shift := r.tree.Shown(n)
	for {
		have := w.Load()
		next := (have>>shift + 1<<generationShift) & generationBits
		if w.CompareAndSwap(have, have&^(generationBits<<shift)|next<<shift) {
			return
		}
	}
}

// lookAgain makes the kernel look up a file whose size was told wrong. This is done behind the request that found it
// out: to drop an entry takes the directory's lock, and who has that may wait for the page that the request is to fill.
func (f *writable) lookAgain(n worktree.Node) {
	f.resized.add(n)
	f.notices.Go(func() {
		parent, err := f.tree.Parent(n)
		at, pathErr := f.tree.Path(n)
		if errors.Join(err, pathErr) == nil {
			f.device.tellKernel(func() raw.Status { return f.server.EntryNotify(uint64(parent), path.Base(at)) })
		}
	})
}
