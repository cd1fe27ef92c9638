package cache

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/artifactfs/artifactfs/object"
)

// SetQuota changes the quota, in bytes, and evicts what exceeds it.
func (b *Blobs) SetQuota(quota int64) {
	b.mu.Lock()
	b.quota, b.evictAt = quota, quota
	b.mu.Unlock()
	b.evictOver(object.ID{})
}

// Collect evicts, least recently used first, until at most keep bytes are left, including the
// active segment. Segments that other processes append to are kept. It returns the number of bytes
// freed.
func (b *Blobs) Collect(keep int64) (freed int64, err error) {
	b.clearTemp()
	b.look.Lock()
	if err = b.listSegments(); err == nil {
		err = b.listBig()
	}
	b.look.Unlock()
	if err != nil {
		return 0, fmt.Errorf("collect blobs: %w", err)
	}
	freed = b.evictTo(keep, object.ID{})
	b.append.Lock()
	defer b.append.Unlock()
	if b.over(keep) && b.append.active != nil {
		b.retire()
		freed += b.evictTo(keep, object.ID{})
	}
	return freed, nil
}

// over reports whether more than limit bytes are stored.
func (b *Blobs) over(limit int64) bool {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.bytes > limit
}

// evictOver evicts if the quota is exceeded. It keeps the blob that was just stored, even if that
// alone exceeds the quota: a reader waits for it.
func (b *Blobs) evictOver(spare object.ID) {
	b.mu.RLock()
	quota, over := b.quota, b.bytes > b.evictAt
	b.mu.RUnlock()
	if !over {
		return
	}
	b.evictTo(quota, spare)
	b.mu.Lock()
	defer b.mu.Unlock()
	// If others hold the rest, trying again with every Put would be in vain.
	b.evictAt = max(b.quota, b.bytes+minSegment/4)
	if b.bytes <= b.quota {
		b.evictAt = b.quota
	}
}

// makeRoom evicts on a full disk so that need bytes fit. It returns false if there was nothing to
// evict.
func (b *Blobs) makeRoom(need int64) bool {
	b.append.Lock()
	defer b.append.Unlock()
	return b.makeRoomLocked(need)
}

// makeRoomLocked is makeRoom for a caller that holds append. It evicts the active segment only if
// there is nothing else.
func (b *Blobs) makeRoomLocked(need int64) bool {
	b.mu.RLock()
	// Twice the bytes are freed, so that not every Put on a full disk evicts again.
	target := max(0, b.bytes-2*need)
	b.mu.RUnlock()
	if b.evictTo(target, object.ID{}) > 0 {
		return true
	}
	b.retire()
	return b.evictTo(target, object.ID{}) > 0
}

// victim is a segment or a big file that can be evicted.
type victim struct {
	used    int64 // Unix nanoseconds
	segment *segment
	big     object.ID
}

// evictTo removes segments and big files until at most limit bytes are left or nothing more can go.
func (b *Blobs) evictTo(limit int64, spare object.ID) (freed int64) {
	b.look.Lock()
	defer b.look.Unlock()
	for _, v := range b.victims() {
		if !b.over(limit) {
			break
		}
		switch {
		case v.segment != nil:
			freed += b.evictSegment(v.segment)
		case v.big != spare:
			freed += b.evictBig(v.big)
		}
	}
	return freed
}

// victims returns all candidates, least recently used first. Use by other processes is visible in
// the mtimes.
func (b *Blobs) victims() []victim {
	var list []victim
	b.mu.RLock()
	for _, s := range b.byName {
		// This process appends to its own segment, which cannot be evicted before retire.
		if !s.own {
			list = append(list, victim{used: s.used.Load(), segment: s})
		}
	}
	for id, f := range b.big {
		list = append(list, victim{used: f.used.Load(), big: id})
	}
	b.mu.RUnlock()
	for i := range list {
		v := &list[i]
		var path string
		if v.segment != nil {
			path = filepath.Join(b.segDir(), v.segment.name)
		} else {
			path = b.bigPath(v.big)
		}
		// A file that has vanished keeps the time that is in memory. It is dropped when its turn to
		// be evicted arrives.
		if info, err := os.Stat(path); err == nil {
			v.used = max(v.used, info.ModTime().UnixNano())
		}
	}
	slices.SortFunc(list, func(x, y victim) int { return cmp.Compare(x.used, y.used) })
	return list
}

// evictSegment removes a segment unless a process appends to it. Its lock keeps other processes
// from taking the segment over. The sidecar is removed first: without its segment it would stay
// forever. It needs look.
func (b *Blobs) evictSegment(s *segment) int64 {
	path := filepath.Join(b.segDir(), s.name)
	f, err := os.Open(path)
	if err == nil {
		defer f.Close()
		if locked, err := lock(f); err != nil || !locked {
			return 0
		}
		os.Remove(filepath.Join(b.segDir(), sidecarName(s.name)))
		err = os.Remove(path)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	// Another process may have removed the file: the bytes are free, and the index has to forget
	// the segment in either case.
	b.mu.RLock()
	size := s.size
	b.mu.RUnlock()
	b.drop(s)
	return size
}
