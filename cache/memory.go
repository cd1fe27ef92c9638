package cache

import (
	"encoding/binary"
	"fmt"
	"sync"
	"unsafe"

	"github.com/dgraph-io/ristretto/v2"

	"github.com/artifactfs/artifactfs/git/object"
)

// Memory caches parsed trees and small contents in memory, up to a limit in bytes. If a new item was used less often
// than the items that it would replace, Memory does not store it. Items are stored asynchronously, so an item may be
// found only some time after it was put, or never.
type Memory struct {
	max int64

	mu     sync.RWMutex // held for writing by Close, because ristretto panics if it is used while it closes
	closed bool
	cache  *ristretto.Cache[uint64, remembered]
}

// remembered is one item: the entries of a tree, or the contents of a blob. Its key in the cache is only a part of the
// id, so the item also stores the whole id.
type remembered struct {
	id      object.ID
	entries []object.TreeEntry
	content []byte
}

// meanItem is the assumed mean size of an item, in bytes. It determines the number of frequency counters, of which
// ristretto recommends ten per item.
const meanItem = 4 << 10

// NewMemory returns an empty cache of about maxBytes.
func NewMemory(maxBytes int64) (*Memory, error) {
	c, err := ristretto.NewCache(&ristretto.Config[uint64, remembered]{
		NumCounters: max(1000, 10*maxBytes/meanItem),
		MaxCost:     maxBytes,
		BufferItems: 64,
	})
	if err != nil {
		return nil, fmt.Errorf("allocate memory cache of %d bytes: %w", maxBytes, err)
	}
	return &Memory{max: maxBytes, cache: c}, nil
}

// memoryKey returns the first eight bytes of an id as a number. Because ids are hashes, two ids rarely have the same
// key; get detects this case by a comparison of the whole id.
func memoryKey(id object.ID) uint64 {
	var b [8]byte
	copy(b[:], id.Bytes())
	return binary.LittleEndian.Uint64(b[:])
}

// get returns the item of an id, and false if there is none.
func (m *Memory) get(id object.ID) (remembered, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		return remembered{}, false
	}
	r, ok := m.cache.Get(memoryKey(id))
	return r, ok && r.id == id
}

// put adds an item whose size is cost bytes, unless that is more than an eighth of the cache.
func (m *Memory) put(r remembered, cost int64) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if !m.closed && cost <= m.max/8 {
		m.cache.Set(memoryKey(r.id), r, cost)
	}
}

// Tree returns the entries of a tree, and false if they are not in the cache. The caller must not change the entries.
func (m *Memory) Tree(id object.ID) ([]object.TreeEntry, bool) {
	r, ok := m.get(id)
	return r.entries, ok && r.entries != nil
}

// PutTree stores the entries of a tree. The caller must not change the entries after the call.
func (m *Memory) PutTree(id object.ID, entries []object.TreeEntry) {
	if entries == nil {
		entries = []object.TreeEntry{}
	}
	// The cost is the memory of the slice and its strings, which ristretto cannot measure.
	cost := int64(cap(entries)) * int64(unsafe.Sizeof(object.TreeEntry{}))
	for i := range entries {
		// rounded up to a multiple of 16, roughly like the sizes that Go's allocator uses
		cost += int64(len(entries[i].Name)+15) &^ 15
	}
	m.put(remembered{id: id, entries: entries}, cost)
}

// Content returns the contents of a small blob, and false if they are not in the cache. The caller must not change the
// contents.
func (m *Memory) Content(id object.ID) ([]byte, bool) {
	r, ok := m.get(id)
	return r.content, ok && r.content != nil
}

// PutContent stores the contents of a small blob. The caller must not change data after the call.
func (m *Memory) PutContent(id object.ID, data []byte) {
	if data == nil {
		data = []byte{}
	}
	m.put(remembered{id: id, content: data}, int64(cap(data)))
}

// Close frees the memory. After Close, Tree and Content find no items, and PutTree and PutContent store none.
func (m *Memory) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.closed = true
		m.cache.Close()
	}
}
