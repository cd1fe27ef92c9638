package cache

import (
	"encoding/binary"
	"fmt"
	"sync"
	"unsafe"

	"github.com/dgraph-io/ristretto/v2"

	"github.com/artifactfs/artifactfs/object"
)

// Memory caches parsed trees and small contents in memory, up to a limit in bytes. It refuses items
// that were used less often than those that they would replace. Items are added asynchronously: one
// that was Put may be visible a moment later, or never.
type Memory struct {
	max int64

	mu     sync.RWMutex // Close excludes the rest: ristretto panics when it is used while it closes
	closed bool
	cache  *ristretto.Cache[uint64, remembered]
}

// remembered is a tree or contents. A key is only a part of an id, so the item holds the whole id.
type remembered struct {
	id      object.ID
	entries []object.TreeEntry
	content []byte
}

// meanItem is the size in bytes that the number of frequency counters is laid out for; ristretto
// wants ten counters an item.
const meanItem = 4 << 10

// NewMemory returns an empty cache of about maxBytes.
func NewMemory(maxBytes int64) (*Memory, error) {
	c, err := ristretto.NewCache(&ristretto.Config[uint64, remembered]{
		NumCounters: max(1000, 10*maxBytes/meanItem),
		MaxCost:     maxBytes,
		BufferItems: 64,
	})
	if err != nil {
		return nil, fmt.Errorf("make memory cache of %d bytes: %w", maxBytes, err)
	}
	return &Memory{max: maxBytes, cache: c}, nil
}

// memoryKey returns the first eight bytes of an id. Ids are hashes, so different ones rarely share
// them, and get compares the whole id.
func memoryKey(id object.ID) uint64 {
	var b [8]byte
	copy(b[:], id.Bytes())
	return binary.LittleEndian.Uint64(b[:])
}

// get returns the item of an id, and false if the item under its key is that of another id.
func (m *Memory) get(id object.ID) (remembered, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		return remembered{}, false
	}
	r, ok := m.cache.Get(memoryKey(id))
	return r, ok && r.id == id
}

// put adds an item unless it takes more than an eighth of the cache.
func (m *Memory) put(r remembered, cost int64) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if !m.closed && cost <= m.max/8 {
		m.cache.Set(memoryKey(r.id), r, cost)
	}
}

// Tree returns a tree's entries, which the caller must not change.
func (m *Memory) Tree(id object.ID) ([]object.TreeEntry, bool) {
	r, ok := m.get(id)
	return r.entries, ok && r.entries != nil
}

// PutTree stores a tree's entries, which must not be changed any more.
func (m *Memory) PutTree(id object.ID, entries []object.TreeEntry) {
	if entries == nil {
		entries = []object.TreeEntry{}
	}
	// ristretto does not know the memory behind a slice, so the cost includes it.
	cost := int64(cap(entries)) * int64(unsafe.Sizeof(object.TreeEntry{}))
	for i := range entries {
		cost += int64(len(entries[i].Name)+15) &^ 15 // size class of the allocator
	}
	m.put(remembered{id: id, entries: entries}, cost)
}

// Content returns small contents, which the caller must not change.
func (m *Memory) Content(id object.ID) ([]byte, bool) {
	r, ok := m.get(id)
	return r.content, ok && r.content != nil
}

// PutContent stores small contents, which must not be changed any more.
func (m *Memory) PutContent(id object.ID, data []byte) {
	if data == nil {
		data = []byte{}
	}
	m.put(remembered{id: id, content: data}, int64(cap(data)))
}

// Close frees the memory. Later calls return and store nothing.
func (m *Memory) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.closed = true
		m.cache.Close()
	}
}
