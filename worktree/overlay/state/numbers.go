package state

import (
	"math/bits"
	"unsafe"
)

// numbers maps numbers other than 0 to small numbers. It is a hash table with linear probing, stored outside the Go
// heap.
type numbers struct {
	memory []byte // memory of cells
	cells  []cell // the length is a power of two
	count  int    // number of used cells
}

// cell holds one key with its value.
type cell struct {
	key   uint64 // number that is mapped; 0 means that the cell is free
	value uint32
}

const cellSize = int(unsafe.Sizeof(cell{}))

// home returns the index of the cell in which a search for the key begins, by Fibonacci hashing.
func (m *numbers) home(key uint64) int {
	return int(key * 0x9E3779B97F4A7C15 >> (64 - bits.TrailingZeros(uint(len(m.cells)))))
}

// The method at returns the index of the cell that has the key. If no cell has the key, it returns the index of the
// free cell in which the key must be stored.
func (m *numbers) at(key uint64) int {
	i := m.home(key)
	for m.cells[i].key != key && m.cells[i].key != 0 {
		i = (i + 1) & (len(m.cells) - 1)
	}
	return i
}

// get returns the value of a key, and false if the table does not have the key.
func (m *numbers) get(key uint64) (uint32, bool) {
	if m.count == 0 {
		return 0, false
	}
	c := m.cells[m.at(key)]
	return c.value, c.key != 0
}

// set sets the value of a key. If three quarters of the cells are used, it grows the table first.
func (m *numbers) set(key uint64, value uint32) {
	if 4*(m.count+1) > 3*len(m.cells) {
		m.grow()
	}
	c := &m.cells[m.at(key)]
	if c.key == 0 {
		m.count++
	}
	*c = cell{key, value}
}

// grow doubles the number of cells.
func (m *numbers) grow() {
	old := *m
	n := max(256, 2*len(old.cells))
	m.memory = mapAnonymous(n * cellSize)
	m.cells = unsafe.Slice((*cell)(unsafe.Pointer(&m.memory[0])), n)
	for _, c := range old.cells {
		if c.key != 0 {
			m.cells[m.at(c.key)] = c
		}
	}
	old.close()
}

// remove removes a key. Keys after it in the same probe sequence are moved forward to close the gap.
func (m *numbers) remove(key uint64) {
	if m.count == 0 {
		return
	}
	hole := m.at(key)
	if m.cells[hole].key == 0 {
		return
	}
	mask := len(m.cells) - 1
	for i := (hole + 1) & mask; m.cells[i].key != 0; i = (i + 1) & mask {
		// Move the key to the hole, unless its search begins behind the hole.
		if home := m.home(m.cells[i].key); (i-home)&mask >= (i-hole)&mask {
			m.cells[hole] = m.cells[i]
			hole = i
		}
	}
	m.cells[hole] = cell{}
	m.count--
}

// each calls emit for every key, until emit returns false.
func (m *numbers) each(emit func(key uint64) bool) {
	for _, c := range m.cells {
		if c.key != 0 && !emit(c.key) {
			return
		}
	}
}

// close unmaps the table's memory.
func (m *numbers) close() {
	if m.memory != nil {
		unmap(m.memory)
	}
	*m = numbers{}
}
