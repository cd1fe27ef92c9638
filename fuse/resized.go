package fuse

import (
	"errors"
	"path"
	"sync"
	"sync/atomic"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/worktree"
)

// resized records the files whose size was reported wrongly to the kernel. With a writeback cache the kernel never replaces a
// size that it knows, but it treats a node with another generation number as another file (fs/fuse/inode.c, fuse_iget): it
// requests the attributes of the new file, and processes that have the old file open get EIO. Until the kernel has looked up
// the new generation, every READ of the file must fail: after one failed READ the kernel tries again page by page, and would
// fill the part behind the real end of the file with zeros.
//
// A generation has two bits, so it repeats after four wrong sizes of one file. This suffices, because the kernel only needs
// to see that a generation differs from the previous one.
type resized struct {
	tree *worktree.Tree

	any atomic.Bool // set when the first wrong size is recorded, which is rare; while it is false, mu is not needed

	mu     sync.Mutex             // protects the field hidden
	hidden map[worktree.Node]bool // files whose new generation the kernel has not looked up yet
}

// generation returns the generation of a node for a reply to a look-up. With this reply the kernel gets the current
// generation, so READs of the file may succeed again.
func (r *resized) generation(n worktree.Node) uint64 {
	if n.Own() {
		return 0
	}
	if r.any.Load() {
		r.mu.Lock()
		delete(r.hidden, n)
		r.mu.Unlock()
	}
	w, shift := r.tree.Kernel().Shown(n)
	return uint64(w.Load() >> shift & generationBits >> generationShift)
}

// wrong reports whether the kernel still knows a wrong size of a file, because it has not looked up the new generation.
func (r *resized) wrong(n worktree.Node) bool {
	if !r.any.Load() {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hidden[n]
}

// add records that the size of a file was reported wrongly. It changes the file's generation, so that the kernel
// treats the result of the next look-up as another file.
func (r *resized) add(n worktree.Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hidden == nil {
		r.hidden = make(map[worktree.Node]bool)
	}
	r.hidden[n] = true
	r.any.Store(true)
	w, shift := r.tree.Kernel().Shown(n)
	for {
		have := w.Load()
		next := (have>>shift + 1<<generationShift) & generationBits
		if w.CompareAndSwap(have, have&^(generationBits<<shift)|next<<shift) {
			return
		}
	}
}

// lookUpAnew makes the kernel look up a file whose size was reported wrongly, by a notice that drops the file's entry.
// The notice is sent in the background and not by the READ that has found the wrong size: dropping an entry takes the
// lock of the directory, and the process that holds this lock may wait for the page that the READ is to fill.
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
