package worktree

import (
	"sync/atomic"

	"github.com/artifactfs/artifactfs/worktree/writers"
)

// Kernel counts the references that the kernel holds to nodes. Package fuse calls it for each node in a reply, and for each
// FORGET request. The counts for nodes of the base tree are stored in the inode table, and the other counts in the overlay, so
// that all of them survive a takeover. The inode table and the overlay synchronize access to the counts.
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

// WritesThrough states that the kernel has no writeback cache: each write(2) is a request of its own, which sets the times of the
// file. It must be called before the first request.
func (k *Kernel) WritesThrough() {
	if k.view.layer != nil {
		k.view.layer.Stamps.Store(true)
	}
}

// Forget subtracts the number lookups from the lookup count of a node, as a FORGET request of the kernel demands. A node without
// lookups and without a name is released. Kernel need not count open files, because the kernel holds a lookup of a file as long
// as a program has the file open.
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
// that word. The bits are initially 0, and survive a takeover. The word may be used as long as the caller has a reference to the
// Tree, even after Close.
func (k *Kernel) Shown(n Node) (w *atomic.Uint32, shift uint) { return k.view.base.Table.Shown(n) }
