package cache

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/artifactfs/artifactfs/git/object"
)

// SetQuota changes the quota, in bytes, and evicts contents until the cache is not larger than the quota.
func (b *Blobs) SetQuota(quota int64) {
	b.catalog.mu.Lock()
	b.catalog.quota, b.catalog.evictAt = quota, quota
	b.catalog.mu.Unlock()
	b.evictOver(object.ID{})
}

// Collect evicts contents, least recently used first, until the cache has at most keep bytes, and returns the number of
// bytes that it has freed. It may evict the active segment of this process, but evicts no segment that another process
// appends to.
func (b *Blobs) Collect(keep int64) (freed int64, err error) {
	b.folder.clearTemp()
	b.look.Lock()
	if err = b.look.listSegments(); err == nil {
		err = b.look.listBig()
	}
	b.look.Unlock()
	if err != nil {
		return 0, fmt.Errorf("remove unused blobs from the cache: %w", err)
	}
	freed = b.evictTo(keep, object.ID{})
	b.append.Lock()
	defer b.append.Unlock()
	if b.catalog.over(keep) && b.append.active != nil {
		b.append.retire()
		freed += b.evictTo(keep, object.ID{})
	}
	return freed, nil
}

// evictOver evicts contents if the quota is exceeded. spare is the blob that was just stored; its big file is never
// evicted, because a reader waits for it. So the cache may exceed the quota if this blob alone is larger.
func (b *Blobs) evictOver(spare object.ID) {
	b.catalog.mu.RLock()
	quota, over := b.catalog.quota, b.catalog.bytes > b.catalog.evictAt
	b.catalog.mu.RUnlock()
	if !over {
		return
	}
	b.evictTo(quota, spare)
	b.catalog.mu.Lock()
	defer b.catalog.mu.Unlock()
	// If the cache is still over its quota, the remaining files cannot be evicted now, for example because other processes
	// append to them. To avoid a useless attempt at every Put, try again only after minSegment/4 more bytes were stored.
	b.catalog.evictAt = max(b.catalog.quota, b.catalog.bytes+minSegment/4)
	if b.catalog.bytes <= b.catalog.quota {
		b.catalog.evictAt = b.catalog.quota
	}
}

// makeRoom evicts contents because the disk is full. The parameter need is the number of bytes that the caller has to
// store. makeRoom returns false if it could not evict any contents.
func (b *Blobs) makeRoom(need int64) bool {
	b.append.Lock()
	defer b.append.Unlock()
	return b.makeRoomLocked(need)
}

// makeRoomLocked does the work of makeRoom. The caller holds append. The active segment is evicted only if no other
// file can be evicted.
func (b *Blobs) makeRoomLocked(need int64) bool {
	b.catalog.mu.RLock()
	// Free twice as many bytes as needed, so that not every Put on a full disk has to evict.
	target := max(0, b.catalog.bytes-2*need)
	b.catalog.mu.RUnlock()
	if b.evictTo(target, object.ID{}) > 0 {
		return true
	}
	b.append.retire()
	return b.evictTo(target, object.ID{}) > 0
}

// victim is a segment or a big file that may be evicted.
type victim struct {
	used    int64     // time of last use, Unix nanoseconds
	segment *segment  // nil if the victim is a big file
	big     object.ID // the blob of the big file
}

// evictTo evicts segments and big files until the cache has at most limit bytes or no more files can be evicted. It
// never evicts the big file of the blob spare. It returns the number of bytes that it has freed.
func (b *Blobs) evictTo(limit int64, spare object.ID) (freed int64) {
	b.look.Lock()
	defer b.look.Unlock()
	for _, v := range b.victims() {
		if !b.catalog.over(limit) {
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

// victims returns all segments and big files except the active segment, least recently used first. The time of last use
// is the later of two times: the time in memory, and the file's mtime, which other processes update when they use the
// file.
func (b *Blobs) victims() []victim {
	var list []victim
	b.catalog.mu.RLock()
	for _, s := range b.catalog.byName {
		// Skip the active segment, which can be evicted only after retire was called.
		if !s.own {
			list = append(list, victim{used: s.used.Load(), segment: s})
		}
	}
	for id, f := range b.catalog.big {
		list = append(list, victim{used: f.used.Load(), big: id})
	}
	b.catalog.mu.RUnlock()
	for i := range list {
		v := &list[i]
		var path string
		if v.segment != nil {
			path = filepath.Join(b.folder.segDir(), v.segment.name)
		} else {
			path = b.folder.bigPath(v.big)
		}
		// If the file was deleted, use the time in memory. The attempt to evict the file will drop its entry from the index.
		if info, err := os.Stat(path); err == nil {
			v.used = max(v.used, info.ModTime().UnixNano())
		}
	}
	slices.SortFunc(list, func(x, y victim) int { return cmp.Compare(x.used, y.used) })
	return list
}

// evictSegment deletes a segment, unless a process appends to it, and returns the number of bytes freed. During the
// call it holds the flock of the segment, so that no other process starts to append. It removes the sidecar before the
// segment, because a sidecar without its segment would never be removed if this process died between the two steps. The
// caller holds look.
func (b *Blobs) evictSegment(s *segment) int64 {
	path := filepath.Join(b.folder.segDir(), s.name)
	f, err := os.Open(path)
	if err == nil {
		defer f.Close()
		if locked, err := lock(f); err != nil || !locked {
			return 0
		}
		os.Remove(filepath.Join(b.folder.segDir(), sidecarName(s.name)))
		err = os.Remove(path)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	// Another process may have removed the file. In this case the disk space is free already, but the segment must still
	// be dropped from the index.
	b.catalog.mu.RLock()
	size := s.size
	b.catalog.mu.RUnlock()
	b.catalog.drop(s)
	return size
}
