package state

import (
	"sort"
	"strings"
	"unsafe"
)

// directory holds the entries of one node, sorted by key. A key consists of the hash of the name and a number that
// distinguishes names with the same hash. The hash is seeded with a secret, so that no user can cause collisions on
// purpose. An entry has the same key for as long as it exists. So a key marks a position in the directory that stays
// valid while other entries are added and removed. A dump contains the numbers of the keys, so a table that is built
// from the dump has the same keys.
//
// The refs of the entries are stored in leaves of up to leafMax refs, which makes insertions cheap. The leaves are
// stored in one array.
type directory struct {
	// present and hidden are the numbers of present and of hidden entries.
	present, hidden uint32
	count, room     uint32 // count is the number of used leaves, and room is the number of leaves that fit into the array
	leaves          ref    // array of leaves
}

// leaf holds the refs of up to leafMax consecutive entries.
type leaf struct {
	first uint64 // key of the first entry
	// refs is an array of dentry refs. It has room for room refs, of which the first count are used.
	refs        ref
	count, room uint16 // count is never 0
}

// dentry is the header of one entry. The bytes of the entry's name follow in memory.
type dentry struct {
	node Node   // node that the entry names; 0 if the name is hidden
	hash uint32 // hash of the name
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

// key returns the sort key of the entry: the hash of its name, then its number among the entries with that hash.
func (e *dentry) key() uint64 { return uint64(e.hash)<<nthBits | uint64(e.nth) }

// name returns the entry's name. The string points into the arena.
func (e *dentry) name() string {
	return unsafe.String((*byte)(unsafe.Add(unsafe.Pointer(e), dentrySize)), int(e.len))
}

// place is the position of an existing or new entry: the index of its leaf, and its index in the leaf.
type place struct{ leaf, at int }

// directories changes and searches the directories of a Table, whose blocks are in the table's arena. It has no lock:
// the rules of Table apply. A record refers to its directory, so the methods take the record or the directory.
type directories struct {
	arena *arena
	// hash is the seeded hash function, which determines the order of the names in directories.
	hash            func(name string) uint32
	present, hidden int64 // numbers of entries in all directories
}

// leaves returns the used leaves of a directory.
func (s *directories) leaves(d *directory) []leaf {
	return array[leaf](s.arena, d.leaves, int(d.count))
}

// refs returns the used refs of a leaf.
func (s *directories) refs(l *leaf) []ref { return array[ref](s.arena, l.refs, int(l.count)) }

// dentry returns the entry at a ref.
func (s *directories) dentry(r ref) *dentry { return view[dentry](s.arena, r) }

// seek returns the place of the first entry whose key is at least key. The place may be behind the last entry of its
// leaf.
func (s *directories) seek(d *directory, key uint64) place {
	leaves := s.leaves(d)
	i := max(0, sort.Search(len(leaves), func(i int) bool { return leaves[i].first > key })-1)
	if i == len(leaves) {
		return place{}
	}
	refs := s.refs(&leaves[i])
	return place{i, sort.Search(len(refs), func(j int) bool { return s.dentry(refs[j]).key() >= key })}
}

// entry returns the entry at p with its place or, if p lies behind the last entry of its leaf, the first entry of the
// next leaf. It returns nil at the end of the directory.
func (s *directories) entry(d *directory, p place) (*dentry, place) {
	leaves := s.leaves(d)
	if p.leaf < len(leaves) && p.at == int(leaves[p.leaf].count) {
		p = place{p.leaf + 1, 0}
	}
	if p.leaf >= len(leaves) {
		return nil, p
	}
	return s.dentry(s.refs(&leaves[p.leaf])[p.at]), p
}

// search returns the entry of a name with its place and key. If there is no such entry, search returns nil, and the
// place and the key that a new entry with this name would have.
func (s *directories) search(d *directory, name string) (e *dentry, p place, key uint64) {
	hash := s.hash(name)
	key = uint64(hash) << nthBits
	free := s.seek(d, key)
	for p := free; ; p.at++ {
		var e *dentry
		e, p = s.entry(d, p)
		if e == nil || e.hash != hash {
			return nil, free, key
		}
		if e.name() == name {
			return e, p, e.key()
		}
		// If the number of the key is in use, try the next number for a new entry.
		if e.key() == key {
			key++
			free = place{p.leaf, p.at + 1}
		}
	}
}

// setEntry makes a name present (n != 0) or hidden (n == 0) in a record's directory.
func (s *directories) setEntry(r *record, name string, n Node) {
	if r.dir == 0 {
		s.beginDir(r)
	}
	d := view[directory](s.arena, r.dir)
	e, p, key := s.search(d, name)
	if e == nil {
		s.addEntry(d, name, n, p, key)
		return
	}
	s.count(d, e.node, -1)
	e.node = n
	s.count(d, n, +1)
}

// setEntryAt does the same as setEntry for an entry that must have the number nth among the entries with the same hash.
// If another entry has this number, setEntryAt moves that entry to a free number. The dump that is being applied
// contains the other entry at a later position, and then restores its number.
func (s *directories) setEntryAt(r *record, name string, n Node, nth uint16) {
	if r.dir == 0 {
		s.beginDir(r)
	}
	d := view[directory](s.arena, r.dir)
	e, p, key := s.search(d, name)
	switch {
	case e == nil && uint16(key) == nth:
		s.addEntry(d, name, n, p, key)
		return
	case e == nil:
	case e.nth == nth:
		s.count(d, e.node, -1)
		e.node = n
		s.count(d, n, +1)
		return
	default:
		s.count(d, e.node, -1)
		s.remove(d, p)
	}
	key = key&^(1<<nthBits-1) | uint64(nth)
	e, p = s.entry(d, s.seek(d, key))
	if e == nil || e.key() != key {
		s.addEntry(d, name, n, s.seek(d, key), key)
		return
	}
	other, at := strings.Clone(e.name()), e.node
	s.count(d, at, -1)
	s.remove(d, p)
	s.addEntry(d, name, n, s.seek(d, key), key)
	s.setEntry(r, other, at)
}

// beginDir creates an empty directory for a record.
func (s *directories) beginDir(r *record) {
	r.dir = s.arena.alloc(directorySize)
	*view[directory](s.arena, r.dir) = directory{}
}

// addEntry adds an entry with the given key at place p. The directory must not have an entry with this name.
func (s *directories) addEntry(d *directory, name string, n Node, p place, key uint64) {
	ref := s.arena.alloc(dentrySize + len(name))
	*s.dentry(ref) = dentry{node: n, hash: uint32(key >> nthBits), nth: uint16(key), len: uint8(len(name))}
	copy(s.arena.bytes(ref, dentrySize+len(name))[dentrySize:], name)
	s.insert(d, p, ref, key)
	s.count(d, n, +1)
}

// count adds the number by, which may be negative, to the number of hidden entries if n is 0, and otherwise to the
// number of present entries.
func (s *directories) count(d *directory, n Node, by int) {
	if n == 0 {
		d.hidden += uint32(by)
		s.hidden += int64(by)
	} else {
		d.present += uint32(by)
		s.present += int64(by)
	}
}

// clearEntry removes the entry of a name. If it was the last entry, clearEntry also removes the directory.
func (s *directories) clearEntry(r *record, name string) {
	if r.dir == 0 {
		return
	}
	d := view[directory](s.arena, r.dir)
	e, p, _ := s.search(d, name)
	if e == nil {
		return
	}
	s.count(d, e.node, -1)
	s.remove(d, p)
	if d.count == 0 {
		s.arena.release(r.dir, directorySize)
		r.dir = 0
	}
}

// dropEntries removes all entries of a record's directory, and the directory.
func (s *directories) dropEntries(r *record) {
	if r.dir == 0 {
		return
	}
	d := view[directory](s.arena, r.dir)
	for i := range s.leaves(d) {
		l := &s.leaves(d)[i]
		for _, ref := range s.refs(l) {
			e := s.dentry(ref)
			s.count(d, e.node, -1)
			s.arena.release(ref, dentrySize+int(e.len))
		}
		s.arena.release(l.refs, int(l.room)*4)
	}
	s.arena.release(d.leaves, int(d.room)*leafSize)
	s.arena.release(r.dir, directorySize)
	r.dir = 0
}
