package worktree

import (
	"sync/atomic"
)

// Remember increments the lookup count of a node: a reply to the kernel contained it.
func (t *Tree) Remember(n Node) {
	if t.layer == nil || !t.gate.enter() {
		return
	}
	defer t.gate.leave()
	if n.Own() {
		t.layer.Remember(n)
	} else if r, ok := t.Table.Record(n); ok {
		r.Remember()
	}
}

// Forget decrements the lookup count of a node by k, as the kernel's FORGET requests. A node without lookups and without a
// name is released. The Tree does not count open files: as long as a program has a file open, the kernel holds a lookup.
func (t *Tree) Forget(n Node, k uint64) {
	if t.layer == nil || !t.gate.enter() {
		return
	}
	defer t.gate.leave()
	if n.Own() {
		if t.layer.Forget(n, k) {
			t.writing.Forget(n)
		}
		return
	}
	r, ok := t.Table.Record(n)
	if !ok {
		return
	}
	if r.Forget(k) {
		t.writing.Forget(n)
		t.layer.Release(n)
	}
}

// Shown returns a word, and the shift in it, of four bits of a base node that package fuse defines. They are 0 at first and
// survive a takeover. The word may be used as long as the Tree is reachable, also after Close.
func (t *Tree) Shown(n Node) (w *atomic.Uint32, shift uint) { return t.Table.Shown(n) }

// release frees a base node that lost a name, if it has no other name and the kernel holds no reference to it. The overlay
// counts and releases own nodes itself.
func (t *Tree) release(n Node) {
	if r, ok := t.Table.Record(n); ok && !n.Own() && !r.Known() {
		t.layer.Release(n)
	}
}
