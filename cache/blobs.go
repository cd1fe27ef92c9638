// Package cache stores data that can be fetched again: verified contents on disk, sizes of
// contents, and parsed trees and small contents in memory.
//
// # Blobs
//
// Blobs promises the following. Get returns exactly the bytes that were Put under an id, or nothing. Contents stay
// readable until they are released. The bytes on disk stay near the quota. Any process may delete any file in the
// directory at any moment. Blobs does not promise durability: it never calls fsync, a crash may lose contents, and
// damaged contents are dropped. But it never returns wrong bytes: all contents have a checksum, which each process
// verifies when it first reads them.
//
// Contents up to 1 MiB are appended as records to large files, the segments, because a file for each blob would cost
// 30-50 us and a block of disk. Larger contents have a file of their own (a big file). Layout of the directory:
//
//	seg/<age>-<random>.seg   records, see record.go
//	seg/<age>-<random>.idx   sidecar: the offsets of the records
//	big/ab/<hex>             one blob, followed by its header
//	tmp/                     files that are being written
//
// Several processes share a directory. Only one process at a time appends to a segment, under flock; the other
// processes notice after a miss that a segment has grown or that there are new segments. The bytes of a complete
// record are never written again, so readers need no lock. Only an incomplete record at the end, which no process can
// have read, is truncated. Whole segments and big files are evicted, least recently used first, except segments that
// a process appends to. The time of last use is the mtime of the file, which is updated once a minute.
//
// Lock order: append before look before mu. The locks append and look are held across disk operations, but only by
// goroutines that store or evict contents or index the records of other processes. A Get that finds its contents
// acquires only mu, for reading, and mu is never held across a system call.
//
// # Sizes, Memory
//
// Sizes stores the sizes of blobs in an append-only table of records with checksums. Several processes share the
// table, as they share segments. Memory is a ristretto cache.
package cache

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/object"
)

// ErrClosed means that the cache was closed.
var ErrClosed = errors.New("cache is closed")

// housekeeping is the interval at which an otherwise idle process checks whether other processes have evicted
// segments that it holds open. The disk gets the space back only when every process has closed the file.
const housekeeping = 2 * time.Second

// Blobs stores verified contents of blobs on disk, within a quota. Its methods may be called from any goroutine.
type Blobs struct {
	dir     string
	started time.Time
	unnamed bool // the file system supports unnamed files (O_TMPFILE), which the kernel deletes when their process ends

	stop chan struct{}
	wg   sync.WaitGroup

	nextLook atomic.Int64 // earliest time of the next lookAround, in nanoseconds since started
	damaged  atomic.Int64 // number of contents found damaged since opening

	append struct { // held by goroutines that store small contents
		sync.Mutex
		active *segment // the segment that this process appends to; nil if there is none
		file   *os.File // file of active, opened for writing; holds the flock
		end    int64    // offset of the end of the last record of active
		noted  int      // number of records in the sidecar of active
		limit  int64    // size, in bytes, at which active is full
	}
	look struct { // held by goroutines that evict or index other processes' records
		sync.Mutex
		listed time.Time // mtime of seg/ when it was last listed; zero if that was too recent to rely on
		next   int       // index at which the next round of growth checks starts
	}

	mu       sync.RWMutex
	closed   bool
	quota    int64
	evictAt  int64               // a Put evicts when bytes exceeds evictAt; usually the quota
	bytes    int64               // total size of all indexed segments and big files
	segments []*segment          // by slot; slot 0 is never used
	unused   []uint16            // free indexes of segments
	byName   map[string]*segment // segments by file name
	index    refs                // references are slot<<16 | index in the segment's entries
	big      map[object.ID]*bigFile
}

// Usage describes the contents of a cache.
type Usage struct {
	Blobs   int   // number of blobs that can be read
	Bytes   int64 // bytes on disk, including headers and contents that are not readable any more
	Quota   int64 // bytes
	Damaged int64 // number of blobs that were found damaged since opening, and dropped
}

// OpenBlobs opens the cache in dir, creating it if needed, and evicts until it has at most quota bytes. The caller
// must call Close.
func OpenBlobs(dir string, quota int64) (*Blobs, error) {
	b := &Blobs{
		dir: dir, started: time.Now(), stop: make(chan struct{}),
		quota: quota, evictAt: quota, segments: []*segment{nil}, byName: map[string]*segment{}, big: map[object.ID]*bigFile{},
	}
	b.index.hash = func(ref uint32) uint64 { return hashSum(b.entry(ref).idBytes()) }
	if err := b.makeDirs(); err != nil && !isFull(err) { // on a full disk the directories are created later, when they are needed
		return nil, fmt.Errorf("open blob cache: %w", err)
	}
	b.unnamed = b.probeUnnamed()
	b.clearTemp()
	b.look.Lock()
	err := b.listSegments()
	if err == nil {
		err = b.listBig()
	}
	b.look.Unlock()
	if err != nil {
		b.releaseAll()
		return nil, fmt.Errorf("open blob cache: %w", err)
	}
	b.evictOver(object.ID{})
	b.wg.Go(b.keepHouse)
	return b, nil
}

// segDir returns the directory of segments and their sidecars.
func (b *Blobs) segDir() string { return filepath.Join(b.dir, "seg") }

// tmpDir returns the directory of files that are being written. It is on the same file system as the others, so that
// files can be renamed into those.
func (b *Blobs) tmpDir() string { return filepath.Join(b.dir, "tmp") }

// makeDirs creates the directories of the cache that do not exist.
func (b *Blobs) makeDirs() error {
	for _, d := range []string{b.segDir(), b.tmpDir(), filepath.Join(b.dir, "big")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return err
		}
	}
	return nil
}

// keepHouse indexes the records of other processes and updates the sidecar of the active segment, every housekeeping
// interval, until Close.
func (b *Blobs) keepHouse() {
	tick := time.NewTicker(housekeeping)
	defer tick.Stop()
	for {
		select {
		case <-b.stop:
			return
		case <-tick.C:
			b.lookAround()
			b.noteActive()
		}
	}
}

// Close closes the cache. Contents that were not released yet stay readable. Further calls do nothing.
func (b *Blobs) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	b.mu.Unlock()
	close(b.stop)
	b.wg.Wait()
	b.append.Lock()
	b.retire()
	b.append.Unlock()
	b.look.Lock()
	defer b.look.Unlock()
	b.releaseAll()
	return nil
}

// releaseAll empties the index and ends its holds on segments. Contents that were not released yet stay readable.
func (b *Blobs) releaseAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for _, s := range b.byName {
		s.release()
	}
	b.byName, b.big = map[string]*segment{}, map[object.ID]*bigFile{}
	b.index = refs{hash: b.index.hash}
}

// Get returns the contents of a blob, and false if the cache does not have them. It verifies contents that this
// process has not verified before; damaged contents are removed and count as missing. The caller must release the
// result.
func (b *Blobs) Get(id object.ID) (*Content, bool) {
	for range 2 { // the second pass runs after the records of other processes were indexed
		s, ref, e, ok := b.holdSmall(id)
		if ok {
			if c := b.openSmall(s, ref, e, id); c != nil {
				return c, true
			}
			continue
		}
		if c := b.openBig(id); c != nil {
			return c, true
		}
		if !b.lookAround() {
			break
		}
	}
	return nil, false
}

// Size returns the size of a blob in bytes, and false if the cache does not have the blob. It reads from disk only to
// find records that other processes have appended lately.
func (b *Blobs) Size(id object.ID) (int64, bool) {
	if size, ok := b.knownSize(id); ok {
		return size, true
	}
	if !b.lookAround() {
		return 0, false
	}
	return b.knownSize(id)
}

// knownSize returns the size of a blob in the index. It does not look for records of other
// processes.
func (b *Blobs) knownSize(id object.ID) (int64, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if _, e, ok := b.findLocked(id); ok {
		return int64(e.meta & metaSize), true
	}
	if f := b.big[id]; f != nil {
		return f.size, true
	}
	return 0, false
}

// Usage returns the current size of the cache. It does not access the disk.
func (b *Blobs) Usage() Usage {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return Usage{Blobs: b.index.n + len(b.big), Bytes: b.bytes, Quota: b.quota, Damaged: b.damaged.Load()}
}

// entry returns the entry that a reference of the index stands for. The caller holds mu.
func (b *Blobs) entry(ref uint32) *entry { return &b.segments[ref>>16].entries[ref&0xffff] }

// findLocked returns the reference and a copy of the entry of an id. The caller holds mu, at least for reading.
func (b *Blobs) findLocked(id object.ID) (ref uint32, e entry, ok bool) {
	at, ok := b.placeLocked(id)
	if !ok {
		return 0, e, false
	}
	ref = b.index.slots[at]
	if s := b.segments[ref>>16]; s.dropped {
		return 0, e, false
	}
	p := b.entry(ref)
	e = entry{off: p.off, meta: atomic.LoadUint32(&p.meta)}
	return ref, e, true
}

// placeLocked returns the slot of an id in the index of small contents. The caller holds mu, at least for reading.
func (b *Blobs) placeLocked(id object.ID) (at int, ok bool) {
	sum := id.Bytes()
	return b.index.find(hashSum(sum), func(ref uint32) bool { return string(b.entry(ref).idBytes()) == string(sum) })
}

// holdSmall looks up small contents in the index and holds their segment, so that its file is not closed. The caller
// must release the segment.
func (b *Blobs) holdSmall(id object.ID) (*segment, uint32, entry, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	ref, e, ok := b.findLocked(id)
	if !ok {
		return nil, 0, e, false
	}
	s := b.segments[ref>>16]
	s.hold()
	return s, ref, e, true
}

// checkBuffers recycles the buffers through which contents are read to verify them.
var checkBuffers = sync.Pool{New: func() any { return new([64 << 10]byte) }}

// openSmall returns the Content of a record whose segment the caller holds; the Content takes over that hold. If the
// contents are damaged or the segment was evicted, openSmall returns nil and releases the segment.
func (b *Blobs) openSmall(s *segment, ref uint32, e entry, id object.ID) *Content {
	f, err := s.open(b.segDir())
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			b.drop(s) // evicted by another process, or deleted
		}
		s.release()
		return nil
	}
	size := int64(e.meta & metaSize)
	if e.meta&metaVerified == 0 {
		buf := checkBuffers.Get().(*[64 << 10]byte)
		good, err := checkRecord(f, int64(e.off), id, size, buf[:])
		checkBuffers.Put(buf)
		if err != nil || !good {
			b.forget(s, ref, id)
			s.release()
			return nil
		}
		b.setMeta(s, ref, metaVerified)
	}
	touch(&s.used, &s.stamped, f)
	return &Content{file: f, segment: s, off: int64(e.off) + headerSize, size: size}
}

// setMeta sets a flag in the entry that ref stands for, unless s was dropped and another segment uses its slot.
func (b *Blobs) setMeta(s *segment, ref uint32, flag uint32) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.segments[ref>>16] == s && !s.dropped {
		atomic.OrUint32(&b.entry(ref).meta, flag)
	}
}

// forget removes damaged contents from the index, so that they can be stored again.
func (b *Blobs) forget(s *segment, ref uint32, id object.ID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.segments[ref>>16] != s || s.dropped {
		return
	}
	if at, ok := b.placeLocked(id); ok && b.index.slots[at] == ref {
		b.index.remove(at)
		atomic.OrUint32(&b.entry(ref).meta, metaGone)
		b.damaged.Add(1)
	}
}

// addLocked adds entries of one segment to the index, in the order of the file. Of two records of the same id the
// index keeps the old one if this process has verified it, otherwise the new one. The caller holds mu.
func (b *Blobs) addLocked(s *segment, entries []entry) {
	if s.dropped || b.closed {
		return
	}
	s.entries = slices.Grow(s.entries, min(len(entries), maxEntries-len(s.entries)))
	for _, e := range entries {
		if len(s.entries) == maxEntries {
			return
		}
		ref := uint32(s.slot)<<16 | uint32(len(s.entries))
		sum := e.idBytes()
		h := hashSum(sum)
		at, ok := b.index.find(h, func(ref uint32) bool { return string(b.entry(ref).idBytes()) == string(sum) })
		if ok {
			old := b.index.slots[at]
			if atomic.LoadUint32(&b.entry(old).meta)&metaVerified != 0 && !b.segments[old>>16].dropped {
				continue
			}
		}
		s.entries = append(s.entries, e)
		if ok {
			b.index.slots[at] = ref
		} else {
			b.index.add(h, ref)
		}
	}
}

// enterLocked assigns a free slot to a segment. It returns false if all slots are used. The caller holds mu.
func (b *Blobs) enterLocked(s *segment) bool {
	if n := len(b.unused); n > 0 {
		s.slot, b.unused = b.unused[n-1], b.unused[:n-1]
		b.segments[s.slot] = s
	} else if len(b.segments) < maxSegments {
		s.slot = uint16(len(b.segments))
		b.segments = append(b.segments, s)
	} else {
		return false
	}
	b.byName[s.name] = s
	return true
}

// drop removes a segment from the index. Contents that were opened before stay readable. Removing the entries of a
// full segment takes milliseconds, so drop releases mu for a moment after every 1024 entries.
func (b *Blobs) drop(s *segment) {
	b.mu.Lock()
	if s.dropped || b.closed {
		b.mu.Unlock()
		return
	}
	s.dropped = true
	b.bytes -= s.size
	delete(b.byName, s.name)
	for i := 0; i < len(s.entries); i++ {
		if i%1024 == 1023 {
			b.mu.Unlock()
			b.mu.Lock()
		}
		ref := uint32(s.slot)<<16 | uint32(i)
		if at, ok := b.index.find(hashSum(s.entries[i].idBytes()), func(r uint32) bool { return r == ref }); ok {
			b.index.remove(at)
		}
	}
	s.entries = nil
	b.segments[s.slot] = nil
	b.unused = append(b.unused, s.slot)
	b.mu.Unlock()
	s.release()
}

// isFull reports whether an error means that the disk, or the user's share of it, is full.
func isFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
