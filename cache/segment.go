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
	// maxSegment is the size, in bytes, at which a segment is full. Its last record may extend beyond.
	maxSegment = 64 << 20
	// minSegment is the minimal capacity of a segment, however small the quota is.
	minSegment = 1 << 20
	// maxEntries and maxSegments are limits of a reference of 32 bits.
	maxEntries  = 1 << 16
	maxSegments = 1 << 16

	segmentSuffix = ".seg"
	sidecarSuffix = ".idx"

	// stampEvery is how often the time of last use is written to a file's mtime, where other
	// processes and successors find it.
	stampEvery = time.Minute
)

// segment is one file of records. The bytes of a complete record never change.
type segment struct {
	name string // file name without directory
	slot uint16 // index in Blobs.segments

	file    atomic.Pointer[os.File] // opened when first needed
	holders atomic.Int32            // number of holds of the index and of Contents; the last release closes file
	used    atomic.Int64            // time of last use, Unix nanoseconds
	stamped atomic.Int64            // time of use that was last written to the file's mtime

	// Guarded by Blobs.mu; flags of entries are also set under its read lock, atomically.
	entries []entry
	size    int64 // known size of the file, in bytes
	own     bool  // whether this process appends to it
	dropped bool  // whether it was evicted or has vanished; its entries are being removed from the index

	scanned int64 // offset behind the last indexed record; guarded by Blobs.look, and not updated while own
}

// newSegment returns a segment that the index holds: its number of holders is one.
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

// isSegmentName reports whether a file name is one of newSegmentName.
func isSegmentName(name string) bool {
	return len(name) == 16+1+8+len(segmentSuffix) && strings.HasSuffix(name, segmentSuffix) && name[16] == '-'
}

// sidecarName returns the name of the file with the index of a segment.
func sidecarName(segment string) string {
	return strings.TrimSuffix(segment, segmentSuffix) + sidecarSuffix
}

// open returns the segment's file for reading. The caller must be a holder.
func (s *segment) open(dir string) (*os.File, error) {
	if f := s.file.Load(); f != nil {
		return f, nil
	}
	f, err := os.Open(filepath.Join(dir, s.name))
	if err != nil {
		return nil, err
	}
	// Two readers may open the file at the same time; both use the one that was stored first.
	if !s.file.CompareAndSwap(nil, f) {
		f.Close() // another reader was faster
	}
	return s.file.Load(), nil
}

// hold keeps the file open until release. The caller holds Blobs.mu, or holds the segment already.
func (s *segment) hold() { s.holders.Add(1) }

// release ends one hold. The last one closes the file.
func (s *segment) release() {
	if s.holders.Add(-1) > 0 {
		return
	}
	if f := s.file.Load(); f != nil {
		f.Close()
	}
}

// touch records a use. From time to time it updates the file's mtime, without holding a lock.
func touch(used, stamped *atomic.Int64, f *os.File) {
	now := time.Now()
	used.Store(now.UnixNano())
	last := stamped.Load()
	// Of several readers that find the stamp old, one updates it.
	if now.UnixNano()-last < int64(stampEvery) || !stamped.CompareAndSwap(last, now.UnixNano()) {
		return
	}
	tv := []unix.Timeval{unix.NsecToTimeval(now.UnixNano()), unix.NsecToTimeval(now.UnixNano())}
	// A stamp that cannot be written makes eviction choose worse, no more.
	_ = unix.Futimes(int(f.Fd()), tv)
}

// lock acquires the lock of the process that appends to a file. It belongs to the open file, so the
// kernel releases it when the process dies. It returns false if another process has it.
func lock(f *os.File) (bool, error) {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, unix.EWOULDBLOCK):
			return false, nil
		case !errors.Is(err, unix.EINTR):
			return false, fmt.Errorf("lock %s: %w", filepath.Base(f.Name()), err)
		}
	}
}

// unlock releases the lock. Errors are ignored: closing the file releases it too.
func unlock(f *os.File) { _ = unix.Flock(int(f.Fd()), unix.LOCK_UN) }

// linked reports whether an open file still has a name, and how long it is.
func linked(f *os.File) (size int64, ok bool) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, false
	}
	return st.Size, st.Nlink > 0
}
