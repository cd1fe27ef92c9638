package state

import (
	"sync/atomic"
	"unsafe"
)

// counts tells how often the kernel was told of each own node. The word of a slot is the generation that it is about and,
// below, the number: a node that comes into a slot needs no other beginning. The memory is anonymous or the owner's, who
// may keep it longer than a table lives.
type counts struct {
	chunks [][]byte // by place; nil where no node has been
	memory Memory
}

// Memory returns CountChunk bytes for look-ups from an offset on, zero where nothing has been counted.
type Memory func(off int64) ([]byte, error)

// CountChunk is how much memory for look-ups is taken at a time, in bytes.
const CountChunk = 64 << 10

const (
	slotsInChunk = CountChunk / 8
	maxLookups   = 1<<32 - 1
)

// reach makes sure that the look-ups of a slot can be counted.
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

// word returns the word of a slot if there is one.
func (c *counts) word(slot uint32) *uint64 {
	i := int(slot / slotsInChunk)
	if i >= len(c.chunks) || c.chunks[i] == nil {
		return nil
	}
	return (*uint64)(unsafe.Pointer(&c.chunks[i][slot%slotsInChunk*8]))
}

// close unmaps the memory of the table. Chunks of an owner's memory are unmapped by the owner.
func (c *counts) close() {
	for _, m := range c.chunks {
		if m != nil && c.memory == nil {
			unmap(m)
		}
	}
	*c = counts{}
}

// Count lets the look-ups of own nodes be counted in memory of the owner's, nil: in the table's own. The nodes that there
// are have the look-ups that are counted there.
func (t *Table) Count(memory Memory) (err error) {
	t.counts.close()
	t.counts.memory = memory
	t.own.each(0, func(i uint32, _ *record) bool {
		err = t.counts.reach(i)
		return err == nil
	})
	return err
}

// Remember counts a look-up of an own node by the kernel.
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
		// At its limit the count stays: the node is then kept for as long as the kernel does not go.
		if uint32(have) == maxLookups || atomic.CompareAndSwapUint64(w, old, have+1) {
			return
		}
	}
}

// Forget takes k look-ups of an own node back and says how many are left.
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

// Lookups is how often the kernel knows an own node.
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

// lookups returns the word of an own node that is there.
func (t *Table) lookups(n Node) *uint64 {
	if !n.Own() || t.find(n) == nil {
		return nil
	}
	return t.counts.word(slot(n))
}
