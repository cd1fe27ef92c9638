package cache

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
)

// catalog is the index of all contents that can be read, with the size of the cache and its quota. Every reader and
// writer of a Blobs uses the catalog. The lock mu protects all fields except damaged, and is never held across a system
// call.
type catalog struct {
	damaged atomic.Int64 // number of contents found damaged since opening

	mu      sync.RWMutex
	closed  bool
	quota   int64
	evictAt int64 // a Put evicts contents if bytes exceeds this limit; usually the quota
	bytes   int64 // total size of all indexed segments and big files
	// the indexed segments by slot; slot 0 is never used, so that no reference has the value 0
	segments []*segment
	unused   []uint16            // slots that no segment uses
	byName   map[string]*segment // the indexed segments by file name
	index    refs                // a reference is slot<<16 | index in the entries of the segment in this slot
	big      map[object.ID]*bigFile
}

// init makes the catalog empty. quota is in bytes.
func (c *catalog) init(quota int64) {
	c.quota, c.evictAt, c.segments = quota, quota, []*segment{nil}
	c.byName, c.big = map[string]*segment{}, map[object.ID]*bigFile{}
	c.index.hash = func(ref uint32) uint64 { return hashSum(c.entry(ref).idBytes()) }
}

// releaseAll empties the index and releases the segments that the index holds. A Content that the caller of Get has not
// released yet can still be read.
func (c *catalog) releaseAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, s := range c.byName {
		s.release()
	}
	c.byName, c.big = map[string]*segment{}, map[object.ID]*bigFile{}
	c.index = refs{hash: c.index.hash}
}

// knownSize returns the size of a blob in the index. It does not look for records that other processes have written.
func (c *catalog) knownSize(id object.ID) (int64, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if _, e, ok := c.findLocked(id); ok {
		return int64(e.meta & metaSize), true
	}
	if f := c.big[id]; f != nil {
		return f.size, true
	}
	return 0, false
}

// entry returns the entry to which a reference of the index refers. The caller holds mu.
func (c *catalog) entry(ref uint32) *entry { return &c.segments[ref>>16].entries[ref&0xffff] }

// findLocked looks up an id in the index. It returns the reference to the entry, a copy of the entry, and whether the
// index contains the id. The caller holds mu, at least for reading.
func (c *catalog) findLocked(id object.ID) (ref uint32, e entry, ok bool) {
	at, ok := c.placeLocked(id)
	if !ok {
		return 0, e, false
	}
	ref = c.index.slots[at]
	if s := c.segments[ref>>16]; s.dropped {
		return 0, e, false
	}
	p := c.entry(ref)
	e = entry{off: p.off, meta: atomic.LoadUint32(&p.meta)}
	return ref, e, true
}

// placeLocked returns the slot of an id in the hash table index, and reports whether the table contains the id. The
// caller holds mu, at least for reading.
func (c *catalog) placeLocked(id object.ID) (at int, ok bool) {
	sum := id.Bytes()
	return c.index.find(hashSum(sum), func(ref uint32) bool { return string(c.entry(ref).idBytes()) == string(sum) })
}

// holdSmall looks up small contents in the index and holds their segment, so that its file is not closed. The caller
// must release the segment.
func (c *catalog) holdSmall(id object.ID) (*segment, uint32, entry, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	ref, e, ok := c.findLocked(id)
	if !ok {
		return nil, 0, e, false
	}
	s := c.segments[ref>>16]
	s.hold()
	return s, ref, e, true
}

// setMeta sets a flag in the entry to which ref refers. It does nothing if the segment s was dropped, because another
// segment may use its slot.
func (c *catalog) setMeta(s *segment, ref uint32, flag uint32) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.segments[ref>>16] == s && !s.dropped {
		atomic.OrUint32(&c.entry(ref).meta, flag)
	}
}

// forget removes an entry whose contents are damaged from the index, so that the contents can be stored again.
func (c *catalog) forget(s *segment, ref uint32, id object.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.segments[ref>>16] != s || s.dropped {
		return
	}
	if at, ok := c.placeLocked(id); ok && c.index.slots[at] == ref {
		c.index.remove(at)
		atomic.OrUint32(&c.entry(ref).meta, metaGone)
		c.damaged.Add(1)
	}
}

// addLocked adds entries of one segment to the index, in the order of the file. If the index already has an entry for
// the same id, addLocked keeps the old entry if this process has verified its contents, and otherwise replaces it by
// the new one. The caller holds mu.
func (c *catalog) addLocked(s *segment, entries []entry) {
	if s.dropped || c.closed {
		return
	}
	s.entries = slices.Grow(s.entries, min(len(entries), maxEntries-len(s.entries)))
	for _, e := range entries {
		if len(s.entries) == maxEntries {
			return
		}
		ref := uint32(s.slot)<<16 | uint32(len(s.entries))
		sum := e.idBytes()
		h := hashSum(sum)
		at, ok := c.index.find(h, func(ref uint32) bool { return string(c.entry(ref).idBytes()) == string(sum) })
		if ok {
			old := c.index.slots[at]
			if atomic.LoadUint32(&c.entry(old).meta)&metaVerified != 0 && !c.segments[old>>16].dropped {
				continue
			}
		}
		s.entries = append(s.entries, e)
		if ok {
			c.index.slots[at] = ref
		} else {
			c.index.add(h, ref)
		}
	}
}

// enterLocked assigns a free slot to a segment. It returns false if all slots are used. The caller holds mu.
func (c *catalog) enterLocked(s *segment) bool {
	if n := len(c.unused); n > 0 {
		s.slot, c.unused = c.unused[n-1], c.unused[:n-1]
		c.segments[s.slot] = s
	} else if len(c.segments) < maxSegments {
		s.slot = uint16(len(c.segments))
		c.segments = append(c.segments, s)
	} else {
		return false
	}
	c.byName[s.name] = s
	return true
}

// drop removes a segment from the index. Contents that were opened before can still be read. Removing the entries of a
// full segment takes milliseconds, so drop releases mu for a moment after every 1024 entries.
func (c *catalog) drop(s *segment) {
	c.mu.Lock()
	if s.dropped || c.closed {
		c.mu.Unlock()
		return
	}
	s.dropped = true
	c.bytes -= s.size
	delete(c.byName, s.name)
	for i := 0; i < len(s.entries); i++ {
		if i%1024 == 1023 {
			c.mu.Unlock()
			c.mu.Lock()
		}
		ref := uint32(s.slot)<<16 | uint32(i)
		if at, ok := c.index.find(hashSum(s.entries[i].idBytes()), func(r uint32) bool { return r == ref }); ok {
			c.index.remove(at)
		}
	}
	s.entries = nil
	c.segments[s.slot] = nil
	c.unused = append(c.unused, s.slot)
	c.mu.Unlock()
	s.release()
}

// enterBig adds a big file to the index, unless the index already contains the file, and returns the index entry. The
// parameter verified is the inode number of the file if this process has verified the contents, otherwise 0.
func (c *catalog) enterBig(id object.ID, size int64, used time.Time, verified uint64) *bigFile {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.big[id]
	if f == nil {
		f = &bigFile{size: size}
		f.used.Store(used.UnixNano())
		f.stamped.Store(used.UnixNano())
		if c.closed {
			return f
		}
		c.big[id] = f
		c.bytes += size + headerSize
	}
	if verified != 0 {
		f.verified = verified
	}
	return f
}

// forgetBig removes a big file from the index. It returns the size of the file on disk in bytes, or 0 if the index did
// not contain the file.
func (c *catalog) forgetBig(id object.ID) (freed int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.big[id]
	if f == nil {
		return 0
	}
	delete(c.big, id)
	c.bytes -= f.size + headerSize
	return f.size + headerSize
}

// over reports whether the cache contains more than limit bytes.
func (c *catalog) over(limit int64) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.bytes > limit
}
