// Package cache stores data that can be fetched again: verified contents on disk, sizes of
// contents, and parsed trees and small contents in memory.
//
// # Blobs
//
// Blobs promises the following. Get returns exactly the bytes that Put has stored under an id, or nothing. The contents
// that Get has returned can be read until they are released. The number of bytes on disk stays near the quota. Any
// process may delete any file in the directory at any moment. Blobs does not promise durability: it never calls fsync,
// a crash may lose contents, and damaged contents are dropped. But Blobs never returns wrong bytes: all contents have a
// checksum, which each process verifies when it first reads them.
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
// # Shared
//
// Shared reads the directory of a Blobs, and SharedSizes the file of a Sizes, that belongs to another host: it changes
// nothing there, takes no lock, and hashes contents before it returns them.
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
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/object"
)

// ErrClosed means that the cache was closed.
var ErrClosed = errors.New("cache is closed")

// housekeeping is the interval at which an otherwise idle process checks whether other processes have evicted segments
// that it holds open. The file system frees the space only when every process has closed the file.
const housekeeping = 2 * time.Second

// Blobs stores verified contents of blobs on disk, within a quota. Its methods may be called from any goroutine. Blobs
// decides what is read, stored and evicted. Its fields (folder, catalog, appender, lookout) hold the state, each with
// its own lock where it needs one.
type Blobs struct {
	folder  folder
	catalog catalog
	look    lookout
	append  appender

	stop chan struct{}
	wg   sync.WaitGroup
}

// Usage describes the contents of a cache.
type Usage struct {
	Blobs   int   // number of blobs that can be read
	Bytes   int64 // bytes on disk, including headers and contents that are not readable any more
	Quota   int64 // maximum number of bytes on disk
	Damaged int64 // number of blobs that were found damaged since opening, and dropped
}

// init sets the fields of a Blobs for the directory dir.
func (b *Blobs) init(dir string, quota int64) {
	b.stop = make(chan struct{})
	b.catalog.init(quota)
	b.folder.dir = dir
	b.look.folder, b.look.catalog, b.look.started = &b.folder, &b.catalog, time.Now()
	b.append.folder, b.append.catalog, b.append.look = &b.folder, &b.catalog, &b.look
}

// list adds the contents in the directory to the catalog. It closes all files if it fails.
func (b *Blobs) list() error {
	b.look.Lock()
	defer b.look.Unlock()
	err := b.look.listSegments()
	if err == nil {
		err = b.look.listBig()
	}
	if err != nil {
		b.catalog.releaseAll()
	}
	return err
}

// OpenBlobs opens the cache in dir, creates the directory if it does not exist, and evicts contents until the cache has
// at most quota bytes. The caller must call Close.
func OpenBlobs(dir string, quota int64) (*Blobs, error) {
	b := &Blobs{}
	b.init(dir, quota)
	// If the disk is full, the directories are created later, when contents are stored.
	if err := b.folder.makeDirs(); err != nil && !isFull(err) {
		return nil, fmt.Errorf("open blob cache: %w", err)
	}
	b.folder.unnamed = b.folder.probeUnnamed()
	b.folder.clearTemp()
	if err := b.list(); err != nil {
		return nil, fmt.Errorf("open blob cache: %w", err)
	}
	b.evictOver(object.ID{})
	b.wg.Go(b.keepHouse)
	return b, nil
}

// keepHouse runs until Close. After each interval of the length housekeeping, it adds the records of other processes to
// the index and updates the sidecar of the active segment.
func (b *Blobs) keepHouse() {
	tick := time.NewTicker(housekeeping)
	defer tick.Stop()
	for {
		select {
		case <-b.stop:
			return
		case <-tick.C:
			b.look.lookAround()
			b.append.noteActive()
		}
	}
}

// Close closes the cache. A Content that was not released before can still be read. Further calls of Close do nothing.
func (b *Blobs) Close() error {
	b.catalog.mu.Lock()
	if b.catalog.closed {
		b.catalog.mu.Unlock()
		return nil
	}
	b.catalog.closed = true
	b.catalog.mu.Unlock()
	close(b.stop)
	b.wg.Wait()
	b.append.Lock()
	b.append.retire()
	b.append.Unlock()
	b.look.Lock()
	defer b.look.Unlock()
	b.catalog.releaseAll()
	return nil
}

// Get returns the contents of a blob, and true. If this process reads the contents for the first time, Get verifies
// them, and removes them if they are damaged. It returns false if the cache does not have valid contents. The caller
// must release the Content.
func (b *Blobs) Get(id object.ID) (*Content, bool) {
	for range 2 { // try a second time if the first attempt has removed an invalid entry or found new records
		s, ref, e, ok := b.catalog.holdSmall(id)
		if ok {
			if c := b.openSmall(s, ref, e, id); c != nil {
				return c, true
			}
			continue
		}
		if c := b.openBig(id); c != nil {
			return c, true
		}
		if !b.look.lookAround() {
			break
		}
	}
	return nil, false
}

// Size returns the size of a blob in bytes, and false if the cache does not have the blob. It accesses the disk only to
// look for contents that other processes have stored recently.
func (b *Blobs) Size(id object.ID) (int64, bool) {
	if size, ok := b.catalog.knownSize(id); ok {
		return size, true
	}
	if !b.look.lookAround() {
		return 0, false
	}
	return b.catalog.knownSize(id)
}

// Usage returns the current size of the cache. It does not access the disk.
func (b *Blobs) Usage() Usage {
	b.catalog.mu.RLock()
	defer b.catalog.mu.RUnlock()
	c := &b.catalog
	return Usage{Blobs: c.index.n + len(c.big), Bytes: c.bytes, Quota: c.quota, Damaged: c.damaged.Load()}
}

// touch records that a file is in use now, except in the directory of another host, which is only read.
func (b *Blobs) touch(used, stamped *atomic.Int64, f *os.File) {
	if !b.folder.foreign {
		touch(used, stamped, f)
	}
}

// checkBuffers recycles the buffers through which contents are read to verify them.
var checkBuffers = sync.Pool{New: func() any { return new([64 << 10]byte) }}

// openSmall returns the Content of a record. The caller holds the segment of the record and passes this hold to the
// Content. If the contents are damaged or the segment was evicted, openSmall returns nil and releases the segment.
func (b *Blobs) openSmall(s *segment, ref uint32, e entry, id object.ID) *Content {
	f, err := s.open(b.folder.segDir())
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			b.catalog.drop(s) // another process has evicted or deleted the segment
		}
		s.release()
		return nil
	}
	size := int64(e.meta & metaSize)
	if e.meta&metaVerified == 0 {
		buf := checkBuffers.Get().(*[64 << 10]byte)
		good, err := checkRecord(f, int64(e.off), id, size, buf[:])
		if err == nil && good && b.folder.foreign {
			good, err = hasHash(f, int64(e.off)+headerSize, id, size, buf[:])
		}
		checkBuffers.Put(buf)
		if err != nil || !good {
			b.catalog.forget(s, ref, id)
			s.release()
			return nil
		}
		b.catalog.setMeta(s, ref, metaVerified)
	}
	b.touch(&s.used, &s.stamped, f)
	return &Content{file: f, segment: s, off: int64(e.off) + headerSize, size: size}
}

// isFull reports whether an error means that the disk, or the user's share of it, is full.
func isFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
