package state

import (
	"sort"
	"strings"
	"unsafe"
)

// directory holds the entries of one node in the order of their keys. A key is the hash of the name (seeded with what
// nobody knows, so that nobody can aim at collisions) and, of names with the same hash, a number. An entry keeps its
// key for as long as it exists; so a key says where a reader of the directory is, whatever comes and goes meanwhile. A
// dump tells the numbers, so that a table which is made from it has the same keys.
//
// The entries' refs lie in leaves of up to leafMax, so that to insert moves little, and one array of leaves.
type directory struct {
	present, hidden uint32
	count, room     uint32 // of leaves
	leaves          ref    // [room]leaf, of which count are used
}

type leaf struct {
	first       uint64 // key of the first entry
	refs        ref    // [room]ref of dentries, of which count are used
	count, room uint16 // count > 0
}

// dentry stands before the bytes of its name.
type dentry struct {
	node Node // 0: hidden
	hash uint32
	nth  uint16 // among those of the same hash
	len  uint8
}

const (
	directorySize = int(unsafe.Sizeof(directory{}))
	leafSize      = int(unsafe.Sizeof(leaf{}))
	dentrySize    = int(unsafe.Sizeof(dentry{}))
	nthBits       = 16
	leafMax       = 256
)

func (e *dentry) key() uint64 { return uint64(e.hash)<<nthBits | uint64(e.nth) }

// name lies in the arena.
func (e *dentry) name() string {
	return unsafe.String((*byte)(unsafe.Add(unsafe.Pointer(e), dentrySize)), int(e.len))
}

// place is where an entry is or belongs.
type place struct{ leaf, at int }

func (t *Table) leaves(d *directory) []leaf { return array[leaf](&t.arena, d.leaves, int(d.count)) }

func (t *Table) refs(l *leaf) []ref { return array[ref](&t.arena, l.refs, int(l.count)) }

func (t *Table) dentry(r ref) *dentry { return view[dentry](&t.arena, r) }

// seek finds the first place whose key is not below the given one; it may lie behind the last entry of its leaf.
func (t *Table) seek(d *directory, key uint64) place {
	leaves := t.leaves(d)
	i := max(0, sort.Search(len(leaves), func(i int) bool { return leaves[i].first > key })-1)
	if i == len(leaves) {
		return place{}
	}
	refs := t.refs(&leaves[i])
	return place{i, sort.Search(len(refs), func(j int) bool { return t.dentry(refs[j]).key() >= key })}
}

// entry returns the entry at a place or the first behind it.
func (t *Table) entry(d *directory, p place) (*dentry, place) {
	leaves := t.leaves(d)
	if p.leaf < len(leaves) && p.at == int(leaves[p.leaf].count) {
		p = place{p.leaf + 1, 0}
	}
	if p.leaf >= len(leaves) {
		return nil, p
	}
	return t.dentry(t.refs(&leaves[p.leaf])[p.at]), p
}

// search finds a name, or the place and the key for it.
func (t *Table) search(d *directory, name string) (e *dentry, p place, key uint64) {
	hash := t.hash(name)
	key = uint64(hash) << nthBits
	free := t.seek(d, key)
	for p := free; ; p.at++ {
		var e *dentry
		e, p = t.entry(d, p)
		if e == nil || e.hash != hash {
			return nil, free, key
		}
		if e.name() == name {
			return e, p, e.key()
		}
		if e.key() == key { // taken; the place for the next one is behind it
			key++
			free = place{p.leaf, p.at + 1}
		}
	}
}

// setEntry makes a name present (n != 0) or hidden.
func (t *Table) setEntry(r *record, name string, n Node) {
	if r.dir == 0 {
		t.beginDir(r)
	}
	d := view[directory](&t.arena, r.dir)
	e, p, key := t.search(d, name)
	if e == nil {
		t.addEntry(d, name, n, p, key)
		return
	}
	t.count(d, e.node, -1)
	e.node = n
	t.count(d, n, +1)
}

// setEntryAt is setEntry, as the nth of those with the name's hash. Another that has this place makes way: the dump that
// says so comes to it later, and says where it is.
func (t *Table) setEntryAt(r *record, name string, n Node, nth uint16) {
	if r.dir == 0 {
		t.beginDir(r)
	}
	d := view[directory](&t.arena, r.dir)
	e, p, key := t.search(d, name)
	switch {
	case e == nil && uint16(key) == nth:
		t.addEntry(d, name, n, p, key)
		return
	case e == nil:
	case e.nth == nth:
		t.count(d, e.node, -1)
		e.node = n
		t.count(d, n, +1)
		return
	default:
		t.count(d, e.node, -1)
		t.remove(d, p)
	}
	key = key&^(1<<nthBits-1) | uint64(nth)
	e, p = t.entry(d, t.seek(d, key))
	if e == nil || e.key() != key {
		t.addEntry(d, name, n, t.seek(d, key), key)
		return
	}
	other, at := strings.Clone(e.name()), e.node
	t.count(d, at, -1)
	t.remove(d, p)
	t.addEntry(d, name, n, t.seek(d, key), key)
	t.setEntry(r, other, at)
}

func (t *Table) beginDir(r *record) {
	r.dir = t.arena.alloc(directorySize)
	*view[directory](&t.arena, r.dir) = directory{}
}

// addEntry adds an entry at its place, which is free.
func (t *Table) addEntry(d *directory, name string, n Node, p place, key uint64) {
	ref := t.arena.alloc(dentrySize + len(name))
	*t.dentry(ref) = dentry{node: n, hash: uint32(key >> nthBits), nth: uint16(key), len: uint8(len(name))}
	copy(t.arena.bytes(ref, dentrySize+len(name))[dentrySize:], name)
	t.insert(d, p, ref, key)
	t.count(d, n, +1)
}

func (t *Table) count(d *directory, n Node, by int) {
	if n == 0 {
		d.hidden += uint32(by)
		t.totals.Hidden += int64(by)
	} else {
		d.present += uint32(by)
		t.totals.Entries += int64(by)
	}
}

// clearEntry takes a name out.
func (t *Table) clearEntry(r *record, name string) {
	if r.dir == 0 {
		return
	}
	d := view[directory](&t.arena, r.dir)
	e, p, _ := t.search(d, name)
	if e == nil {
		return
	}
	t.count(d, e.node, -1)
	t.remove(d, p)
	if d.count == 0 {
		t.arena.release(r.dir, directorySize)
		r.dir = 0
	}
}

// dropEntries takes all names out.
func (t *Table) dropEntries(r *record) {
	if r.dir == 0 {
		return
	}
	d := view[directory](&t.arena, r.dir)
	for i := range t.leaves(d) {
		l := &t.leaves(d)[i]
		for _, ref := range t.refs(l) {
			e := t.dentry(ref)
			t.count(d, e.node, -1)
			t.arena.release(ref, dentrySize+int(e.len))
		}
		t.arena.release(l.refs, int(l.room)*4)
	}
	t.arena.release(d.leaves, int(d.room)*leafSize)
	t.arena.release(r.dir, directorySize)
	r.dir = 0
}
