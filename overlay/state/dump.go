package state

// Cursor is a place in a dump; its zero value is the start.
type Cursor struct {
	phase dumpPhase
	index uint32 // of the record to go on with
	after uint64 // cookie in its directory, once the rest of it is dumped; 0: not begun
}

type dumpPhase uint8

const (
	dumpNumbers dumpPhase = iota // counters, dead contents, requests and what is kept, in one go
	dumpOwn
	dumpBase
	dumpDone
)

// Dump adds about limit puts to b, from which an empty table would become like this one. Changes may be applied
// between two calls if they reach the new table in the same order as the dump's batches: what the cursor has passed
// they change there too, and what is still to come will be dumped as it is then.
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
		}
	}
	return c, c.phase == dumpDone
}

func (t *Table) dumpNumbers(b *Batch) {
	for c := range Counter(maxCounter) {
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

// dumpSlab dumps records from the cursor on, the entries of a large directory in several calls.
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
		t.ReadDir(n, after, func(name string, child Node, cookie uint64) bool {
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

func (t *Table) dumpRecord(n Node, r *record, b *Batch) {
	if r.is(recordInode) {
		in := r.inode(n)
		b.PutInode(&in, nil)
	}
	if r.target != 0 {
		b.SetTarget(n, string(t.target(r)))
	}
	for at := r.xattrs; at != 0; {
		x, name, value := t.xattr(at)
		b.SetXattr(n, name, value)
		at = x.next
	}
}
