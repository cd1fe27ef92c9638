package fuse

import (
	"errors"
	"path"
	"sync"
	"sync/atomic"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/worktree"
)

// resized holds the files whose size was reported wrong. With a writeback cache the kernel keeps
// the size of a file that it knows, but a node with another generation is another file to it
// (fs/fuse/inode.c, fuse_iget): it fetches that one's attributes, and processes that have the old
// one open get EIO from then on. Until the kernel has looked up the new generation every READ
// fails: after a failed READ the kernel tries again page by page, and would fill the excess of the
// wrong size with zeros.
//
// There are four generations, which repeat after four such changes of one file. This suffices to
// distinguish one from the one before.
type resized struct {
	tree *worktree.Tree

	any atomic.Bool // whether there is any, which is rare

	mu     sync.Mutex
	hidden map[worktree.Node]bool // files whose new generation the kernel has not looked up yet
}

// generation returns the generation of a node for a reply to the kernel.
func (r *resized) generation(n worktree.Node) uint64 {
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

// wrong reports whether the kernel still has the wrong size of a file.
func (r *resized) wrong(n worktree.Node) bool {
	if !r.any.Load() {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hidden[n]
}

// add marks a file whose size was reported wrong, and changes its generation, so that the kernel
// takes the next look-up for another file.
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

// lookUpAnew makes the kernel look up a file whose size was reported wrong. This happens after the
// request that found it out: dropping an entry takes the directory's lock, whose holder may wait
// for the page that the request is to fill.
func (f *writable) lookUpAnew(n worktree.Node) {
	f.resized.add(n)
	f.notices.Go(func() {
		parent, err := f.tree.Parent(n)
		at, pathErr := f.tree.Path(n)
		if errors.Join(err, pathErr) == nil {
			f.device.tellKernel(func() raw.Status { return f.server.EntryNotify(uint64(parent), path.Base(at)) })
		}
	})
}
