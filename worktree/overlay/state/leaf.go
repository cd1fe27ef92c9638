package state

// insert inserts the ref of an entry with the given key at place p. If the leaf is full, it is split first.
func (s *directories) insert(d *directory, p place, r ref, key uint64) {
	if d.count == 0 {
		s.insertLeaf(d, 0, leaf{first: key})
	}
	if l := &s.leaves(d)[p.leaf]; l.count == leafMax {
		s.split(d, p.leaf)
		if half := leafMax / 2; p.at > half {
			p = place{p.leaf + 1, p.at - half}
		}
	}
	l := &s.leaves(d)[p.leaf]
	if l.count == l.room {
		s.resize(l, int(l.count)+max(2, int(l.count)/4))
	}
	l.count++
	refs := s.refs(l)
	copy(refs[p.at+1:], refs[p.at:])
	refs[p.at] = r
	if p.at == 0 {
		l.first = key
	}
}

// remove removes the entry at place p and releases its memory. It removes a leaf that becomes empty.
func (s *directories) remove(d *directory, p place) {
	leaves := s.leaves(d)
	l := &leaves[p.leaf]
	refs := s.refs(l)
	s.arena.release(refs[p.at], dentrySize+int(s.dentry(refs[p.at]).len))
	copy(refs[p.at:], refs[p.at+1:])
	l.count--
	switch {
	case l.count == 0:
		s.arena.release(l.refs, int(l.room)*4)
		copy(leaves[p.leaf:], leaves[p.leaf+1:])
		d.count--
		if d.count == 0 {
			s.arena.release(d.leaves, int(d.room)*leafSize)
			d.leaves, d.room = 0, 0
		}
		return
	case int(l.count) < int(l.room)/2:
		s.resize(l, int(l.count)+int(l.count)/8)
	}
	l.first = s.dentry(s.refs(l)[0]).key()
}

// split moves the upper half of the full leaf i to a new leaf behind it.
func (s *directories) split(d *directory, i int) {
	const half = leafMax / 2
	refs := s.refs(&s.leaves(d)[i])
	right := leaf{first: s.dentry(refs[half]).key()}
	s.resize(&right, half+half/8)
	right.count = half
	copy(s.refs(&right), refs[half:])
	left := &s.leaves(d)[i]
	left.count = half
	s.resize(left, half+half/8)
	s.insertLeaf(d, i+1, right)
}

// insertLeaf inserts a leaf at index i. If the array is full, it grows by a quarter.
func (s *directories) insertLeaf(d *directory, i int, l leaf) {
	if d.count == d.room {
		room := d.room + max(1, d.room/4)
		leaves := s.arena.alloc(int(room) * leafSize)
		copy(array[leaf](s.arena, leaves, int(d.count)), s.leaves(d))
		if d.room > 0 {
			s.arena.release(d.leaves, int(d.room)*leafSize)
		}
		d.leaves, d.room = leaves, room
	}
	d.count++
	leaves := s.leaves(d)
	copy(leaves[i+1:], leaves[i:])
	leaves[i] = l
}

// resize changes the room of a leaf to about n refs, but not below the number of refs that the leaf has.
func (s *directories) resize(l *leaf, n int) {
	_, size := class(4 * max(n, int(l.count)))
	if size/4 == int(l.room) {
		return
	}
	refs := s.arena.alloc(size)
	copy(array[ref](s.arena, refs, int(l.count)), s.refs(l))
	if l.room > 0 {
		s.arena.release(l.refs, int(l.room)*4)
	}
	l.refs, l.room = refs, uint16(size/4)
}
