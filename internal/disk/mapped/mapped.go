// Package mapped provides files that are mapped into memory and never shrink.
//
// A store into the memory changes the file at once and survives the death of the process; Sync makes it survive a
// power cut. The file is mapped in chunks of equal size. Mapped chunks do not move when the file grows, so pointers
// into a chunk stay valid until Close.
//
// Grow, Load and Close must not be called concurrently with each other. At and Len may be called at any time.
package mapped

import (
	"errors"
	"io/fs"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/disk"
)

// File is a mapped file.
type File struct {
	file  disk.File
	bits  uint  // a chunk has 1<<bits bytes
	taken int64 // number of leading bytes whose disk space is known to be reserved
	// the mapped chunks; the slice is replaced as a whole when the file grows, so that readers need no lock
	chunks atomic.Pointer[[][]byte]
}

// Open opens the file at path, and creates it if it does not exist. A chunk has 1<<bits bytes, at least the size of a
// page. Nothing is mapped until Load or Grow is called.
func Open(on disk.FS, path string, bits uint) (*File, error) {
	f, err := on.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	m := &File{file: f, bits: bits}
	m.chunks.Store(&[][]byte{})
	return m, nil
}

// Create removes the file at path, if there is one, and creates an empty file. A process that has mapped the old file
// keeps its mapping.
func Create(on disk.FS, path string, bits uint) (*File, error) {
	if err := on.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return Open(on, path, bits)
}

// Name returns the path that the file was opened with.
func (m *File) Name() string { return m.file.Name() }

// Load maps the contents of the file. If grown is true, Grow has grown the file since the host was last started. The
// disk space of the complete chunks is then known to be reserved, so Load succeeds on a full disk.
func (m *File) Load(grown bool) error {
	st, err := m.file.Stat()
	if err != nil {
		return err
	}
	if grown {
		m.taken = st.Size() >> m.bits << m.bits
	}
	return m.Grow(st.Size())
}

// Len returns the number of mapped bytes, which is a multiple of the chunk size.
func (m *File) Len() int64 { return int64(len(*m.chunks.Load())) << m.bits }

// At returns the n mapped bytes that begin at the offset off of the file. It panics unless they all lie in one mapped
// chunk.
func (m *File) At(off, n uint64) []byte {
	in := off & (1<<(m.bits&63) - 1)
	return (*m.chunks.Load())[off>>(m.bits&63)][in : in+n : in+n]
}

// Grow maps at least the first size bytes of the file. It reserves their disk space, so that a full disk causes an
// error here and not a SIGBUS at a later store. After an error, the chunks that Grow has mapped stay mapped.
func (m *File) Grow(size int64) error {
	have := *m.chunks.Load()
	chunks := have[:len(have):len(have)]
	defer func() { m.chunks.Store(&chunks) }()
	chunkSize := int64(1) << m.bits
	for int64(len(chunks))*chunkSize < size {
		off := int64(len(chunks)) * chunkSize
		if off+chunkSize > m.taken {
			if err := m.file.Allocate(0, off, chunkSize); err != nil {
				return err
			}
		}
		// MapPopulate is not set, because it would make pages dirty that are only read
		chunk, err := m.file.Map(off, int(chunkSize), 0)
		if err != nil {
			return err
		}
		chunks = append(chunks, chunk)
	}
	return nil
}

// Sync writes all changes that were made through the mapping to disk, so that they survive a power cut. It calls
// fdatasync(2), which also writes pages that were changed through a shared mapping. Errors have the effect that
// disk.File.DataSync describes.
func (m *File) Sync() error { return m.file.DataSync() }

// Rewrite writes the first size bytes to the file again, so that the next Sync writes them to disk even if an earlier
// Sync has failed. The bytes must not change during the call.
func (m *File) Rewrite(size uint64) error {
	step := uint64(1) << m.bits
	for off := uint64(0); off < size; off += step {
		if _, err := m.file.WriteAt(m.At(off, min(step, size-off)), int64(off)); err != nil {
			return err
		}
	}
	return nil
}

// Close unmaps and closes the file.
func (m *File) Close() error {
	chunks := *m.chunks.Load()
	m.chunks.Store(&[][]byte{})
	return errors.Join(unmap(chunks), m.file.Close())
}

// unmap unmaps all chunks and returns the joined errors.
func unmap(chunks [][]byte) error {
	var errs []error
	for _, chunk := range chunks {
		errs = append(errs, unix.Munmap(chunk))
	}
	return errors.Join(errs...)
}
