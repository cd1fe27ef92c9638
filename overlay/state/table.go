// Package state keeps in memory what differs from the base: inodes, directory entries, link targets, extended
// attributes. It is data without rules: that entries name inodes and link counts are right is its owner's business.
//
// A Table changes only by Apply, with what a Batch has encoded; the same bytes, replayed from a log, make the same
// table again. The memory lies outside the Go heap, in one arena and two slabs of records: about 140 bytes for a
// file with a short name.
package state

import (
	"crypto/rand"
	"slices"
	"strings"
)

// Table is the state. It has no locks: reads may run concurrently, Remember and Forget along with them; everything
// else must be alone.
type Table struct {
	nodes
	requests requests
	arena    arena
	dead     numbers
	kept     map[uint64]Kept // by ID
	counters [maxCounter]uint64
	totals   Totals
	hash     func(name string) uint32
}

// New returns an empty table.
func New() *Table {
	var s Seed
	rand.Read(s[:]) // never fails (crypto/rand)
	return NewSeeded(s)
}

// NewSeeded returns an empty table whose cookies mean what those of any other with the same seed mean that went through
// the same changes, or was made from its dump.
func NewSeeded(s Seed) *Table {
	return &Table{hash: func(name string) uint32 { return s.hash(name) }}
}

// Close frees the memory. Nothing that a method returned may be used afterwards.
func (t *Table) Close() {
	t.arena.close()
	t.own.close()
	t.base.close()
	t.index.close()
	t.counts.close()
	t.dead.close()
	*t = Table{hash: t.hash}
}

// Apply makes the changes of a batch, all of them or, with ErrBatch, none.
func (t *Table) Apply(batch []byte) error {
	if err := check(batch); err != nil {
		return err
	}
	return t.Replay(batch)
}

// Replay is Apply of a batch that a table took before. Of one that is not, with ErrBatch, a part may have been applied.
func (t *Table) Replay(batch []byte) error {
	d := decoder{rest: batch}
	for p := (put{}); d.next(&p); {
		t.apply(&p)
	}
	return d.err(batch)
}

func (t *Table) apply(p *put) {
	switch p.code {
	case putInode:
		t.putInode(t.need(p.node), p)
	case putEntry:
		t.setEntry(t.need(p.node), p.name, p.child)
	case putHidden:
		t.setEntry(t.need(p.node), p.name, 0)
	case putClear:
		if r := t.find(p.node); r != nil {
			t.clearEntry(r, p.name)
			t.vacate(p.node, r)
		}
	case putTarget:
		t.setTarget(t.need(p.node), string(p.value))
	case putXattr:
		t.setXattr(t.need(p.node), p.name, p.value)
	case putNoXattr:
		if r := t.find(p.node); r != nil {
			t.removeXattr(r, p.name)
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
		t.setEntryAt(t.need(p.node), p.name, p.child, p.nth)
	case putKept:
		t.keep(p.kept)
	case putUnkept:
		t.unkeep(p.number, p.last)
	}
}

func (t *Table) putInode(r *record, p *put) {
	if !r.is(recordInode) {
		r.state |= recordInode
		t.totals.Inodes++
	}
	in := &p.inode
	for i, f := range [...]struct{ to, from *uint32 }{
		{&r.mode, &in.Mode}, {&r.nlink, &in.Nlink}, {&r.uid, &in.UID}, {&r.gid, &in.GID}, {&r.rdev, &in.Rdev}, {&r.flags, &in.Flags},
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

func (t *Table) setCounter(c Counter, v uint64) {
	if c == CounterGeneration {
		t.floor = max(t.floor, uint32(min(v, noGeneration)))
		t.freed = max(t.freed, t.floor)
		return
	}
	t.counters[c] = v
}

// vacate frees the record of a base node of which nothing is left.
func (t *Table) vacate(n Node, r *record) {
	if !n.Own() && !r.is(recordInode) && r.dir == 0 && r.target == 0 && r.xattrs == 0 {
		t.drop(n)
	}
}

// wipe takes everything out of a record but whose it is and its place in the list of free ones.
func (t *Table) wipe(r *record) {
	t.dropEntries(r)
	t.dropTarget(r)
	t.dropXattrs(r)
	if r.is(recordInode) {
		t.totals.Inodes--
	}
	*r = record{key: r.key, state: r.state &^ (recordUsed | recordInode | recordReserved)}
}

// Inode returns a node's inode.
func (t *Table) Inode(n Node) (Inode, bool) {
	r := t.find(n)
	if r == nil || !r.is(recordInode) {
		return Inode{}, false
	}
	return r.inode(n), true
}

// Entry returns what is known of a name in a directory.
func (t *Table) Entry(dir Node, name string) (Node, Presence) {
	if r := t.find(dir); r != nil && r.dir != 0 {
		if e, _, _ := t.search(view[directory](&t.arena, r.dir), name); e != nil {
			if e.node == 0 {
				return 0, Hidden
			}
			return e.node, Present
		}
	}
	return 0, Unknown
}

// ReadDir calls emit for the entries behind a cookie (0: from the start) until it returns false. The name lies in
// the table: clone it to keep it. A hidden entry's node is 0. Cookies are below 1<<49. Entries that stay are met
// exactly once, whatever is put between two calls.
func (t *Table) ReadDir(dir Node, after uint64, emit func(name string, n Node, cookie uint64) bool) {
	r := t.find(dir)
	if r == nil || r.dir == 0 {
		return
	}
	d := view[directory](&t.arena, r.dir)
	for p := t.seek(d, after); ; p.at++ { // a cookie is the key plus one
		var e *dentry
		if e, p = t.entry(d, p); e == nil || !emit(e.name(), e.node, e.key()+1) {
			return
		}
	}
}

// EntryCount returns how many entries a directory has here.
func (t *Table) EntryCount(dir Node) (present, hidden int) {
	if r := t.find(dir); r != nil && r.dir != 0 {
		d := view[directory](&t.arena, r.dir)
		return int(d.present), int(d.hidden)
	}
	return 0, 0
}

// Target says where a symbolic link leads.
func (t *Table) Target(n Node) (string, bool) {
	if r := t.find(n); r != nil && r.target != 0 {
		return string(t.target(r)), true
	}
	return "", false
}

// HasXattrs reports whether a node has extended attributes.
func (t *Table) HasXattrs(n Node) bool {
	r := t.find(n)
	return r != nil && r.xattrs != 0
}

// Xattr returns an extended attribute.
func (t *Table) Xattr(n Node, name string) (value []byte, ok bool) {
	if r := t.find(n); r != nil {
		for at := r.xattrs; at != 0; {
			x, have, value := t.xattr(at)
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
			x, name, _ := t.xattr(at)
			names = append(names, strings.Clone(name))
			at = x.next
		}
	}
	slices.Sort(names)
	return names
}

// Counter returns a counter.
func (t *Table) Counter(c Counter) uint64 {
	if c == CounterGeneration {
		return uint64(t.freed)
	}
	return t.counters[c]
}

// Totals returns how much there is.
func (t *Table) Totals() Totals {
	all := t.totals
	all.Dead, all.Kept = int64(t.dead.count), int64(len(t.kept))
	all.Bytes = t.own.bytes() + t.base.bytes() + int64(len(t.arena.chunks)*chunkSize+len(t.index.memory)+len(t.dead.memory))
	return all
}

// EachInode calls emit for every inode until it returns false, own ones first.
func (t *Table) EachInode(emit func(Inode) bool) {
	t.eachRecord(func(n Node, r *record) bool { return !r.is(recordInode) || emit(r.inode(n)) })
}

// EachDir calls emit for every node that has entries, until it returns false.
func (t *Table) EachDir(emit func(dir Node) bool) {
	t.eachRecord(func(n Node, r *record) bool { return r.dir == 0 || emit(n) })
}

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

// EachDead calls emit for every content that is dead and not gone, until it returns false.
func (t *Table) EachDead(emit func(number uint64) bool) { t.dead.each(emit) }
