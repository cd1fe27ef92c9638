package cache

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxSegment is the size in bytes at which a segment is full. The records that were written last may extend beyond
	// this size.
	maxSegment = 64 << 20
	// minSegment is the size, in bytes, below which a segment is never full, even if the quota is small.
	minSegment = 1 << 20
	// maxEntries and maxSegments follow from the references in the index, which have 16 bits for the segment and 16
	// for the entry.
	maxEntries  = 1 << 16
	maxSegments = 1 << 16

	segmentSuffix = ".seg"
	sidecarSuffix = ".idx"

	// stampEvery is the minimum interval at which the time of last use is written to a file's mtime, from which other
	// processes, and later processes, read the time.
	stampEvery = time.Minute
)

// segment is one file of records. The bytes of a complete record never change.
type segment struct {
	name string // file name without directory
	slot uint16 // index in catalog.segments

	file atomic.Pointer[os.File] // opened when first needed
	// number of holds: one of the index, and one of each Content; when it becomes 0, file is closed
	holders atomic.Int32
	used    atomic.Int64 // time of last use, Unix nanoseconds
	stamped atomic.Int64 // time of last use that was last written to the file's mtime, Unix nanoseconds

	// catalog.mu protects the fields below. While it is held for reading, flags of entries may also be set atomically.
	entries []entry
	size    int64 // known size of the file, in bytes
	own     bool  // whether this process appends to the segment
	dropped bool  // whether the segment was evicted or deleted, so that its entries are being removed from the index

	// offset of the end of the last indexed record; protected by the lock look, and not updated while own is true
	scanned int64
}

// newSegment returns a segment with one hold, the hold of the index. The parameter used is the time of last use.
func newSegment(name string, used time.Time) *segment {
	s := &segment{name: name}
	s.holders.Store(1)
	s.used.Store(used.UnixNano())
	s.stamped.Store(used.UnixNano())
	return s
}

// newSegmentName returns a name for a new segment. Names sort by age.
func newSegmentName() string {
	return fmt.Sprintf("%016x-%08x%s", time.Now().UnixNano(), rand.Uint32(), segmentSuffix)
}

// isSegmentName reports whether a file name has the form that newSegmentName returns.
func isSegmentName(name string) bool {
	return len(name) == 16+1+8+len(segmentSuffix) && strings.HasSuffix(name, segmentSuffix) && name[16] == '-'
}

// sidecarName returns the name of the sidecar of a segment, the file that lists its records.
func sidecarName(segment string) string {
	return strings.TrimSuffix(segment, segmentSuffix) + sidecarSuffix
}

// open returns the segment's file, opened for reading. The parameter dir is the directory of segments. The caller must
// hold the segment (method hold), and must not close the file.
func (s *segment) open(dir string) (*os.File, error) {
	if f := s.file.Load(); f != nil {
		return f, nil
	}
	f, err := os.Open(filepath.Join(dir, s.name))
	if err != nil {
		return nil, err
	}
	// Two readers may open the file at the same time. Both use the file that was stored first.
	if !s.file.CompareAndSwap(nil, f) {
		f.Close() // close this file, because another goroutine has stored its file first
	}
	return s.file.Load(), nil
}

// hold prevents the segment's file from being closed until release is called. The caller holds catalog.mu, or already
// has another hold on the segment.
func (s *segment) hold() { s.holders.Add(1) }

// release ends one hold. When the last hold ends, release closes the file.
func (s *segment) release() {
	if s.holders.Add(-1) > 0 {
		return
	}
	if f := s.file.Load(); f != nil {
		f.Close()
	}
}

// touch records that a file is in use now. If stampEvery has passed since the mtime of the file f was last updated,
// touch also updates the mtime. It needs no lock.
func touch(used, stamped *atomic.Int64, f *os.File) {
	now := time.Now()
	used.Store(now.UnixNano())
	last := stamped.Load()
	// If several readers find that the mtime is old, only the first of them updates the mtime.
	if now.UnixNano()-last < int64(stampEvery) || !stamped.CompareAndSwap(last, now.UnixNano()) {
		return
	}
	tv := []unix.Timeval{unix.NsecToTimeval(now.UnixNano()), unix.NsecToTimeval(now.UnixNano())}
	// Ignore an error: an old mtime only means that the file may be evicted too early.
	_ = unix.Futimes(int(f.Fd()), tv)
}

// lock acquires the flock that a process holds while it appends to the file f. If another process holds the lock, lock
// returns false at once. The lock belongs to the open file, so the kernel releases it when the process dies.
func lock(f *os.File) (bool, error) {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, unix.EWOULDBLOCK):
			return false, nil
		case !errors.Is(err, unix.EINTR):
			return false, fmt.Errorf("lock file %s: %w", filepath.Base(f.Name()), err)
		}
	}
}

// unlock releases the flock of f. It ignores an error, because closing the file also releases the lock.
func unlock(f *os.File) { _ = unix.Flock(int(f.Fd()), unix.LOCK_UN) }

// linked returns the size of an open file in bytes, and reports whether the file still has a name.
func linked(f *os.File) (size int64, ok bool) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, false
	}
	return st.Size, st.Nlink > 0
}
