package state

import (
	"sync/atomic"
	"unsafe"
)

// counts holds the kernel's lookup counts of own nodes, in one 64-bit word for each slot. The upper 32 bits of a word
// are the generation of the node, the lower 32 bits its count. If the generation in the word differs from the node's
// generation, the count is 0, so the word of a slot need not be initialized for a new node. The memory is anonymous or
// supplied by the table's owner, who may keep the memory longer than the table exists.
type counts struct {
	chunks [][]byte // by slot number / slotsInChunk; nil where no node was stored yet
	memory Memory   // supplies the memory; if nil, anonymous memory is used
}

// Memory returns CountChunk bytes of memory for lookup counts, for the chunk at the offset off in bytes. The memory is
// zero where no lookup was counted.
type Memory func(off int64) ([]byte, error)

// CountChunk is the unit in bytes in which memory for lookup counts is allocated.
const CountChunk = 64 << 10

const (
	slotsInChunk = CountChunk / 8
	maxLookups   = 1<<32 - 1
)

// reach allocates the memory for the word of a slot, if the slot has none yet.
func (c *counts) reach(slot uint32) error {
	i := int(slot / slotsInChunk)
	for len(c.chunks) <= i {
		c.chunks = append(c.chunks, nil)
	}
	if c.chunks[i] != nil {
		return nil
	}
	if c.memory == nil {
		c.chunks[i] = mapAnonymous(CountChunk)
		return nil
	}
	m, err := c.memory(int64(i) * CountChunk)
	if err == nil {
		c.chunks[i] = m
	}
	return err
}

// word returns the word of a slot, or nil if it has no memory.
func (c *counts) word(slot uint32) *uint64 {
	i := int(slot / slotsInChunk)
	if i >= len(c.chunks) || c.chunks[i] == nil {
		return nil
	}
	return (*uint64)(unsafe.Pointer(&c.chunks[i][slot%slotsInChunk*8]))
}

// close unmaps the memory that the table allocated itself. The owner must unmap the memory that it supplied.
func (c *counts) close() {
	for _, m := range c.chunks {
		if m != nil && c.memory == nil {
			unmap(m)
		}
	}
	*c = counts{}
}

// Count starts to count lookups of own nodes. The function memory supplies the memory for the counts; if it is nil,
// anonymous memory is used. Nodes that exist already have the counts that the supplied memory contains.
func (t *Table) Count(memory Memory) (err error) {
	t.counts.close()
	t.counts.memory = memory
	t.own.each(0, func(i uint32, _ *record) bool {
		err = t.counts.reach(i)
		return err == nil
	})
	return err
}

// Remember adds one to the kernel's lookup count of an own node. It does nothing if the table does not have the node.
func (t *Table) Remember(n Node) {
	w := t.lookups(n)
	if w == nil {
		return
	}
	for {
		old := atomic.LoadUint64(w)
		have := old
		if uint32(old>>32) != generation(n) {
			have = uint64(generation(n)) << 32
		}
		// A count that has reached the limit stays there: the node then exists until the kernel's mount ends.
		if uint32(have) == maxLookups || atomic.CompareAndSwapUint64(w, old, have+1) {
			return
		}
	}
}

// Forget subtracts k from the lookup count of an own node, down to 0, and returns the remaining count.
func (t *Table) Forget(n Node, k uint64) (left uint64) {
	w := t.lookups(n)
	if w == nil {
		return 0
	}
	for {
		old := atomic.LoadUint64(w)
		if uint32(old>>32) != generation(n) {
			return 0
		}
		have := old & maxLookups
		left := max(have, k) - k
		if have == maxLookups {
			left = have
		}
		if atomic.CompareAndSwapUint64(w, old, old-have+left) {
			return left
		}
	}
}

// Lookups returns the kernel's lookup count of an own node, or 0 if the table does not have the node.
func (t *Table) Lookups(n Node) uint64 {
	w := t.lookups(n)
	if w == nil {
		return 0
	}
	if word := atomic.LoadUint64(w); uint32(word>>32) == generation(n) {
		return word & maxLookups
	}
	return 0
}

// lookups returns the word with the count of an own node, or nil if the table does not have the node.
func (t *Table) lookups(n Node) *uint64 {
	if !n.Own() || t.find(n) == nil {
		return nil
	}
	return t.counts.word(slot(n))
}
