package worktree

// Remember increments the lookup count of a node: a reply to the kernel contained it.
func (t *Tree) Remember(n Node) {
	if t.layer == nil || !t.gate.enter() {
		return
	}
	defer t.gate.leave()
	if n.Own() {
		t.layer.Remember(n)
	} else if r, ok := t.table.record(n); ok {
		r.lookups.Add(1)
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
			t.writing.forget(n)
		}
		return
	}
	r, ok := t.table.record(n)
	if !ok {
		return
	}
	for {
		have := r.lookups.Load()
		left := have - uint32(min(k, uint64(have)))
		if r.lookups.CompareAndSwap(have, left) {
			if left == 0 {
				t.writing.forget(n)
				t.layer.Release(n)
			}
			return
		}
	}
}

// release frees a base node that lost a name, if it has no other name and the kernel holds no reference to it. The overlay
// counts and releases own nodes itself.
func (t *Tree) release(n Node) {
	if r, ok := t.table.record(n); ok && !n.Own() && r.lookups.Load() == 0 {
		t.layer.Release(n)
	}
}
