package state

import (
	"sort"
	"strings"
	"unsafe"
)

// directory holds the entries of one node, sorted by key. A key is the hash of the name and a number that distinguishes
// names with the same hash. The hash is seeded with a secret, so that no user can cause collisions on purpose. An entry
// keeps its key for as long as it exists, so a key marks a position in the directory that stays valid while entries are
// added and removed. A dump contains the numbers, so a table that is built from it has the same keys.
//
// The refs of the entries are stored in leaves of up to leafMax refs, which keeps insertions cheap, and the leaves in
// one array.
type directory struct {
	// present and hidden count the entries of each kind.
	present, hidden uint32
	count, room     uint32 // number of leaves, used and allocated
	leaves          ref    // array of room leaves, of which count are used
}

// leaf holds the refs of consecutive entries.
type leaf struct {
	first       uint64 // key of the first entry
	refs        ref    // array of room refs of dentries, of which count are used
	count, room uint16 // count is never 0
}

// dentry is the header of one entry; the bytes of its name follow in memory.
type dentry struct {
	node Node // 0: the name is hidden
	hash uint32
	nth  uint16 // number among the entries with the same hash
	len  uint8  // length of the name in bytes
}

const (
	directorySize = int(unsafe.Sizeof(directory{}))
	leafSize      = int(unsafe.Sizeof(leaf{}))
	dentrySize    = int(unsafe.Sizeof(dentry{}))
	nthBits       = 16
	leafMax       = 256
)

// key returns the sort key of the entry: its hash, then its number among the entries with that hash.
func (e *dentry) key() uint64 { return uint64(e.hash)<<nthBits | uint64(e.nth) }

// name returns the entry's name, which points into the arena.
func (e *dentry) name() string {
	return unsafe.String((*byte)(unsafe.Add(unsafe.Pointer(e), dentrySize)), int(e.len))
}

// place is the position of an existing or a new entry: its leaf and its index in the leaf.
type place struct{ leaf, at int }

// leaves returns the used leaves of a directory.
func (t *Table) leaves(d *directory) []leaf { return array[leaf](&t.arena, d.leaves, int(d.count)) }

// refs returns the used refs of a leaf.
func (t *Table) refs(l *leaf) []ref { return array[ref](&t.arena, l.refs, int(l.count)) }

// dentry returns the entry at a ref.
func (t *Table) dentry(r ref) *dentry { return view[dentry](&t.arena, r) }

// seek returns the first place whose key is at least key; the place may be behind the last entry of its leaf.
func (t *Table) seek(d *directory, key uint64) place {
	leaves := t.leaves(d)
	i := max(0, sort.Search(len(leaves), func(i int) bool { return leaves[i].first > key })-1)
	if i == len(leaves) {
		return place{}
	}
	refs := t.refs(&leaves[i])
	return place{i, sort.Search(len(refs), func(j int) bool { return t.dentry(refs[j]).key() >= key })}
}

// entry returns the entry at p or, if p is behind the last entry of its leaf, the next one; nil at the end of the
// directory.
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

// search returns the entry of a name with its place and key. If there is none, it returns nil and the place and key for
// a new entry.
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
		if e.key() == key { // the number is in use: try the next one
			key++
			free = place{p.leaf, p.at + 1}
		}
	}
}

// setEntry makes a name present (n != 0) or hidden (n == 0).
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

// setEntryAt does the same as setEntry for an entry with number nth among those with the same hash. Another entry with
// this number is moved to a free one; the dump that is being applied has that entry later, with its own number.
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

// beginDir gives a record an empty directory.
func (t *Table) beginDir(r *record) {
	r.dir = t.arena.alloc(directorySize)
	*view[directory](&t.arena, r.dir) = directory{}
}

// addEntry adds an entry at its place, where no entry exists yet.
func (t *Table) addEntry(d *directory, name string, n Node, p place, key uint64) {
	ref := t.arena.alloc(dentrySize + len(name))
	*t.dentry(ref) = dentry{node: n, hash: uint32(key >> nthBits), nth: uint16(key), len: uint8(len(name))}
	copy(t.arena.bytes(ref, dentrySize+len(name))[dentrySize:], name)
	t.insert(d, p, ref, key)
	t.count(d, n, +1)
}

// count adds by to the number of entries of n's kind: hidden for 0, present otherwise.
func (t *Table) count(d *directory, n Node, by int) {
	if n == 0 {
		d.hidden += uint32(by)
		t.totals.Hidden += int64(by)
	} else {
		d.present += uint32(by)
		t.totals.Entries += int64(by)
	}
}

// clearEntry removes a name, and the directory with its last name.
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

// dropEntries removes all names of a directory.
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
