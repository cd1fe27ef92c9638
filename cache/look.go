package cache

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

const (
	// lookEvery is how often misses look for records of other processes.
	lookEvery = time.Millisecond
	// growthChecks is the number of unfinished segments whose size one look checks.
	growthChecks = 8
	// settled is how old a directory's mtime must be to prove that nothing was added later: clocks
	// of file systems tick as slowly as every 10 ms.
	settled = 100 * time.Millisecond
)

// lookAround indexes the records that other processes have stored since the last time, and drops
// those that they evicted, unless this was done within the last millisecond or is being done. It
// reports whether anything was found.
func (b *Blobs) lookAround() bool {
	now, next := int64(time.Since(b.started)), b.nextLook.Load()
	// Of all goroutines that miss within a millisecond one looks around. The others count as a
	// miss.
	if now < next || !b.nextLook.CompareAndSwap(next, now+int64(lookEvery)) || !b.look.TryLock() {
		return false
	}
	defer b.look.Unlock()
	listed, err := b.listChanged()
	if err != nil {
		return false // a miss; the error is reported when something is stored
	}
	return b.readGrowth() || listed
}

// listChanged lists the segments if the directory changed since it was last read; it needs look.
func (b *Blobs) listChanged() (bool, error) {
	info, err := os.Stat(b.segDir())
	if err == nil && info.ModTime().Equal(b.look.listed) {
		return false, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return true, b.listSegments()
}

// listSegments makes the index match the segments on disk: it adds new ones and drops those that
// were removed. It needs look.
func (b *Blobs) listSegments() error {
	begun := time.Now()
	names := map[string]bool{}
	var changed time.Time
	dir, err := os.Open(b.segDir())
	if err == nil {
		defer dir.Close()
		info, err := dir.Stat()
		if err != nil {
			return err
		}
		changed = info.ModTime()
		list, err := dir.Readdirnames(-1)
		if err != nil {
			return err
		}
		for _, name := range list {
			// Sidecars and foreign files are in the map with false, and are not read as segments.
			names[name] = isSegmentName(name)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var gone []*segment
	b.mu.RLock()
	for name, s := range b.byName {
		if !names[name] {
			gone = append(gone, s)
		}
		delete(names, name)
	}
	b.mu.RUnlock()
	for _, s := range gone {
		b.drop(s)
	}
	for name, is := range names {
		if is {
			b.readSegment(name)
		}
	}
	b.look.listed = time.Time{}
	// A file that is added within one tick of the clock does not change the mtime. The directory is
	// listed again until its mtime is old enough.
	if begun.Sub(changed) > settled {
		b.look.listed = changed
	}
	return nil
}

// readSegment indexes a segment for the first time. A segment that cannot be read is ignored. It
// needs look.
func (b *Blobs) readSegment(name string) {
	f, err := os.Open(filepath.Join(b.segDir(), name))
	if err != nil {
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return
	}
	s := newSegment(name, info.ModTime())
	var covered int64
	var entries []entry
	// The sidecar has the entries of the first `covered` bytes. The records after them are read one
	// by one.
	if text, err := os.ReadFile(filepath.Join(b.segDir(), sidecarName(name))); err == nil {
		covered, entries, _ = parseSidecar(text, info.Size())
	}
	b.mu.Lock()
	ok := !b.closed && b.enterLocked(s)
	if ok {
		// One growth of the table is cheaper than one for each doubling.
		b.index.reserve(b.index.n + len(entries))
		b.addLocked(s, entries)
		s.scanned = covered
	}
	b.mu.Unlock()
	if ok {
		b.readRecords(s, f, info.Size())
	}
}

// readRecords indexes the complete records of a segment from the end of the last reading to size,
// which the caller has read before. It needs look.
func (b *Blobs) readRecords(s *segment, f *os.File, size int64) ending {
	var found []entry
	end, how, err := scanRecords(f, s.scanned, size, func(h header, off int64) bool {
		found = append(found, makeEntry(h, off))
		return len(found) < maxEntries
	})
	if err != nil {
		how = broken
	}
	s.scanned = end
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addLocked(s, found)
	// An evicted segment's bytes were subtracted when it was dropped.
	if !s.dropped {
		b.bytes += size - s.size
		s.size = size
	}
	return how
}

// readGrowth indexes records appended to other processes' segments, a few segments in turn. It
// needs look.
func (b *Blobs) readGrowth() bool {
	var check []*segment
	b.mu.RLock()
	for range min(len(b.segments), 64*growthChecks) {
		b.look.next = (b.look.next + 1) % len(b.segments)
		s := b.segments[b.look.next]
		if s != nil && !s.own && !s.dropped && s.size < maxSegment {
			// The hold keeps the file open after mu is released, even if the segment is evicted.
			s.hold()
			if check = append(check, s); len(check) == growthChecks {
				break
			}
		}
	}
	b.mu.RUnlock()
	grown := false
	for _, s := range check {
		grown = b.readMore(s) || grown
		s.release()
	}
	return grown
}

// readMore indexes records appended to one segment of another process, and drops a segment that was
// evicted. It needs look.
func (b *Blobs) readMore(s *segment) bool {
	f, err := s.open(b.segDir())
	if errors.Is(err, fs.ErrNotExist) {
		b.drop(s)
	}
	if err != nil {
		return false
	}
	size, ok := linked(f)
	if !ok {
		b.drop(s)
	}
	if !ok || size == s.size {
		return false
	}
	before := s.scanned
	b.readRecords(s, f, size)
	return s.scanned > before
}
