package cache

import (
	"hash/maphash"
	"math/bits"
)

// refs is a hash table of references to entries that are stored elsewhere: 5 to 8 bytes of memory
// for each, where a Go map of ids would take over 60. It uses open addressing with linear probing.
// Keys are hashed with a random seed, so that ids cannot be made to collide. A reference is never
// 0.
//
// The caller supplies the keys: hash computes the key of a reference when entries move, and
// look-ups compare keys.
type refs struct {
	slots []uint32 // 0 is free
	n     int
	hash  func(ref uint32) uint64
}

const minSlots = 64

var hashSeed = maphash.MakeSeed()

// hashSum hashes the bytes of an id.
func hashSum(sum []byte) uint64 { return maphash.Bytes(hashSeed, sum) }

// home returns the preferred slot of a key with hash h.
func (t *refs) home(h uint64) int {
	hi, _ := bits.Mul64(h, uint64(len(t.slots)))
	return int(hi)
}

// next returns the slot after i; the first one follows the last.
func (t *refs) next(i int) int {
	if i++; i == len(t.slots) {
		return 0
	}
	return i
}

// find returns the position of the reference for which is returns true. ok is false if there is
// none.
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

// add adds a reference whose key is not in the table.
func (t *refs) add(h uint64, ref uint32) {
	if 4*(t.n+1) > 3*len(t.slots) {
		t.resize(max(minSlots, len(t.slots)*3/2))
	}
	t.place(h, ref)
	t.n++
}

// place puts a reference into the first free slot from its home on.
func (t *refs) place(h uint64, ref uint32) {
	at := t.home(h)
	for t.slots[at] != 0 {
		at = t.next(at)
	}
	t.slots[at] = ref
}

// reserve grows the table so that it has room for n references in all.
func (t *refs) reserve(n int) {
	if want := n*4/3 + 1; want > len(t.slots) {
		t.resize(max(minSlots, want))
	}
}

// resize moves all references to a table with this number of slots.
func (t *refs) resize(slots int) {
	old := t.slots
	t.slots = make([]uint32, slots)
	for _, ref := range old {
		if ref != 0 {
			t.place(t.hash(ref), ref)
		}
	}
}

// remove empties a slot and closes the gap, so that no search ends early at it.
func (t *refs) remove(at int) {
	t.n--
	for gap, i := at, t.next(at); ; i = t.next(i) {
		ref := t.slots[i]
		if ref == 0 {
			t.slots[gap] = 0
			return
		}
		// An entry may move back into the gap unless its home position is after the gap.
		home := t.home(t.hash(ref))
		if gap <= i && (home <= gap || home > i) || gap > i && home <= gap && home > i {
			t.slots[gap] = ref
			gap = i
		}
	}
}
