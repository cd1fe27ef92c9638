package worktree

import (
	"sync/atomic"

	"github.com/artifactfs/artifactfs/worktree/writers"
)

// Kernel counts the references that the kernel has to nodes. Package fuse calls it for each node in a reply and for each FORGET.
// The counts of base nodes are stored in the inode table, those of own nodes in the overlay, so that both survive a takeover.
// The table and the overlay guard the counts.
type Kernel struct {
	gate    *gate
	view    *view
	writing *writers.Set // files that programs may be writing to
}

// Remember increments the lookup count of a node: a reply to the kernel contained it.
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

// Forget decrements the lookup count of a node by lookups, as the kernel's FORGET requests. A node without lookups and without a
// name is released. The Tree does not count open files: as long as a program has a file open, the kernel holds a lookup.
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

// Shown returns a word, and the shift in it, of four bits of a base node that package fuse defines. They are 0 at first and
// survive a takeover. The word may be used as long as the Tree is reachable, also after Close.
func (k *Kernel) Shown(n Node) (w *atomic.Uint32, shift uint) { return k.view.base.Table.Shown(n) }
