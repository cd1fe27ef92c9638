package state

// insert inserts the ref of an entry with the given key at place p. If the leaf is full, it is split first.
func (t *Table) insert(d *directory, p place, r ref, key uint64) {
	if d.count == 0 {
		t.insertLeaf(d, 0, leaf{first: key})
	}
	if l := &t.leaves(d)[p.leaf]; l.count == leafMax {
		t.split(d, p.leaf)
		if half := leafMax / 2; p.at > half {
			p = place{p.leaf + 1, p.at - half}
		}
	}
	l := &t.leaves(d)[p.leaf]
	if l.count == l.room {
		t.resize(l, int(l.count)+max(2, int(l.count)/4))
	}
	l.count++
	refs := t.refs(l)
	copy(refs[p.at+1:], refs[p.at:])
	refs[p.at] = r
	if p.at == 0 {
		l.first = key
	}
}

// remove removes the entry at place p and releases its memory. It removes a leaf that becomes empty.
func (t *Table) remove(d *directory, p place) {
	leaves := t.leaves(d)
	l := &leaves[p.leaf]
	refs := t.refs(l)
	t.arena.release(refs[p.at], dentrySize+int(t.dentry(refs[p.at]).len))
	copy(refs[p.at:], refs[p.at+1:])
	l.count--
	switch {
	case l.count == 0:
		t.arena.release(l.refs, int(l.room)*4)
		copy(leaves[p.leaf:], leaves[p.leaf+1:])
		d.count--
		if d.count == 0 {
			t.arena.release(d.leaves, int(d.room)*leafSize)
			d.leaves, d.room = 0, 0
		}
		return
	case int(l.count) < int(l.room)/2:
		t.resize(l, int(l.count)+int(l.count)/8)
	}
	l.first = t.dentry(t.refs(l)[0]).key()
}

// split moves the upper half of the full leaf i to a new leaf behind it.
func (t *Table) split(d *directory, i int) {
	const half = leafMax / 2
	refs := t.refs(&t.leaves(d)[i])
	right := leaf{first: t.dentry(refs[half]).key()}
	t.resize(&right, half+half/8)
	right.count = half
	copy(t.refs(&right), refs[half:])
	left := &t.leaves(d)[i]
	left.count = half
	t.resize(left, half+half/8)
	t.insertLeaf(d, i+1, right)
}

// insertLeaf inserts a leaf at index i. If the array is full, it grows by a quarter.
func (t *Table) insertLeaf(d *directory, i int, l leaf) {
	if d.count == d.room {
		room := d.room + max(1, d.room/4)
		leaves := t.arena.alloc(int(room) * leafSize)
		copy(array[leaf](&t.arena, leaves, int(d.count)), t.leaves(d))
		if d.room > 0 {
			t.arena.release(d.leaves, int(d.room)*leafSize)
		}
		d.leaves, d.room = leaves, room
	}
	d.count++
	leaves := t.leaves(d)
	copy(leaves[i+1:], leaves[i:])
	leaves[i] = l
}

// resize changes the room of a leaf to about n refs, but not below the number of refs that the leaf has.
func (t *Table) resize(l *leaf, n int) {
	_, size := class(4 * max(n, int(l.count)))
	if size/4 == int(l.room) {
		return
	}
	refs := t.arena.alloc(size)
	copy(array[ref](&t.arena, refs, int(l.count)), t.refs(l))
	if l.room > 0 {
		t.arena.release(l.refs, int(l.room)*4)
	}
	l.refs, l.room = refs, uint16(size/4)
}
