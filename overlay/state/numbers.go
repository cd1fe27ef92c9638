package state

import (
	"math/bits"
	"unsafe"
)

// numbers maps numbers other than 0 to small numbers: a hash table with linear probing, outside the Go heap.
type numbers struct {
	memory []byte
	cells  []cell // the length is a power of two
	count  int
}

// cell is one key with its value.
type cell struct {
	key   uint64 // 0: the cell is free
	value uint32
}

const cellSize = int(unsafe.Sizeof(cell{}))

// home returns the preferred cell of a key, by Fibonacci hashing.
func (m *numbers) home(key uint64) int {
	return int(key * 0x9E3779B97F4A7C15 >> (64 - bits.TrailingZeros(uint(len(m.cells)))))
}

// at returns the index of the cell of a key, or of the free cell for it.
func (m *numbers) at(key uint64) int {
	i := m.home(key)
	for m.cells[i].key != key && m.cells[i].key != 0 {
		i = (i + 1) & (len(m.cells) - 1)
	}
	return i
}

// get returns the value of a key; false: there is none.
func (m *numbers) get(key uint64) (uint32, bool) {
	if m.count == 0 {
		return 0, false
	}
	c := m.cells[m.at(key)]
	return c.value, c.key != 0
}

// set sets the value of a key, and grows the table when it is three quarters full.
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

// remove removes a key, and moves later keys of the same probe sequence forward to close the gap.
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
		// A key may move back to the hole unless its home lies behind the hole.
		if home := m.home(m.cells[i].key); (i-home)&mask >= (i-hole)&mask {
			m.cells[hole] = m.cells[i]
			hole = i
		}
	}
	m.cells[hole] = cell{}
	m.count--
}

// each calls emit for every key until it returns false.
func (m *numbers) each(emit func(key uint64) bool) {
	for _, c := range m.cells {
		if c.key != 0 && !emit(c.key) {
			return
		}
	}
}

// close unmaps the table.
func (m *numbers) close() {
	if m.memory != nil {
		unmap(m.memory)
	}
	*m = numbers{}
}
