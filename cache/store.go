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
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/object"
)

// errNoID is the error for the zero id, which never identifies a blob.
var errNoID = errors.New("object ID is empty")

// Put stores the contents of blob id, which the caller has verified. If the disk is full, Put evicts other contents
// and tries once more. If that fails too, the error wraps unix.ENOSPC or unix.EDQUOT, and nothing is stored.
func (b *Blobs) Put(id object.ID, data []byte) error {
	if _, ok := b.knownSize(id); ok {
		return nil
	}
	var err error
	switch {
	case id.IsZero():
		err = errNoID
	case len(data) > maxSmall:
		err = b.putBig(id, data)
	default:
		err = b.putSmall(id, data)
	}
	if err != nil {
		return fmt.Errorf("put blob %s: %w", id, err)
	}
	b.evictOver(id)
	return nil
}

// putSmall appends contents of at most maxSmall bytes to the active segment. If the disk is full, putSmall evicts
// other contents and tries once more.
func (b *Blobs) putSmall(id object.ID, data []byte) error {
	b.append.Lock()
	defer b.append.Unlock()
	err := b.appendRecord(id, data)
	if isFull(err) && b.makeRoomLocked(headerSize+int64(len(data))) {
		err = b.appendRecord(id, data)
	}
	return err
}

// appendRecord appends a record with the contents to the active segment and adds it to the index. The caller holds
// b.append.
func (b *Blobs) appendRecord(id object.ID, data []byte) error {
	if _, ok := b.knownSize(id); ok {
		return nil // another goroutine has stored the blob
	}
	if err := b.openActive(); err != nil {
		return err
	}
	h := header{id, int64(len(data)), crc32.Checksum(data, castagnoli)}
	a := &b.append
	if err := writeFull(a.file, a.end, h.encode(), data); err != nil {
		// Remove the incomplete record, so that the next record follows a complete one.
		if err := a.file.Truncate(a.end); err != nil {
			b.retire() // the segment ends with an incomplete record, so append to another one
		}
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	n := headerSize + int64(len(data))
	// Readers find the record only now that it is written completely.
	b.addLocked(a.active, []entry{makeEntry(h, a.end)})
	a.end += n
	if !a.active.dropped {
		a.active.size += n
		b.bytes += n
	}
	return nil
}

// writeFull writes head and data to f at offset off. It uses one system call unless the kernel writes only a part.
func writeFull(f *os.File, off int64, head, data []byte) error {
	for parts := [][]byte{head, data}; ; {
		n, err := unix.Pwritev(int(f.Fd()), parts, off)
		// A signal may interrupt the call before it has written a byte; n is then -1.
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("append to cache file %s: %w", filepath.Base(f.Name()), err)
		}
		off += int64(max(n, 0))
		for len(parts) > 0 && n >= len(parts[0]) {
			n -= len(parts[0])
			parts = parts[1:]
		}
		if len(parts) == 0 {
			return nil
		}
		parts[0] = parts[0][max(n, 0):]
	}
}

// openActive ensures that there is an active segment with room for a record: it keeps the present one, continues an
// unfinished one, or creates one. The caller holds b.append.
func (b *Blobs) openActive() error {
	b.mu.RLock()
	closed, quota, a := b.closed, b.quota, b.append.active
	usable := a != nil && !a.dropped && len(a.entries) < maxEntries && b.append.end < b.append.limit
	b.mu.RUnlock()
	switch {
	case closed:
		return ErrClosed
	case usable:
		return nil
	}
	b.retire()
	// At most a sixteenth of the quota goes into one segment, so that evicting a segment loses only a small part of
	// the cache.
	b.append.limit = min(max(quota/16, minSegment), maxSegment)
	var st unix.Statfs_t
	if err := unix.Statfs(b.dir, &st); err == nil { // on a nearly full disk, segments must be small for eviction to be gradual
		b.append.limit = max(minSegment, min(b.append.limit, int64(st.Bavail)*st.Bsize/8))
	}
	if b.resume() {
		return nil
	}
	err := b.create()
	if errors.Is(err, fs.ErrNotExist) { // the directory was deleted by another process
		if err = b.makeDirs(); err == nil {
			err = b.create()
		}
	}
	return err
}

// create makes a new segment the active one. It holds b.look until the segment is in the index, so that a concurrent
// listing does not take it for a segment that was deleted. The caller holds b.append.
func (b *Blobs) create() error {
	b.look.Lock()
	defer b.look.Unlock()
	for {
		name := newSegmentName()
		f, err := os.OpenFile(filepath.Join(b.segDir(), name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return fmt.Errorf("create cache file: %w", err)
		}
		locked, err := lock(f)
		if err != nil {
			os.Remove(f.Name())
			f.Close()
			return err
		}
		if _, ok := linked(f); !locked || !ok { // another process evicted the file before it was locked
			f.Close()
			continue
		}
		s := newSegment(name, time.Now())
		s.own = true
		b.mu.Lock()
		ok := b.enterLocked(s)
		b.mu.Unlock()
		if !ok {
			os.Remove(f.Name())
			f.Close()
			return fmt.Errorf("create cache file: the limit of %d files is reached", maxSegments-1)
		}
		b.append.active, b.append.file, b.append.end, b.append.noted = s, f, 0, 0
		return nil
	}
}

// resume makes an unfinished segment the active one, so that short-lived processes do not create one small segment
// each. It returns false if there is no suitable segment. The caller holds b.append.
func (b *Blobs) resume() bool {
	b.look.Lock()
	defer b.look.Unlock()
	var candidates []*segment
	b.mu.RLock()
	for _, s := range b.byName {
		if s.size < b.append.limit/4*3 && len(s.entries) < maxEntries/4*3 {
			candidates = append(candidates, s)
		}
	}
	b.mu.RUnlock()
	// Try the most recently used segment first, because it is the least likely to be evicted soon.
	slices.SortFunc(candidates, func(x, y *segment) int { return cmp.Compare(y.used.Load(), x.used.Load()) })
	const tries = 8
	for _, s := range candidates[:min(tries, len(candidates))] {
		f, err := os.OpenFile(filepath.Join(b.segDir(), s.name), os.O_RDWR, 0)
		if err != nil {
			continue
		}
		if b.takeOver(s, f) {
			return true
		}
		f.Close()
	}
	return false
}

// takeOver makes s the active segment unless another process appends to it or it is damaged; f is its open file. It
// returns false if s cannot be used. An incomplete record at the end is truncated: since it was never complete, no
// process can have indexed it. If other bytes that are not a record follow the last record, s is not used, because
// other processes may have indexed records there before the damage. The caller holds b.append and b.look.
func (b *Blobs) takeOver(s *segment, f *os.File) bool {
	if locked, err := lock(f); err != nil || !locked {
		return false
	}
	// Another process may have evicted the segment before this one locked it.
	size, ok := linked(f)
	if !ok {
		return false
	}
	switch how := b.readRecords(s, f, size); {
	case how == broken:
		return false
	// The last process that appended died while it wrote the record.
	case how == torn:
		if err := f.Truncate(s.scanned); err != nil {
			return false
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.dropped || len(s.entries) == maxEntries {
		return false
	}
	b.bytes += s.scanned - s.size
	s.size, s.own = s.scanned, true
	b.append.active, b.append.file, b.append.end, b.append.noted = s, f, s.scanned, 0
	return true
}

// retire stops appending to the active segment, if there is one, so that other processes can append to it or evict
// it. The caller holds b.append.
func (b *Blobs) retire() {
	s, f := b.append.active, b.append.file
	if s == nil {
		return
	}
	b.append.active, b.append.file = nil, nil
	b.mu.RLock()
	entries, dropped := s.entries, s.dropped
	b.mu.RUnlock()
	if !dropped {
		// A failure is ignored: a process that finds no sidecar reads the segment's records instead.
		_ = b.writeSidecar(s.name, encodeSidecar(b.append.end, entries))
	}
	b.look.Lock()
	b.mu.Lock()
	s.scanned, s.own = b.append.end, false
	// The slice grew by append; the copy has no spare capacity, which a finished segment does not need.
	if !s.dropped {
		s.entries = slices.Clip(slices.Clone(s.entries))
	}
	b.mu.Unlock()
	b.look.Unlock()
	f.Close() // releases the lock
}

// leastNoted is the number of new records from which on rewriting the sidecar is worthwhile. A successor reads
// records that are not in the sidecar one by one, which takes about 3 us each.
const leastNoted = 256

// noteActive writes the sidecar of the active segment if at least leastNoted records, and an eighth of those in the
// sidecar, are new. A process that is killed cannot write the sidecar, and without one its successor would have to
// read the header of every record.
func (b *Blobs) noteActive() {
	b.append.Lock()
	defer b.append.Unlock()
	s := b.append.active
	if s == nil {
		return
	}
	b.mu.RLock()
	entries, dropped := s.entries, s.dropped
	b.mu.RUnlock()
	if dropped || len(entries)-b.append.noted < max(leastNoted, b.append.noted/8) {
		return
	}
	if err := b.writeSidecar(s.name, encodeSidecar(b.append.end, entries)); err == nil {
		b.append.noted = len(entries)
	}
}

// writeSidecar writes the sidecar of a segment. It replaces the old one atomically, by a rename, so that readers
// never see a partly written sidecar.
func (b *Blobs) writeSidecar(segment string, content []byte) error {
	f, err := os.CreateTemp(b.tmpDir(), "idx-*")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(b.segDir(), sidecarName(segment)))
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}
