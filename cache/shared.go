package cache

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
)

// Shared reads the contents that a Blobs of another host stores in a directory, which may be mounted read-only. The
// other host may add, evict and delete files at the same time. Shared changes no file, not even the time of last use,
// and takes no lock, so the other host evicts contents as if Shared did not exist; contents that were opened before can
// still be read. The methods may be called from any goroutine.
type Shared struct{ b Blobs }

// OpenShared opens the directory dir, which need not exist yet. The caller must call Close.
func OpenShared(dir string) (*Shared, error) {
	s := &Shared{}
	b := &s.b
	b.init(dir, math.MaxInt64)
	b.folder.foreign = true
	if err := b.list(); err != nil {
		return nil, fmt.Errorf("open shared blob cache: %w", err)
	}
	// An idle process must also close the files that the other host has evicted, because their disk space becomes free
	// only when all processes have closed them.
	b.wg.Go(b.keepHouse)
	return s, nil
}

// Get returns the contents of a blob, and true. The first Get of a blob in this process hashes the contents. It returns
// false if the directory does not have contents whose hash is id. The caller must release the Content.
func (s *Shared) Get(id object.ID) (*Content, bool) { return s.b.Get(id) }

// Size returns the size of a blob in bytes, and false if the directory does not have the blob. It does not read the
// contents, so a later Get may find that they are damaged.
func (s *Shared) Size(id object.ID) (int64, bool) { return s.b.Size(id) }

// Close ends the use of the directory. A Content that was not released yet can still be read.
func (s *Shared) Close() error { return s.b.Close() }

// hasHash reports whether the size bytes of r at the offset off are the contents of the blob id. The parameter buf is a
// buffer for the reading.
func hasHash(r io.ReaderAt, off int64, id object.ID, size int64, buf []byte) (bool, error) {
	if id.IsZero() {
		return false, nil
	}
	h := object.NewHasher(id.Format(), object.Blob, size)
	// The struct hides the method WriteTo of the reader, so that CopyBuffer uses buf.
	if _, err := io.CopyBuffer(h, struct{ io.Reader }{io.NewSectionReader(r, off, size)}, buf); err != nil {
		return false, fmt.Errorf("hash cached contents: %w", err)
	}
	sum, err := h.Sum()
	if err != nil {
		return false, fmt.Errorf("hash cached contents: %w", err)
	}
	return sum == id, nil
}

// SharedSizes reads the table of sizes of another host, to which that host may append at the same time. It changes
// nothing and takes no lock.
type SharedSizes struct{ s Sizes }

// OpenSharedSizes opens the table in the file path, for ids in the format f. The caller must call Close.
func OpenSharedSizes(path string, f object.Format) (*SharedSizes, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open shared table of sizes: %w", err)
	}
	s := &SharedSizes{s: Sizes{format: f, started: time.Now()}}
	s.s.init(file)
	var head [sizesHead]byte
	if _, err = file.ReadAt(head[:], 0); err == nil && string(head[:]) != string(sizesHeader(f)) {
		err = errors.New("file is not a table of sizes")
	}
	if err == nil {
		err = s.s.readNew()
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("open shared table of sizes: %w", err)
	}
	return s, nil
}

// Get returns the size of a blob in bytes, and false if it is not in the table.
func (s *SharedSizes) Get(id object.ID) (int64, bool) { return s.s.Get(id) }

// Close closes the table.
func (s *SharedSizes) Close() error {
	s.s.io.Lock()
	defer s.s.io.Unlock()
	if err := s.s.io.file.Close(); err != nil {
		return fmt.Errorf("close shared table of sizes: %w", err)
	}
	return nil
}
