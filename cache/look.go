package cache

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
)

const (
	// lookEvery is the minimum interval between two calls of lookAround that look for records of other processes.
	lookEvery = time.Millisecond
	// growthChecks is the number of unfinished segments whose size one call of lookAround checks.
	growthChecks = 8
	// settled is the age above which a directory's mtime proves that no file was added after the directory was listed. A
	// younger mtime does not prove this, because the clocks of some file systems tick only every 10 ms, so two changes
	// within one tick result in the same mtime.
	settled = 100 * time.Millisecond
)

// listBig adds all big files on disk to the index, and deletes files that are incomplete or damaged, for example after
// a crash. The caller holds look.
func (l *lookout) listBig() error {
	root := filepath.Join(l.folder.dir, "big")
	dirs, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, d := range dirs {
		files, err := os.ReadDir(filepath.Join(root, d.Name()))
		if err != nil {
			continue // skip a plain file, and a directory that cannot be read
		}
		for _, file := range files {
			id, err := object.ParseID(file.Name())
			// Skip files that do not belong to the cache.
			if err != nil || filepath.Join(root, d.Name(), file.Name()) != l.folder.bigPath(id) {
				continue
			}
			f, err := os.Open(l.folder.bigPath(id))
			if err != nil {
				continue
			}
			if h, st, ok := readBigHeader(f, id); ok {
				l.catalog.enterBig(id, h.size, time.Unix(st.Mtim.Unix()), 0)
			} else {
				l.folder.removeBroken(id)
			}
			f.Close()
		}
	}
	return nil
}

// lookout keeps the catalog up to date with the files on disk, which other processes add, extend and remove. Blobs
// calls the lookout after a miss and at intervals. The embedded lock, which comments call look, protects the fields
// listed and next, and the field scanned of segments. Blobs also holds this lock while it evicts contents.
type lookout struct {
	folder   *folder
	catalog  *catalog
	started  time.Time
	nextLook atomic.Int64 // earliest time at which lookAround may look again, in nanoseconds since started

	sync.Mutex
	listed time.Time // mtime that seg/ had when it was last listed; zero if that mtime was too recent to prove anything
	next   int       // slot of the segment that readGrowth has examined last
}

// lookAround adds the records that other processes have stored since the last call to the index, and drops the segments
// that other processes have evicted. It returns true if it found any records. If another call was made within the last
// millisecond or is in progress, lookAround does nothing and returns false.
func (l *lookout) lookAround() bool {
	now, next := int64(time.Since(l.started)), l.nextLook.Load()
	// If several goroutines miss a blob within one millisecond, only one of them continues after this line. The other
	// goroutines return a miss at once.
	if now < next || !l.nextLook.CompareAndSwap(next, now+int64(lookEvery)) || !l.TryLock() {
		return false
	}
	defer l.Unlock()
	listed, err := l.listChanged()
	if err != nil {
		// the error is not returned, and the look-up counts as a miss; if the error persists, the next Put returns it
		return false
	}
	return l.readGrowth() || listed
}

// listChanged calls listSegments if the directory of segments has changed since it was last listed, and reports whether
// listSegments was called. The caller holds look.
func (l *lookout) listChanged() (bool, error) {
	info, err := os.Stat(l.folder.segDir())
	if err == nil && info.ModTime().Equal(l.listed) {
		return false, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return true, l.listSegments()
}

// listSegments adds new segments on disk to the index, and drops segments that no longer exist on disk. The caller
// holds look.
func (l *lookout) listSegments() error {
	begun := time.Now()
	names := map[string]bool{}
	var changed time.Time
	dir, err := os.Open(l.folder.segDir())
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
			// Only segments have the value true, so that sidecars and other files are not read as segments.
			names[name] = isSegmentName(name)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var gone []*segment
	l.catalog.mu.RLock()
	for name, s := range l.catalog.byName {
		if !names[name] {
			gone = append(gone, s)
		}
		delete(names, name)
	}
	l.catalog.mu.RUnlock()
	for _, s := range gone {
		l.catalog.drop(s)
	}
	for name, is := range names {
		if is {
			l.readSegment(name)
		}
	}
	l.listed = time.Time{}
	// A file that is added within the same tick of the clock does not change the mtime. So the mtime is relied upon only
	// if it was old when the listing began. Otherwise the next call lists the directory again.
	if begun.Sub(changed) > settled {
		l.listed = changed
	}
	return nil
}

// readSegment adds the segment called name, which is not in the index yet, to the index. It ignores a segment that
// cannot be read. The caller holds look.
func (l *lookout) readSegment(name string) {
	f, err := os.Open(filepath.Join(l.folder.segDir(), name))
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
	if text, err := os.ReadFile(filepath.Join(l.folder.segDir(), sidecarName(name))); err == nil {
		covered, entries, _ = parseSidecar(text, info.Size())
	}
	l.catalog.mu.Lock()
	ok := !l.catalog.closed && l.catalog.enterLocked(s)
	if ok {
		// Growing the index once is faster than growing it in several steps.
		l.catalog.index.reserve(l.catalog.index.n + len(entries))
		l.catalog.addLocked(s, entries)
		s.scanned = covered
	}
	l.catalog.mu.Unlock()
	if ok {
		l.readRecords(s, f, info.Size())
	}
}

// readRecords adds the complete records of a segment to the index. It reads the part of the file f between the offsets
// s.scanned and size. The caller must have read the size of the file before the call, and holds look. The result
// describes the bytes after the last complete record.
func (l *lookout) readRecords(s *segment, f *os.File, size int64) segmentEnd {
	var found []entry
	end, how, err := scanRecords(f, s.scanned, size, func(h header, off int64) bool {
		found = append(found, makeEntry(h, off))
		return len(found) < maxEntries
	})
	if err != nil {
		how = broken
	}
	s.scanned = end
	l.catalog.mu.Lock()
	defer l.catalog.mu.Unlock()
	l.catalog.addLocked(s, found)
	// The size of a dropped segment was already subtracted from the size of the cache.
	if !s.dropped {
		l.catalog.bytes += size - s.size
		s.size = size
	}
	return how
}

// readGrowth adds the records that other processes have appended to segments to the index. Each call checks a few
// unfinished segments, and the next call continues with the segments after these. readGrowth reports whether it found
// records. The caller holds look.
func (l *lookout) readGrowth() bool {
	var check []*segment
	l.catalog.mu.RLock()
	for range min(len(l.catalog.segments), 64*growthChecks) {
		l.next = (l.next + 1) % len(l.catalog.segments)
		s := l.catalog.segments[l.next]
		if s != nil && !s.own && !s.dropped && s.size < maxSegment {
			// The hold keeps the file open after mu is released, even if the segment is evicted.
			s.hold()
			if check = append(check, s); len(check) == growthChecks {
				break
			}
		}
	}
	l.catalog.mu.RUnlock()
	grown := false
	for _, s := range check {
		grown = l.readMore(s) || grown
		s.release()
	}
	return grown
}

// readMore adds the records that another process has appended to the segment s to the index, and reports whether there
// were any. If s was evicted, readMore drops s. The caller holds look.
func (l *lookout) readMore(s *segment) bool {
	f, err := s.open(l.folder.segDir())
	if errors.Is(err, fs.ErrNotExist) {
		l.catalog.drop(s)
	}
	if err != nil {
		return false
	}
	size, ok := linked(f)
	if !ok {
		l.catalog.drop(s)
	}
	if !ok || size == s.size {
		return false
	}
	before := s.scanned
	l.readRecords(s, f, size)
	return s.scanned > before
}
