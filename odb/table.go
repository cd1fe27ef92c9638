package odb

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"sort"
	"sync"

	"github.com/artifactfs/artifactfs/object"
)

// table lists the records of a pack in the order of their entries and finds them by id. A record
// without an id is a delta whose base has not arrived yet. It takes 32 bytes an object with SHA-1
// and 5-11 for its slots, in pieces that never move, without pointers for the garbage collector.
//
// One goroutine writes and reads; any number of others may call findOffset.
type table struct {
	idLen, width int    // length of an id, and of a record, in bytes
	seed         uint64 // so that remotes cannot choose ids that collide

	mu sync.RWMutex // guards the fields below; the one writer may read them without it
	n  int
	// named is the number of records in slots.
	named  int
	chunks [][]byte
	slots  []uint32 // record + 1, open addressing, a power of two long, at most 3/4 full
}

const (
	chunkRecords = 1 << 10
	// One word of a record: 46 bits of offset, 3 of type, 15 of the depth of the delta chain.
	typeShift   = 46
	depthShift  = 49
	maxPackSize = 1<<typeShift - 1
)

// newTable returns an empty table for ids of format f.
func newTable(f object.Format) *table {
	return &table{idLen: f.Size(), width: f.Size() + 8 + 4, seed: rand.Uint64() | 1, slots: make([]uint32, 64)}
}

// record returns the bytes of record i: id, then offset, type and depth (8 bytes), then CRC-32 (4 bytes).
func (t *table) record(i int) []byte {
	at := i % chunkRecords * t.width
	return t.chunks[i/chunkRecords][at : at+t.width : at+t.width]
}

// offset returns the offset in the pack of entry i, in bytes.
func (t *table) offset(i int) int64 {
	return int64(binary.LittleEndian.Uint64(t.record(i)[t.idLen:]) & maxPackSize)
}

// typ returns the type of entry i, or 0 if its object is not known yet.
func (t *table) typ(i int) object.Type {
	return object.Type(binary.LittleEndian.Uint64(t.record(i)[t.idLen:]) >> typeShift & 7)
}

// depth returns the number of deltas between entry i and plain contents.
func (t *table) depth(i int) int {
	return int(binary.LittleEndian.Uint64(t.record(i)[t.idLen:]) >> depthShift)
}

// crc returns the CRC-32 of entry i as it is in the pack.
func (t *table) crc(i int) uint32 { return binary.LittleEndian.Uint32(t.record(i)[t.idLen+8:]) }

// sum returns the bytes of the id of entry i. They are part of the table.
func (t *table) sum(i int) []byte { return t.record(i)[:t.idLen] }

// id returns the id of entry i.
func (t *table) id(i int) object.ID {
	id, _ := object.FromBytes(t.sum(i))
	return id
}

// add appends the record of the entry at off, still without an id.
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

// name sets the id of record i. From then on find returns it, unless an earlier record has the same
// id.
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
	// The first of several records with one id stays in the slot, so that all readers use the same copy.
	if s := t.slot(r[:t.idLen]); t.slots[s] == 0 {
		t.slots[s] = uint32(i) + 1
		t.named++
	}
}

// grow doubles slots and enters all records anew. The caller holds mu.
func (t *table) grow() {
	old := t.slots
	t.slots = make([]uint32, 2*len(old))
	for _, v := range old {
		if v != 0 {
			t.slots[t.slot(t.sum(int(v-1)))] = v
		}
	}
}

// slot returns the index in slots of the record with the id sum, or of the free slot for it.
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

// find returns the record with this id. Only the writer may call it.
func (t *table) find(id object.ID) (int, bool) {
	if len(id.Bytes()) != t.idLen {
		return 0, false
	}
	v := t.slots[t.slot(id.Bytes())]
	return int(v) - 1, v != 0
}

// findOffset returns the offset of the entry with this id.
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

// at returns the record of the entry that starts at off. Only the writer may call it.
func (t *table) at(off int64) (int, bool) {
	i := sort.Search(t.n, func(i int) bool { return t.offset(i) >= off })
	return i, i < t.n && t.offset(i) == off
}

// sorted returns the records in the order of their ids. Only the writer may call it.
func (t *table) sorted() []uint32 {
	// Ids are evenly spread: two bytes of prefix leave a handful in each bucket.
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
