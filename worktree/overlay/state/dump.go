package state

// Cursor is a position in a dump. The zero Cursor is the start.
type Cursor struct {
	phase dumpPhase
	index uint32 // index of the next record
	after uint64 // cookie of the last dumped entry in that record's directory; 0 if nothing of the record was dumped
}

// dumpPhase is a part of the table. Dump visits the parts in the order of the constants.
type dumpPhase uint8

const (
	dumpNumbers dumpPhase = iota // segments, counters, dead contents files, requests and Kept records, in one step
	dumpOwn                      // records of nodes that the overlay has created
	dumpBase                     // the records of base nodes
	dumpLast                     // CounterLast
	dumpDone
)

// Dump appends about limit puts to b, beginning at the cursor c, and returns the cursor for the next call. Applied in
// order, the puts of all calls turn an empty table into a copy of t. Changes may be applied to t between two calls if
// the caller also applies them to the copy, in the same order relative to the dump's batches. If such a change affects
// a part that was already dumped, applying it corrects the copy. A change of any other part is also contained in a
// later batch.
func (t *Table) Dump(c Cursor, limit int, b *Batch) (next Cursor, done bool) {
	end := b.puts + limit
	for c.phase < dumpDone && b.puts < end {
		switch c.phase {
		case dumpNumbers:
			t.dumpNumbers(b)
			c = Cursor{phase: dumpOwn}
		case dumpOwn:
			c = t.dumpSlab(c, &t.own, end, b)
		case dumpBase:
			c = t.dumpSlab(c, &t.base, end, b)
		case dumpLast:
			if v := t.Counter(CounterLast); v != 0 {
				b.SetCounter(CounterLast, v)
			}
			c = Cursor{phase: dumpDone}
		}
	}
	return c, c.phase == dumpDone
}

// dumpNumbers dumps the segments, the counters except CounterLast, dead contents files, requests and Kept records.
func (t *Table) dumpNumbers(b *Batch) {
	for _, g := range t.Segments {
		b.Seal(g)
	}
	for c := range CounterLast {
		if v := t.Counter(c); v != 0 {
			b.SetCounter(c, v)
		}
	}
	t.dead.each(func(number uint64) bool { b.DeadContent(number); return true })
	t.requests.each(b.Request)
	for _, k := range t.Kept() {
		b.Keep(k)
	}
}

// dumpSlab dumps the records of a slab beginning at the cursor c. The entries of a large directory may take several
// calls.
func (t *Table) dumpSlab(c Cursor, s *slab, end int, b *Batch) Cursor {
	next := Cursor{phase: c.phase + 1}
	s.each(c.index, func(i uint32, r *record) bool {
		if b.puts >= end {
			next = Cursor{phase: c.phase, index: i}
			return false
		}
		n, after := nodeOf(s == &t.own, i, r), uint64(0)
		if i == c.index {
			after = c.after
		}
		if after == 0 {
			t.dumpRecord(n, r, b)
		}
		t.ReadDir(n, after, func(cookie uint64, name string, child Node, _ Presence) bool {
			b.entryAt(n, name, child, uint16(cookie-1))
			if b.puts >= end {
				next = Cursor{phase: c.phase, index: i, after: cookie}
			}
			return b.puts < end
		})
		return next.phase != c.phase
	})
	return next
}

// dumpRecord dumps the inode, the link target and the extended attributes of a record.
func (t *Table) dumpRecord(n Node, r *record, b *Batch) {
	if r.is(recordInode) {
		in := r.inode(n)
		b.PutInode(&in, nil)
	}
	if r.target != 0 {
		b.SetTarget(n, string(t.attrs.target(r)))
	}
	for at := r.xattrs; at != 0; {
		x, name, value := t.attrs.xattr(at)
		b.SetXattr(n, name, value)
		at = x.next
	}
}
