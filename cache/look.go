package cache

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

const (
	// lookEvery is the minimum interval at which misses look for records of other processes.
	lookEvery = time.Millisecond
	// growthChecks is the number of unfinished segments whose size one call of lookAround checks.
	growthChecks = 8
	// settled is the age from which on a directory's mtime proves that nothing was added after it was listed. A
	// younger mtime does not: the clocks of file systems tick as slowly as every 10 ms, so a later addition may have
	// the same mtime.
	settled = 100 * time.Millisecond
)

// lookAround indexes the records that other processes have stored since the last call, and drops the segments that
// they have evicted. It reports whether it found any. It does nothing and returns false if a call was made within the
// last millisecond or is in progress.
func (b *Blobs) lookAround() bool {
	now, next := int64(time.Since(b.started)), b.nextLook.Load()
	// Of all goroutines that do not find their blob within one millisecond, only one continues here. The others
	// return a miss at once.
	if now < next || !b.nextLook.CompareAndSwap(next, now+int64(lookEvery)) || !b.look.TryLock() {
		return false
	}
	defer b.look.Unlock()
	listed, err := b.listChanged()
	if err != nil {
		return false // treated as a miss; the next Put will report the error
	}
	return b.readGrowth() || listed
}

// listChanged calls listSegments if the directory of segments has changed since it was last listed, and reports
// whether it did. The caller holds b.look.
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

// listSegments adds the segments that are new on disk to the index, and drops those that do not exist any more. The
// caller holds b.look.
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
			// Sidecars and other files have the value false, so that they are not read as segments.
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
	// If a file is added within the same tick of the clock, the mtime does not change. So the mtime is relied upon
	// only if it was old when the listing began; otherwise the next call lists the directory again.
	if begun.Sub(changed) > settled {
		b.look.listed = changed
	}
	return nil
}

// readSegment adds a segment to the index that is not in it. A segment that cannot be read is ignored. The caller
// holds b.look.
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
	// The sidecar lists the records in the first covered bytes of the segment. The headers of later records are read
	// one by one below.
	if text, err := os.ReadFile(filepath.Join(b.segDir(), sidecarName(name))); err == nil {
		covered, entries, _ = parseSidecar(text, info.Size())
	}
	b.mu.Lock()
	ok := !b.closed && b.enterLocked(s)
	if ok {
		// Growing the index once is cheaper than growing it in several steps.
		b.index.reserve(b.index.n + len(entries))
		b.addLocked(s, entries)
		s.scanned = covered
	}
	b.mu.Unlock()
	if ok {
		b.readRecords(s, f, info.Size())
	}
}

// readRecords indexes the complete records of a segment that lie between s.scanned and size. The caller must have
// read size, the size of the file f, before the call, and holds b.look. The result describes what follows the last
// complete record.
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
	// The bytes of a dropped segment were subtracted when it was dropped.
	if !s.dropped {
		b.bytes += size - s.size
		s.size = size
	}
	return how
}

// readGrowth indexes the records that other processes have appended to segments. Each call checks a few unfinished
// segments, and the next call continues with the ones after them. It reports whether it found records. The caller
// holds b.look.
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

// readMore indexes the records that another process has appended to s, and reports whether there were any. It drops s
// if it was evicted. The caller holds b.look.
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
