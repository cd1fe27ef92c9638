package cache

import (
	"hash/maphash"
	"math/bits"
)

// refs is a hash table of references to entries that are stored elsewhere. It needs 5 to 8 bytes of memory for each
// reference; a Go map with ids as keys would need over 60. It uses open addressing with linear probing. Ids are hashed
// with a random seed, so that a remote cannot choose ids that collide. A reference is never 0.
//
// The table does not store keys. The function hash computes the hash of the entry to which a reference refers, and the
// caller of find compares keys.
type refs struct {
	slots []uint32 // 0 means that the slot is free
	n     int      // number of references
	hash  func(ref uint32) uint64
}

// minSlots is the number of slots of the smallest table that is not empty.
const minSlots = 64

var hashSeed = maphash.MakeSeed()

// hashSum hashes the bytes of an id.
func hashSum(sum []byte) uint64 { return maphash.Bytes(hashSeed, sum) }

// home returns the slot at which the search for a key with the hash h begins.
func (t *refs) home(h uint64) int {
	hi, _ := bits.Mul64(h, uint64(len(t.slots)))
	return int(hi)
}

// next returns the slot after slot i. After the last slot it returns the first.
func (t *refs) next(i int) int {
	if i++; i == len(t.slots) {
		return 0
	}
	return i
}

// find returns the slot of the reference to a key with the hash h. The parameter is is a function that reports whether
// a reference belongs to the requested key. The result ok is false if there is no such reference.
func (t *refs) find(h uint64, is func(ref uint32) bool) (at int, ok bool) {
	if t.n == 0 {
		return 0, false
	}
	for at = t.home(h); t.slots[at] != 0; at = t.next(at) {
		if is(t.slots[at]) {
			return at, true
		}
	}
	return 0, false
}

// add adds a reference to a key with the hash h. The table must not contain the key yet.
func (t *refs) add(h uint64, ref uint32) {
	if 4*(t.n+1) > 3*len(t.slots) {
		t.resize(max(minSlots, len(t.slots)*3/2))
	}
	t.place(h, ref)
	t.n++
}

// place stores a reference in the first free slot, beginning at the slot home(h).
func (t *refs) place(h uint64, ref uint32) {
	at := t.home(h)
	for t.slots[at] != 0 {
		at = t.next(at)
	}
	t.slots[at] = ref
}

// reserve makes the table large enough for n references in total.
func (t *refs) reserve(n int) {
	if want := n*4/3 + 1; want > len(t.slots) {
		t.resize(max(minSlots, want))
	}
}

// resize moves all references to a new table with the given number of slots.
func (t *refs) resize(slots int) {
	old := t.slots
	t.slots = make([]uint32, slots)
	for _, ref := range old {
		if ref != 0 {
			t.place(t.hash(ref), ref)
		}
	}
}

// remove removes the reference in the slot at the index at. It moves later references forward if necessary, because a
// search ends at the first empty slot and would not find the references after it.
func (t *refs) remove(at int) {
	t.n--
	for gap, i := at, t.next(at); ; i = t.next(i) {
		ref := t.slots[i]
		if ref == 0 {
			t.slots[gap] = 0
			return
		}
		// Move the reference to the gap, unless the search for its key begins after the gap.
		home := t.home(t.hash(ref))
		if gap <= i && (home <= gap || home > i) || gap > i && home <= gap && home > i {
			t.slots[gap] = ref
			gap = i
		}
	}
}
