package odb

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"sort"
	"sync"

	"github.com/artifactfs/artifactfs/git/object"
)

// table lists the records of a pack in the order of the entries, and finds them by id. A record without an id is a
// delta whose base has not arrived yet. With SHA-1, a record takes 32 bytes, and its slot 5 to 11 bytes on average. The
// records are in chunks that are never moved and contain no pointers, so the garbage collector does not scan them.
//
// Only one goroutine may modify the table and call the methods that read it. Any goroutine may call findOffset.
type table struct {
	idLen, width int    // length of an id and of a record, in bytes
	seed         uint64 // random number, so that a remote cannot choose ids that collide in slots

	mu sync.RWMutex // protects the fields below; the goroutine that modifies the table may read these fields without mu
	// n is the number of records.
	n int
	// named is the number of slots in use. If several records have the same id, slots refers only to the first of them.
	named  int
	chunks [][]byte // each chunk has room for chunkRecords records
	// record number + 1, or 0 if free; an open-addressing hash table, whose length is a power of two, at most 3/4 full
	slots []uint32
}

const (
	chunkRecords = 1 << 10
	// After the id, a record has a word of 64 bits: 46 bits for the offset, 3 for the type and 15 for the depth of the
	// delta chain.
	typeShift   = 46
	depthShift  = 49
	maxPackSize = 1<<typeShift - 1
)

// newTable returns an empty table for ids of the format f.
func newTable(f object.Format) *table {
	return &table{idLen: f.Size(), width: f.Size() + 8 + 4, seed: rand.Uint64() | 1, slots: make([]uint32, 64)}
}

// record returns the bytes of record i: the id, then 8 bytes with offset, type and depth, then 4 bytes with the CRC-32.
func (t *table) record(i int) []byte {
	at := i % chunkRecords * t.width
	return t.chunks[i/chunkRecords][at : at+t.width : at+t.width]
}

// offset returns the offset of entry i in the pack, in bytes.
func (t *table) offset(i int) int64 {
	return int64(binary.LittleEndian.Uint64(t.record(i)[t.idLen:]) & maxPackSize)
}

// typ returns the type of the object of entry i, or 0 if the type is not known yet.
func (t *table) typ(i int) object.Type {
	return object.Type(binary.LittleEndian.Uint64(t.record(i)[t.idLen:]) >> typeShift & 7)
}

// depth returns the number of deltas between entry i and a plain entry.
func (t *table) depth(i int) int {
	return int(binary.LittleEndian.Uint64(t.record(i)[t.idLen:]) >> depthShift)
}

// crc returns the CRC-32 of the bytes of entry i in the pack.
func (t *table) crc(i int) uint32 { return binary.LittleEndian.Uint32(t.record(i)[t.idLen+8:]) }

// sum returns the id of entry i as bytes, which are part of the table.
func (t *table) sum(i int) []byte { return t.record(i)[:t.idLen] }

// id returns the id of entry i.
func (t *table) id(i int) object.ID {
	id, _ := object.FromBytes(t.sum(i))
	return id
}

// add appends a record for the entry at the offset off, and returns the number of the record. The id of the record is
// set later by the method name.
func (t *table) add(off int64, crc uint32) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n%chunkRecords == 0 {
		t.chunks = append(t.chunks, make([]byte, chunkRecords*t.width))
	}
	i := t.n
	t.n++
	r := t.record(i)
	binary.LittleEndian.PutUint64(r[t.idLen:], uint64(off))
	binary.LittleEndian.PutUint32(r[t.idLen+8:], crc)
	return i
}

// name sets the id, type and depth of record i. From then on find returns the record for this id, unless an earlier
// record has the same id.
func (t *table) name(i int, id object.ID, typ object.Type, depth int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if 4*(t.named+1) > 3*len(t.slots) {
		t.grow()
	}
	r := t.record(i)
	copy(r, id.Bytes())
	off := binary.LittleEndian.Uint64(r[t.idLen:])
	binary.LittleEndian.PutUint64(r[t.idLen:], off|uint64(typ)<<typeShift|uint64(depth)<<depthShift)
	// If several records have the same id, keep the first one in the slot, so that all readers use the same copy of the
	// object.
	if s := t.slot(r[:t.idLen]); t.slots[s] == 0 {
		t.slots[s] = uint32(i) + 1
		t.named++
	}
}

// grow doubles the length of slots and inserts all records again. The caller must hold mu.
func (t *table) grow() {
	old := t.slots
	t.slots = make([]uint32, 2*len(old))
	for _, v := range old {
		if v != 0 {
			t.slots[t.slot(t.sum(int(v-1)))] = v
		}
	}
}

// slot returns the index in slots for the id sum: the slot that refers to the record with this id, or a free slot.
func (t *table) slot(sum []byte) int {
	h := binary.LittleEndian.Uint64(sum) ^ t.seed
	h *= 0x9e3779b97f4a7c15 ^ t.seed<<1
	mask := len(t.slots) - 1
	for s := int(h>>33) & mask; ; s = (s + 1) & mask {
		if v := t.slots[s]; v == 0 || string(t.sum(int(v-1))) == string(sum) {
			return s
		}
	}
}

// find returns the number of the record with this id. Only the goroutine that modifies the table may call it.
func (t *table) find(id object.ID) (int, bool) {
	if len(id.Bytes()) != t.idLen {
		return 0, false
	}
	v := t.slots[t.slot(id.Bytes())]
	return int(v) - 1, v != 0
}

// findOffset returns the offset of the entry with this id. It returns false if there is no such entry.
func (t *table) findOffset(id object.ID) (int64, bool) {
	if len(id.Bytes()) != t.idLen {
		return 0, false
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	v := t.slots[t.slot(id.Bytes())]
	if v == 0 {
		return 0, false
	}
	return t.offset(int(v - 1)), true
}

// at returns the number of the record whose entry is at the offset off. Only the goroutine that modifies the table may
// call it.
func (t *table) at(off int64) (int, bool) {
	i := sort.Search(t.n, func(i int) bool { return t.offset(i) >= off })
	return i, i < t.n && t.offset(i) == off
}

// sorted returns the numbers of the records in the order of their ids. Only the goroutine that modifies the table may
// call it.
func (t *table) sorted() []uint32 {
	// Ids are evenly distributed, so the bucket for each value of the first two bytes contains few ids.
	ends := make([]uint32, 1<<16+1)
	for i := range t.n {
		ends[int(binary.BigEndian.Uint16(t.sum(i)))+1]++
	}
	for p := range 1 << 16 {
		ends[p+1] += ends[p]
	}
	order := make([]uint32, t.n)
	next := make([]uint32, 1<<16)
	copy(next, ends)
	for i := range t.n {
		p := binary.BigEndian.Uint16(t.sum(i))
		order[next[p]] = uint32(i)
		next[p]++
	}
	for p := range 1 << 16 {
		if b := order[ends[p]:ends[p+1]]; len(b) > 1 {
			slices.SortFunc(b, func(x, y uint32) int { return bytes.Compare(t.sum(int(x)), t.sum(int(y))) })
		}
	}
	return order
}
