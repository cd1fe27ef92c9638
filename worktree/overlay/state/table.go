// Package state keeps in memory everything that differs from the base tree: inodes, directory entries, link targets and
// extended attributes. It enforces no rules: its owner is responsible for link counts, and for entries whose inodes
// exist.
//
// A Table changes only by Apply, with bytes that a Batch has encoded. The same bytes, replayed from a log, produce the
// same table. The memory is outside the Go heap, in one arena and two slabs of records. A file with a short name uses
// about 140 bytes.
package state

import (
	"crypto/rand"
	"slices"
	"strings"
)

// Table is the state. It has no locks: reads may run concurrently with each other and with Remember and Forget, and
// every other method needs exclusive access.
type Table struct {
	nodes
	requests requests
	arena    arena
	// dead holds the numbers of the contents files that must be removed.
	dead     numbers
	kept     keptRecords
	Segments []Segment // sorted by Bound; only Apply changes them
	counters [maxCounter]uint64
	inodes   int64 // number of inodes
	// dirs and attrs keep the entries of directories, link targets and extended attributes in arena.
	dirs  directories
	attrs attributes
}

// New returns an empty table.
func New() *Table {
	var s Seed
	rand.Read(s[:]) // crypto/rand never fails
	return NewSeeded(s)
}

// NewSeeded returns an empty table. Its cookies are valid in every other table with the same seed that applied the same
// changes or was built from this table's dump.
func NewSeeded(s Seed) *Table {
	t := &Table{}
	t.dirs.hash = func(name string) uint32 { return s.hash(name) }
	t.dirs.arena, t.attrs.arena = &t.arena, &t.arena
	return t
}

// Close releases the memory. Values that point into that memory, such as names passed to emit functions, must not be
// used afterwards.
func (t *Table) Close() {
	t.arena.close()
	t.own.close()
	t.base.close()
	t.index.close()
	t.counts.close()
	t.dead.close()
	*t = Table{dirs: directories{arena: &t.arena, hash: t.dirs.hash}, attrs: attributes{arena: &t.arena}}
}

// Apply makes all changes of a batch. If the batch is invalid, Apply changes nothing and returns ErrBatch.
func (t *Table) Apply(batch []byte) error {
	if err := check(batch); err != nil {
		return err
	}
	return t.Replay(batch)
}

// Replay does the same as Apply without first checking the batch. It is meant for batches that a table has applied
// before. If the batch is invalid nevertheless, Replay returns ErrBatch and may have applied a part of the batch.
func (t *Table) Replay(batch []byte) error {
	d := decoder{rest: batch}
	for p := (put{}); d.next(&p); {
		t.apply(&p)
	}
	return d.err(batch)
}

// apply changes the table as the put p states. The put must be valid.
func (t *Table) apply(p *put) {
	switch p.code {
	case putInode:
		t.putInode(t.need(p.node), p)
	case putEntry:
		t.dirs.setEntry(t.need(p.node), p.name, p.child)
	case putHidden:
		t.dirs.setEntry(t.need(p.node), p.name, 0)
	case putClear:
		if r := t.find(p.node); r != nil {
			t.dirs.clearEntry(r, p.name)
			t.vacate(p.node, r)
		}
	case putTarget:
		t.attrs.setTarget(t.need(p.node), string(p.value))
	case putXattr:
		t.attrs.setXattr(t.need(p.node), p.name, p.value)
	case putNoXattr:
		if r := t.find(p.node); r != nil {
			t.attrs.removeXattr(r, p.name)
			t.vacate(p.node, r)
		}
	case putDrop:
		t.drop(p.node)
	case putDead:
		t.dead.set(p.number, 0)
	case putGone:
		t.dead.remove(p.number)
	case putCounter:
		t.setCounter(Counter(p.node), p.number)
	case putRequest:
		t.requests.add(p.number, p.node)
	case putForgotten:
		t.requests = requests{}
	case putEntryAt, putHiddenAt:
		t.dirs.setEntryAt(t.need(p.node), p.name, p.child, p.nth)
	case putPreserved:
		t.kept.add(p.kept)
	case putReleased:
		t.kept.remove(p.number, p.last)
	case putSealed:
		t.Segments = withSegment(t.Segments, Segment{strings.Clone(p.name), p.number})
	case putUnsealed:
		t.Segments = slices.DeleteFunc(t.Segments, func(g Segment) bool { return g.Share == p.name })
	}
}

// putInode sets those fields of a record that the put contains.
func (t *Table) putInode(r *record, p *put) {
	if !r.is(recordInode) {
		r.state |= recordInode
		t.inodes++
	}
	in := &p.inode
	for i, f := range [...]struct{ to, from *uint32 }{
		{&r.mode, &in.Mode}, {&r.nlink, &in.Nlink}, {&r.uid, &in.UID}, {&r.gid, &in.GID}, {&r.rdev, &in.Rdev},
		{&r.flags, &in.Flags},
	} {
		if p.mask&(hasMode<<i) != 0 {
			*f.to = *f.from
		}
	}
	for i, f := range [...]struct{ to, from *int64 }{
		{&r.size, &in.Size}, {&r.atime, &in.Atime}, {&r.mtime, &in.Mtime}, {&r.ctime, &in.Ctime},
	} {
		if p.mask&(hasSize<<i) != 0 {
			*f.to = *f.from
		}
	}
	if p.mask&hasContent != 0 {
		r.content = in.Content
	}
	if p.mask&hasParent != 0 {
		r.parent = in.Parent
	}
}

// setCounter sets a counter. For CounterGeneration it raises t.floor instead, which never falls.
func (t *Table) setCounter(c Counter, v uint64) {
	if c == CounterGeneration {
		t.floor = max(t.floor, uint32(min(v, noGeneration)))
		t.freed = max(t.freed, t.floor)
		return
	}
	t.counters[c] = v
}

// vacate frees the record of a base node if the record contains no data.
func (t *Table) vacate(n Node, r *record) {
	if !n.Own() && !r.is(recordInode) && r.dir == 0 && r.target == 0 && r.xattrs == 0 {
		t.drop(n)
	}
}

// wipe clears a record, except its key and its position in the list of free records.
func (t *Table) wipe(r *record) {
	t.dirs.dropEntries(r)
	t.attrs.dropTarget(r)
	t.attrs.dropXattrs(r)
	if r.is(recordInode) {
		t.inodes--
	}
	*r = record{key: r.key, state: r.state &^ (recordUsed | recordInode | recordReserved)}
}

// Inode returns the inode of a node, and false if the table has none. It copies the record and does not allocate
// memory.
func (t *Table) Inode(n Node) (Inode, bool) {
	r := t.find(n)
	if r == nil || !r.is(recordInode) {
		return Inode{}, false
	}
	return r.inode(n), true
}

// Entry returns the table's entry for a name in a directory: unknown, hidden, or present with its node. The running
// time is logarithmic in the number of entries.
func (t *Table) Entry(dir Node, name string) (Node, Presence) {
	if r := t.find(dir); r != nil && r.dir != 0 {
		if e, _, _ := t.dirs.search(view[directory](&t.arena, r.dir), name); e != nil {
			if e.node == 0 {
				return 0, Hidden
			}
			return e.node, Present
		}
	}
	return 0, Unknown
}

// ReadDir calls emit for the entries that follow the cookie in the parameter after (0 means from the start), until emit
// returns false. The name points into the table, so the caller must clone a name that it keeps. The node of a hidden
// entry is 0. Cookies are below 1<<49. An entry that exists during a whole series of calls is emitted exactly once,
// even if other entries change between two calls.
func (t *Table) ReadDir(dir Node, after uint64, emit func(cookie uint64, name string, n Node, p Presence) bool) {
	r := t.find(dir)
	if r == nil || r.dir == 0 {
		return
	}
	d := view[directory](&t.arena, r.dir)
	for at := t.dirs.seek(d, after); ; at.at++ { // a cookie is the key of its entry plus one
		var e *dentry
		if e, at = t.dirs.entry(d, at); e == nil {
			return
		}
		p := Present
		if e.node == 0 {
			p = Hidden
		}
		if !emit(e.key()+1, e.name(), e.node, p) {
			return
		}
	}
}

// Names calls emit for every name of n in the table, until emit returns false. It visits at most as many entries as the
// parameter most states, and returns the number of visited entries. If the result equals most, n may have more names.
func (t *Table) Names(n Node, most int64, emit func(dir Node, name string) bool) (looked int64) {
	t.EachDir(func(dir Node) bool {
		more := true
		t.ReadDir(dir, 0, func(_ uint64, name string, at Node, _ Presence) bool {
			if looked >= most {
				more = false
				return false
			}
			looked++
			more = at != n || emit(dir, name)
			return more
		})
		return more
	})
	return looked
}

// Entries returns the numbers of present and hidden entries that this table has in a directory.
func (t *Table) Entries(dir Node) (present, hidden int) {
	if r := t.find(dir); r != nil && r.dir != 0 {
		d := view[directory](&t.arena, r.dir)
		return int(d.present), int(d.hidden)
	}
	return 0, 0
}

// Target returns the target of a symbolic link, and false if the table has none.
func (t *Table) Target(n Node) (string, bool) {
	if r := t.find(n); r != nil && r.target != 0 {
		return string(t.attrs.target(r)), true
	}
	return "", false
}

// Xattr returns a copy of the value of an extended attribute, and false if the table has none.
func (t *Table) Xattr(n Node, name string) (value []byte, ok bool) {
	if r := t.find(n); r != nil {
		for at := r.xattrs; at != 0; {
			x, have, value := t.attrs.xattr(at)
			if have == name {
				return slices.Clone(value), true
			}
			at = x.next
		}
	}
	return nil, false
}

// Xattrs returns the names of a node's extended attributes, sorted.
func (t *Table) Xattrs(n Node) (names []string) {
	if r := t.find(n); r != nil {
		for at := r.xattrs; at != 0; {
			x, name, _ := t.attrs.xattr(at)
			names = append(names, strings.Clone(name))
			at = x.next
		}
	}
	slices.Sort(names)
	return names
}

// Counter returns the value of a counter, or 0 if the counter was never set.
func (t *Table) Counter(c Counter) uint64 {
	if c == CounterGeneration {
		return uint64(t.freed)
	}
	return t.counters[c]
}

// Totals returns the numbers of stored objects and the memory that they use, without the memory of Kept records and
// lookup counts.
func (t *Table) Totals() Totals {
	all := Totals{Inodes: t.inodes, Entries: t.dirs.present, Hidden: t.dirs.hidden}
	all.Dead, all.Kept = int64(t.dead.count), int64(len(t.kept))
	all.Bytes = t.own.bytes() + t.base.bytes() +
		int64(len(t.arena.chunks)*chunkSize+len(t.index.memory)+len(t.dead.memory))
	return all
}

// EachInode calls emit for every inode, own nodes first, until emit returns false.
func (t *Table) EachInode(emit func(Inode) bool) {
	t.eachRecord(func(n Node, r *record) bool { return !r.is(recordInode) || emit(r.inode(n)) })
}

// EachDir calls emit for every node that has entries, until emit returns false.
func (t *Table) EachDir(emit func(dir Node) bool) {
	t.eachRecord(func(n Node, r *record) bool { return r.dir == 0 || emit(n) })
}

// eachRecord calls emit for every used record, own nodes first, until emit returns false.
func (t *Table) eachRecord(emit func(Node, *record) bool) {
	more := true
	for _, own := range [...]bool{true, false} {
		slab := &t.base
		if own {
			slab = &t.own
		}
		slab.each(0, func(i uint32, r *record) bool {
			more = emit(nodeOf(own, i, r), r)
			return more
		})
		if !more {
			return
		}
	}
}

// EachDead calls emit for every dead contents file that is not recorded as removed, until emit returns false.
func (t *Table) EachDead(emit func(number uint64) bool) { t.dead.each(emit) }
