package worktree

import (
	"sync/atomic"

	"github.com/artifactfs/artifactfs/worktree/writers"
)

// Kernel counts the references that the kernel holds to nodes. Package fuse calls it for each node in a reply, and for each
// FORGET request. The counts for nodes of the base tree are stored in the inode table, the others in the overlay, so that all of
// them survive a takeover. The table and the overlay guard the counts.
type Kernel struct {
	gate    *gate
	view    *view
	writing *writers.Set // files that programs may be writing to
}

// Remember increments the lookup count of a node, because a reply to the kernel contains the node.
func (k *Kernel) Remember(n Node) {
	if k.view.layer == nil || !k.gate.enter() {
		return
	}
	defer k.gate.leave()
	if n.Own() {
		k.view.layer.Remember(n)
	} else if r, ok := k.view.base.Table.Record(n); ok {
		r.Remember()
	}
}

// Forget decrements the lookup count of a node by lookups, as a FORGET request of the kernel demands. A node that has neither
// lookups nor a name is released. Open files are not counted, because the kernel holds a lookup as long as a program has a file
// open.
func (k *Kernel) Forget(n Node, lookups uint64) {
	if k.view.layer == nil || !k.gate.enter() {
		return
	}
	defer k.gate.leave()
	if n.Own() {
		if k.view.layer.Forget(n, lookups) {
			k.writing.Forget(n)
		}
		return
	}
	r, ok := k.view.base.Table.Record(n)
	if !ok {
		return
	}
	if r.Forget(lookups) {
		k.writing.Forget(n)
		k.view.layer.Release(n)
	}
}

// Shown returns four bits that package fuse uses for a node of the base tree: the word that contains them, and their shift in
// that word. They are 0 at first, and survive a takeover. The word may be used as long as the caller can reach the Tree, even
// after Close.
func (k *Kernel) Shown(n Node) (w *atomic.Uint32, shift uint) { return k.view.base.Table.Shown(n) }
