package cache

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/artifactfs/artifactfs/git/object"
)

// Excess returns the number of bytes that a call of Collect with the same parameter keep would free now, and the number
// of blobs that the cache would lose. Excess evicts nothing.
func (b *Blobs) Excess(keep int64) (freed, blobs int64) {
	b.look.Lock()
	defer b.look.Unlock()
	b.catalog.mu.RLock()
	left := b.catalog.bytes
	b.catalog.mu.RUnlock()
	for _, v := range b.victims() {
		if left <= keep {
			break
		}
		size, n := b.weigh(v)
		left -= size
		freed += size
		blobs += n
	}
	return freed, blobs
}

// weigh returns the number of bytes that the eviction of v would free, and the number of blobs that would be lost. Both
// results are 0 if a process appends to the segment, because then the segment cannot be evicted.
func (b *Blobs) weigh(v victim) (size, blobs int64) {
	if v.segment == nil {
		b.catalog.mu.RLock()
		defer b.catalog.mu.RUnlock()
		if f := b.catalog.big[v.big]; f != nil {
			return f.size + headerSize, 1
		}
		return 0, 0
	}
	// A process that appends to the segment holds its flock, and evictTo would skip such a segment. So try to acquire the
	// lock, only to test whether it is free, and release it at once.
	f, err := os.Open(filepath.Join(b.folder.segDir(), v.segment.name))
	if err == nil {
		locked, lockErr := lock(f)
		f.Close() // closing the file releases the lock
		if lockErr != nil || !locked {
			return 0, 0
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return 0, 0
	}
	b.catalog.mu.RLock()
	defer b.catalog.mu.RUnlock()
	// A blob may have records in several segments. It is lost only if the index refers to the record in this segment.
	for i := range v.segment.entries {
		ref := uint32(v.segment.slot)<<16 | uint32(i)
		if at, ok := b.catalog.index.find(hashSum(v.segment.entries[i].idBytes()),
			func(r uint32) bool { return r == ref }); ok && at >= 0 {
			blobs++ // the index refers to this record, so the blob would be lost
		}
	}
	return v.segment.size, blobs
}

// Each calls the function each once for every id in the table, with the size of the blob in bytes. The function must
// not call methods of s.
func (s *Sizes) Each(each func(id object.ID, size int64)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	idLen := s.format.Size()
	for ref := uint32(1); int(ref) <= s.n; ref++ {
		row := s.row(ref)
		if id, err := object.FromBytes(row[:idLen]); err == nil {
			each(id, getSize(row[idLen:]))
		}
	}
}
