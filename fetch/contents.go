package fetch

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
)

// Content is the verified contents of one blob. It stays readable until Release, even if the cache
// evicts the blob.
type Content interface {
	io.ReaderAt
	// Size returns the length of the contents in bytes.
	Size() int64
	// Release allows the cache to remove the file below. ReadAt must not be called after it.
	Release()
}

// memoryContent is small contents in memory.
type memoryContent []byte

// ReadAt copies from off. Like every io.ReaderAt, it returns io.EOF for a read beyond the end.
func (c memoryContent) ReadAt(p []byte, off int64) (int, error) {
	if off >= int64(len(c)) {
		return 0, io.EOF
	}
	n := copy(p, c[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (c memoryContent) Size() int64 { return int64(len(c)) }

// Release does nothing: the garbage collector owns the memory.
func (c memoryContent) Release() {}

// content returns a blob's contents from the cache.
func (s *Store) content(id object.ID) (Content, bool) {
	if c, ok := s.blobs.Get(id); ok {
		return c, true
	}
	if data, ok := s.memory.Content(id); ok {
		return memoryContent(data), true
	}
	return nil, false
}

// cached reports whether contents can be read at once. It looks into memory only.
func (s *Store) cached(id object.ID) bool {
	if _, ok := s.blobs.Size(id); ok {
		return true
	}
	_, ok := s.memory.Content(id)
	return ok
}

// contentSize returns the size, in bytes, of a blob on this host.
func (s *Store) contentSize(id object.ID) (int64, bool) {
	if n, ok := s.blobs.Size(id); ok {
		return n, true
	}
	if t, n, err := s.objects.Size(id); err == nil && t == object.Blob {
		return n, true
	}
	return 0, false
}

// knownSize returns the size, in bytes, of a blob that may be missing: from the table of sizes,
// else from its contents.
func (s *Store) knownSize(id object.ID) (int64, bool) {
	if n, ok := s.sizes.Get(id); ok {
		return n, true
	}
	return s.contentSize(id)
}

// materialize copies a blob from a local pack into the cache, where it can be read at any offset.
// It returns false if no pack has it.
func (s *Store) materialize(id object.ID) (bool, error) {
	from, t, size, err := s.find(id)
	if errors.Is(err, odb.ErrNotFound) {
		return false, nil
	}
	if err != nil || t != object.Blob {
		return false, fmt.Errorf("read blob %s from local pack: it is a %s: %w", id, t, err)
	}
	// Small contents are unpacked in memory and written at once. Large ones are streamed, so that
	// memory stays bounded.
	if size <= spoolOver {
		_, data, err := from.Get(id, spoolOver)
		if err == nil {
			err = s.keep(odb.Object{ID: id, Type: t, Size: size, Data: data})
		}
		return true, err
	}
	f, err := s.blobs.Spool(size)
	if err != nil {
		return true, err
	}
	if err := copyVerified(from, id, size, f); err != nil {
		f.Close()
		os.Remove(f.Name())
		return true, fmt.Errorf("read blob %s from local pack: %w", id, err)
	}
	return true, s.blobs.PutFile(id, f, size)
}

// copyVerified copies a blob into f and compares the hash: a pack may have been damaged since it
// was indexed.
func copyVerified(from odb.Source, id object.ID, size int64, f *os.File) error {
	h := object.NewHasher(id.Format(), object.Blob, size)
	if err := from.WriteTo(id, io.MultiWriter(f, h)); err != nil {
		return err
	}
	sum, err := h.Sum()
	if err == nil && sum != id {
		err = fmt.Errorf("content hashes to %s", sum)
	}
	return err
}

var _ Content = memoryContent(nil)
