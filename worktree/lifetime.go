package worktree

// Remember notes that the kernel was told of a node once more.
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

// Forget notes that the kernel forgot what it was told of a node k times. A node that it has forgotten and that has
// no name ends here: files are not opened and closed, so until then somebody may have it open.
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

// release ends a node that lost a name, if that was its last and the kernel knows it no more. Of the overlay's own
// nodes it knows that itself.
func (t *Tree) release(n Node) {
	if r, ok := t.table.record(n); ok && !n.Own() && r.lookups.Load() == 0 {
		t.layer.Release(n)
	}
}
