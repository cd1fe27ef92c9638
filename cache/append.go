package cache

import (
	"cmp"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/object"
)

// appender appends small contents to the active segment, the one segment that this process writes to. Blobs uses it to
// store contents, and retires the active segment before it evicts it. The embedded lock, which comments call append,
// protects the fields. The caller of a method must hold this lock unless the comment of the method states otherwise.
type appender struct {
	folder  *folder
	catalog *catalog
	look    *lookout

	sync.Mutex
	active *segment // the segment that this process appends to; nil if there is none
	file   *os.File // the file of the active segment, opened for writing; this process holds its flock
	end    int64    // offset of the end of the last record of active
	noted  int      // number of records in the sidecar of active
	limit  int64    // size, in bytes, at which the active segment is full
}

// appendRecord appends a record with the contents to the active segment and adds it to the index. The caller holds
// append.
func (a *appender) appendRecord(id object.ID, data []byte) error {
	return a.appendRecords([]Blob{{id, data}})
}

// maxTogether is the maximum number of records that are written with one system call. The kernel accepts 1,024 parts
// (IOV_MAX), and a record has two.
const maxTogether = 512

// appendRecords appends records with the contents of blobs to the active segment and adds them to the index. The caller
// holds append.
func (a *appender) appendRecords(blobs []Blob) error {
	for len(blobs) > 0 {
		if err := a.openActive(); err != nil {
			return err
		}
		a.catalog.mu.RLock()
		n := min(len(blobs), maxTogether, maxEntries-len(a.active.entries))
		a.catalog.mu.RUnlock()
		if err := a.write(blobs[:n]); err != nil {
			return err
		}
		blobs = blobs[n:]
	}
	return nil
}

// write appends records to the active segment, which has room for them, with one system call, and adds them to the
// index. The caller holds append.
func (a *appender) write(blobs []Blob) error {
	parts, entries := make([][]byte, 0, 2*len(blobs)), make([]entry, 0, len(blobs))
	ends := make([]int64, 0, len(blobs)) // offsets of the ends of the records
	end := a.end
	for _, b := range blobs {
		if _, ok := a.catalog.knownSize(b.ID); ok {
			continue // another goroutine has stored the blob already
		}
		h := header{b.ID, int64(len(b.Data)), crc32.Checksum(b.Data, castagnoli)}
		parts, entries = append(parts, h.encode(), b.Data), append(entries, makeEntry(h, end))
		end += headerSize + h.size
		ends = append(ends, end)
	}
	if len(entries) == 0 {
		return nil
	}
	written, err := writeFull(a.file, a.end, parts)
	// Records that were written completely are kept even after an error, because another process may have indexed them.
	whole := 0
	for whole < len(ends) && ends[whole] <= written {
		whole++
	}
	if whole > 0 {
		a.add(entries[:whole], ends[whole-1])
	}
	if err == nil {
		return nil
	}
	// Truncate the file to the end of the last complete record, so that the next record does not follow an incomplete one.
	if err := a.file.Truncate(a.end); err != nil {
		a.retire() // the segment still contains the incomplete record, so append to another segment
	}
	return err
}

// add adds records to the index, after they were written completely to the active segment, so that readers find only
// complete records. end is the offset of the end of the last record. The caller holds append.
func (a *appender) add(entries []entry, end int64) {
	a.catalog.mu.Lock()
	defer a.catalog.mu.Unlock()
	a.catalog.addLocked(a.active, entries)
	if !a.active.dropped {
		a.active.size += end - a.end
		a.catalog.bytes += end - a.end
	}
	a.end = end
}

// openActive ensures that there is an active segment with room for a record. It keeps the current active segment,
// continues an unfinished segment of an earlier process, or creates a segment. The caller holds append.
func (a *appender) openActive() error {
	a.catalog.mu.RLock()
	closed, quota, s := a.catalog.closed, a.catalog.quota, a.active
	usable := s != nil && !s.dropped && len(s.entries) < maxEntries && a.end < a.limit
	a.catalog.mu.RUnlock()
	switch {
	case closed:
		return ErrClosed
	case usable:
		return nil
	}
	a.retire()
	// The size of a segment is at most a sixteenth of the quota, so that evicting one segment removes only a small part of
	// the cache.
	a.limit = min(max(quota/16, minSegment), maxSegment)
	var st unix.Statfs_t
	// On a nearly full disk, segments must be small, because the smallest unit of eviction is a segment, and evicting a
	// large one would lose more contents than necessary.
	if err := unix.Statfs(a.folder.dir, &st); err == nil {
		a.limit = max(minSegment, min(a.limit, int64(st.Bavail)*st.Bsize/8))
	}
	if a.resume() {
		return nil
	}
	err := a.create()
	if errors.Is(err, fs.ErrNotExist) { // create the directories again, because another process has deleted them
		if err = a.folder.makeDirs(); err == nil {
			err = a.create()
		}
	}
	return err
}

// create makes a new segment the active segment. It holds the lock look until the segment is in the index, so that a
// concurrent listing does not mistake the segment for a deleted one. The caller holds append.
func (a *appender) create() error {
	a.look.Lock()
	defer a.look.Unlock()
	for {
		name := newSegmentName()
		f, err := os.OpenFile(filepath.Join(a.folder.segDir(), name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return fmt.Errorf("create cache file: %w", err)
		}
		locked, err := lock(f)
		if err != nil {
			os.Remove(f.Name())
			f.Close()
			return err
		}
		if _, ok := linked(f); !locked || !ok { // another process may have removed the file before this process locked it
			f.Close()
			continue
		}
		s := newSegment(name, time.Now())
		s.own = true
		a.catalog.mu.Lock()
		ok := a.catalog.enterLocked(s)
		a.catalog.mu.Unlock()
		if !ok {
			os.Remove(f.Name())
			f.Close()
			return fmt.Errorf("create cache file: cache has the maximum of %d files", maxSegments-1)
		}
		a.active, a.file, a.end, a.noted = s, f, 0, 0
		return nil
	}
}

// resume makes an unfinished segment of an earlier process the active segment, because otherwise each short-lived
// process would create one small segment. It returns false if there is no suitable segment. The caller holds append.
func (a *appender) resume() bool {
	a.look.Lock()
	defer a.look.Unlock()
	var candidates []*segment
	a.catalog.mu.RLock()
	for _, s := range a.catalog.byName {
		if s.size < a.limit/4*3 && len(s.entries) < maxEntries/4*3 {
			candidates = append(candidates, s)
		}
	}
	a.catalog.mu.RUnlock()
	// Try the most recently used segment first, because it is the least likely to be evicted soon.
	slices.SortFunc(candidates, func(x, y *segment) int { return cmp.Compare(y.used.Load(), x.used.Load()) })
	const tries = 8
	for _, s := range candidates[:min(tries, len(candidates))] {
		f, err := os.OpenFile(filepath.Join(a.folder.segDir(), s.name), os.O_RDWR, 0)
		if err != nil {
			continue
		}
		if a.takeOver(s, f) {
			return true
		}
		f.Close()
	}
	return false
}

// takeOver makes the segment s the active segment. The parameter f is the open file of s. takeOver returns false if s
// cannot be used, for example because another process appends to s, or because s is damaged or was evicted. It
// truncates an incomplete record at the end: no process can have indexed such a record, because the record was never
// complete. If other bytes that are not a record follow the last record, s is not used, because other processes may
// have indexed records there before the damage. The caller holds append and look.
func (a *appender) takeOver(s *segment, f *os.File) bool {
	if locked, err := lock(f); err != nil || !locked {
		return false
	}
	// Another process may have evicted the segment before this process locked it.
	size, ok := linked(f)
	if !ok {
		return false
	}
	switch how := a.look.readRecords(s, f, size); {
	case how == broken:
		return false
	// The last record is incomplete, because the last process that appended to the segment died while it wrote this
	// record.
	case how == torn:
		if err := f.Truncate(s.scanned); err != nil {
			return false
		}
	}
	a.catalog.mu.Lock()
	defer a.catalog.mu.Unlock()
	if s.dropped || len(s.entries) == maxEntries {
		return false
	}
	a.catalog.bytes += s.scanned - s.size
	s.size, s.own = s.scanned, true
	a.active, a.file, a.end, a.noted = s, f, s.scanned, 0
	return true
}

// retire stops appending to the active segment, if there is one, so that other processes can append to it or evict
// it. The caller holds append.
func (a *appender) retire() {
	s, f := a.active, a.file
	if s == nil {
		return
	}
	a.active, a.file = nil, nil
	a.catalog.mu.RLock()
	entries, dropped := s.entries, s.dropped
	a.catalog.mu.RUnlock()
	if !dropped {
		// Ignore an error, because a process that finds no sidecar reads the segment's records instead.
		_ = a.folder.writeSidecar(s.name, encodeSidecar(a.end, entries))
	}
	a.look.Lock()
	a.catalog.mu.Lock()
	s.scanned, s.own = a.end, false
	// The slice entries has spare capacity from appending. Copy it, because a finished segment needs no spare capacity.
	if !s.dropped {
		s.entries = slices.Clip(slices.Clone(s.entries))
	}
	a.catalog.mu.Unlock()
	a.look.Unlock()
	f.Close() // closing the file releases the lock
}

// noteActive acquires append and writes the sidecar of the active segment, if the sidecar lacks at least leastNoted
// records and at least an eighth of the number of records that it lists. It is called at intervals, because a process
// that is killed cannot write the sidecar, and without a sidecar the next process would have to read the header of
// every record.
func (a *appender) noteActive() {
	a.Lock()
	defer a.Unlock()
	s := a.active
	if s == nil {
		return
	}
	a.catalog.mu.RLock()
	entries, dropped := s.entries, s.dropped
	a.catalog.mu.RUnlock()
	if dropped || len(entries)-a.noted < max(leastNoted, a.noted/8) {
		return
	}
	if err := a.folder.writeSidecar(s.name, encodeSidecar(a.end, entries)); err == nil {
		a.noted = len(entries)
	}
}
