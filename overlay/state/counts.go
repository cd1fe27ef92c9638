package state

import (
	"sync/atomic"
	"unsafe"
)

// counts has the kernel's lookup counts of own nodes. A slot's word has the generation of the node in its upper and the
// count in its lower 32 bits: a word of another generation means a count of 0, so a new node in the slot needs no
// initialization. The memory is anonymous or supplied by the table's owner, who may keep it longer than the table lives.
type counts struct {
	chunks [][]byte // by slot number / slotsInChunk; nil where no node has been
	memory Memory
}

// Memory returns CountChunk bytes of memory for lookup counts at offset off, zero where nothing was counted.
type Memory func(off int64) ([]byte, error)

// CountChunk is the unit in bytes in which memory for lookup counts is allocated.
const CountChunk = 64 << 10

const (
	slotsInChunk = CountChunk / 8
	maxLookups   = 1<<32 - 1
)

// reach allocates the memory for the word of a slot.
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

// close unmaps the memory that the table allocated. The owner unmaps memory that it supplied.
func (c *counts) close() {
	for _, m := range c.chunks {
		if m != nil && c.memory == nil {
			unmap(m)
		}
	}
	*c = counts{}
}

// Count starts to count lookups of own nodes in memory supplied by the owner; nil: in the table's own. Existing nodes
// have the counts that this memory already holds.
func (t *Table) Count(memory Memory) (err error) {
	t.counts.close()
	t.counts.memory = memory
	t.own.each(0, func(i uint32, _ *record) bool {
		err = t.counts.reach(i)
		return err == nil
	})
	return err
}

// Remember adds one to the kernel's lookup count of an own node.
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
		// A count at its limit stays there: the node is then kept until the kernel's mount ends.
		if uint32(have) == maxLookups || atomic.CompareAndSwapUint64(w, old, have+1) {
			return
		}
	}
}

// Forget subtracts k from the lookup count of an own node and returns the remaining count.
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

// Lookups returns the kernel's lookup count of an own node.
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

// lookups returns the word of an own node, or nil if the table does not have the node.
func (t *Table) lookups(n Node) *uint64 {
	if !n.Own() || t.find(n) == nil {
		return nil
	}
	return t.counts.word(slot(n))
}
