package worktree

import (
	"errors"
	"io/fs"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/disk"
)

const (
	chunkBits      = 20 // by how much the table's regions grow, as a power of two
	smallChunkBits = 16 // by how much others do
	chunkSize      = 1 << chunkBits
)

// region is a file that only grows, mapped into memory chunk by chunk, so that nothing moves when it does. What
// is written into the mapping belongs to the file at once and survives the death of the process.
type region struct {
	file   disk.File
	bits   uint                     // a chunk has 1<<bits bytes
	taken  int64                    // bytes of the file whose disk space is known to be taken
	chunks atomic.Pointer[[][]byte] // replaced whole when it grows, so that readers need no lock
}

// openRegion opens a region of which nothing is mapped yet.
func openRegion(on disk.FS, path string, bits uint) (*region, error) {
	f, err := on.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	r := &region{file: f, bits: bits}
	r.chunks.Store(&[][]byte{})
	return r, nil
}

// newRegion makes an empty region in place of what there was: who still has that mapped keeps it.
func newRegion(on disk.FS, path string, bits uint) (*region, error) {
	if err := on.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return openRegion(on, path, bits)
}

// load maps what the file has. Of one that was grown in this run of the host's kernel it is known that whole chunks of it
// have their disk space.
func (r *region) load(ours bool) error {
	st, err := r.file.Stat()
	if err != nil {
		return err
	}
	if ours {
		r.taken = st.Size() >> r.bits << r.bits
	}
	return r.grow(st.Size())
}

// len is how many bytes are mapped.
func (r *region) len() int64 { return int64(len(*r.chunks.Load())) << r.bits }

// at gives n bytes at an offset; they lie in one chunk, or the caller has a bug.
func (r *region) at(off, n uint64) []byte {
	in := off & (1<<(r.bits&63) - 1)
	return (*r.chunks.Load())[off>>(r.bits&63)][in : in+n : in+n]
}

// grow maps at least size bytes. The disk space is taken here, because a full disk must be an error now and not
// a SIGBUS when the page is written.
func (r *region) grow(size int64) error {
	have := *r.chunks.Load()
	chunks := have[:len(have):len(have)]
	defer func() { r.chunks.Store(&chunks) }()
	chunkSize := int64(1) << r.bits
	for int64(len(chunks))*chunkSize < size {
		off := int64(len(chunks)) * chunkSize
		if off+chunkSize > r.taken {
			if err := r.file.Allocate(0, off, chunkSize); err != nil {
				return err
			}
		}
		chunk, err := r.file.Map(off, int(chunkSize), 0) // not populated: a page that is only read stays clean
		if err != nil {
			return err
		}
		chunks = append(chunks, chunk)
	}
	return nil
}

func (r *region) close() error {
	err := unmap(*r.chunks.Load())
	r.chunks.Store(&[][]byte{})
	return errors.Join(err, r.file.Close())
}

func unmap(chunks [][]byte) error {
	var errs []error
	for _, chunk := range chunks {
		errs = append(errs, unix.Munmap(chunk))
	}
	return errors.Join(errs...)
}

// sync brings what was written into the mapping to the disk. The kernel counts a page that was written through a
// shared mapping as dirty, so fdatasync(2) finds it; msync(2) would do that once for each chunk.
func (r *region) sync() error { return r.file.DataSync() }
