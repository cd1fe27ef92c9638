package odb

import (
	"container/list"
	"sync"

	"github.com/artifactfs/artifactfs/git/object"
)

// lru caches contents that are likely to be bases of deltas. It drops the least recently used items first. The contents
// are shared and must not be modified.
type lru[K comparable] struct {
	max int64 // maximum total size of the items, in bytes

	// mu protects the fields below.
	mu    sync.Mutex
	used  int64 // size of all items in bytes, with cachedOverhead for each
	items map[K]*list.Element
	order list.List // items (*cached[K]), the most recently used first
}

// cached is one item of an lru: the type and the contents of an object.
type cached[K comparable] struct {
	key  K
	typ  object.Type
	data []byte
}

// cachedOverhead is the approximate number of bytes that an item needs in addition to its contents.
const cachedOverhead = 200

// newLRU returns an empty cache for at most max bytes.
func newLRU[K comparable](max int64) *lru[K] {
	return &lru[K]{max: max, items: map[K]*list.Element{}}
}

// get returns the contents for key and marks the item as the most recently used. It returns false if the cache has no
// such item.
func (c *lru[K]) get(key K) (object.Type, []byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.items[key]
	if !ok {
		return 0, nil, false
	}
	c.order.MoveToFront(e)
	it := e.Value.(*cached[K])
	return it.typ, it.data, true
}

// put adds an item, unless the item would occupy more than half the cache.
func (c *lru[K]) put(key K, t object.Type, data []byte) {
	cost := int64(cap(data)) + cachedOverhead
	if cost > c.max/2 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.items[key]; ok {
		return
	}
	c.items[key] = c.order.PushFront(&cached[K]{key, t, data})
	// Drop the least recently used items until the total size is at most max.
	for c.used += cost; c.used > c.max; {
		last := c.order.Back()
		it := c.order.Remove(last).(*cached[K])
		delete(c.items, it.key)
		c.used -= int64(cap(it.data)) + cachedOverhead
	}
}
