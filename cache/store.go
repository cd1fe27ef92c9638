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

// errNoID is returned for the zero id, which names no blob.
var errNoID = errors.New("the id is null")

// Put stores contents that the caller has verified. On a full disk it evicts and tries once more;
// the error then wraps unix.ENOSPC or unix.EDQUOT, and nothing of the contents is left.
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

// putSmall appends contents of at most maxSmall bytes to the active segment. On a full disk it
// evicts and tries once more.
func (b *Blobs) putSmall(id object.ID, data []byte) error {
	b.append.Lock()
	defer b.append.Unlock()
	err := b.appendRecord(id, data)
	if isFull(err) && b.makeRoomLocked(headerSize+int64(len(data))) {
		err = b.appendRecord(id, data)
	}
	return err
}

// appendRecord appends contents to the active segment and indexes them. It needs append.
func (b *Blobs) appendRecord(id object.ID, data []byte) error {
	if _, ok := b.knownSize(id); ok {
		return nil // another Put was faster
	}
	if err := b.openActive(); err != nil {
		return err
	}
	h := header{id, int64(len(data)), crc32.Checksum(data, castagnoli)}
	a := &b.append
	if err := writeFull(a.file, a.end, h.encode(), data); err != nil {
		// The record is cut off again, so that the next one follows a complete record.
		if err := a.file.Truncate(a.end); err != nil {
			b.retire() // an incomplete record stays at its end forever
		}
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	n := headerSize + int64(len(data))
	// The record becomes visible to readers after it was written completely.
	b.addLocked(a.active, []entry{makeEntry(h, a.end)})
	a.end += n
	if !a.active.dropped {
		a.active.size += n
		b.bytes += n
	}
	return nil
}

// writeFull writes head and data at off with one system call, if the kernel takes it all.
func writeFull(f *os.File, off int64, head, data []byte) error {
	for parts := [][]byte{head, data}; ; {
		n, err := unix.Pwritev(int(f.Fd()), parts, off)
		// A signal may interrupt the call before it has written a byte; n is then -1.
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("append to %s: %w", filepath.Base(f.Name()), err)
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

// openActive ensures that there is an active segment with room. It needs append.
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
	// Sixteen segments share the quota, so that evicting one frees a small part of it.
	b.append.limit = min(max(quota/16, minSegment), maxSegment)
	var st unix.Statfs_t
	if err := unix.Statfs(b.dir, &st); err == nil { // on a nearly full disk eviction must have small pieces
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

// create starts a segment. It holds look while the file is new, so that a concurrent look does not
// drop the segment as one that vanished. It needs append.
func (b *Blobs) create() error {
	b.look.Lock()
	defer b.look.Unlock()
	for {
		name := newSegmentName()
		f, err := os.OpenFile(filepath.Join(b.segDir(), name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return fmt.Errorf("create segment: %w", err)
		}
		locked, err := lock(f)
		if err != nil {
			os.Remove(f.Name())
			f.Close()
			return err
		}
		if _, ok := linked(f); !locked || !ok { // another process found it unlocked and evicted it
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
			return fmt.Errorf("create segment: there are %d already", maxSegments-1)
		}
		b.append.active, b.append.file, b.append.end, b.append.noted = s, f, 0, 0
		return nil
	}
}

// resume continues an unfinished segment, so that short-lived processes do not create one small
// segment each. It needs append.
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
	// The most recently used segment is first: it is the least likely to be evicted soon.
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

// takeOver makes s the active segment if no process has it and it ends with a complete or an
// incomplete record. The incomplete record is truncated: it was never complete, so no process can
// have indexed it. After bytes that are no record nothing is appended, because other processes may
// have indexed records there before the damage. It needs append and look.
func (b *Blobs) takeOver(s *segment, f *os.File) bool {
	if locked, err := lock(f); err != nil || !locked {
		return false
	}
	// The segment may have been evicted between the listing and the lock.
	size, ok := linked(f)
	if !ok {
		return false
	}
	switch how := b.readRecords(s, f, size); {
	case how == broken:
		return false
	// The last writer died while it wrote the record.
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

// retire stops appending to the active segment, if there is one, and releases it for other
// processes. It needs append.
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
		// Without its sidecar a segment is scanned when it is opened, so a failure is not returned.
		_ = b.writeSidecar(s.name, encodeSidecar(b.append.end, entries))
	}
	b.look.Lock()
	b.mu.Lock()
	s.scanned, s.own = b.append.end, false
	// The entries grew by append; the copy drops the spare capacity for the rest of the segment's
	// life.
	if !s.dropped {
		s.entries = slices.Clip(slices.Clone(s.entries))
	}
	b.mu.Unlock()
	b.look.Unlock()
	f.Close() // releases the lock
}

// leastNoted is how many records are read one by one rather than from a sidecar: about 3 us each.
const leastNoted = 256

// noteActive writes the sidecar of the active segment when a good part of the segment is new. A
// process that is killed writes none, and its successor would first have to read the header of
// every record.
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

// writeSidecar writes the sidecar of a segment. It replaces the old one at once, by a rename, so
// that readers see one of the two.
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
