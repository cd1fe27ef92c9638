package worktree

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	chunkSize      = 1 << 20  // by how much the table's regions grow, in bytes
	smallChunkSize = 64 << 10 // by how much others do
)

// region is a file that only grows, mapped into memory chunk by chunk, so that nothing moves when it does. What
// is written into the mapping belongs to the file at once and survives the death of the process.
type region struct {
	file   *os.File
	chunk  int64                    // bytes
	taken  int64                    // bytes of the file whose disk space is known to be taken
	chunks atomic.Pointer[[][]byte] // replaced whole when it grows, so that readers need no lock
}

// openRegion opens a region of which nothing is mapped yet.
func openRegion(path string, chunk int64) (*region, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	r := &region{file: f, chunk: chunk}
	r.chunks.Store(&[][]byte{})
	return r, nil
}

// newRegion makes an empty region in place of what there was: who still has that mapped keeps it.
func newRegion(path string, chunk int64) (*region, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return openRegion(path, chunk)
}

// load maps what the file has. Of one that was grown in this run of the host's kernel it is known that whole chunks of it
// have their disk space.
func (r *region) load(ours bool) error {
	st, err := r.file.Stat()
	if err != nil {
		return err
	}
	if ours {
		r.taken = st.Size() / r.chunk * r.chunk
	}
	return r.grow(st.Size())
}

// len is how many bytes are mapped.
func (r *region) len() int64 { return int64(len(*r.chunks.Load())) * r.chunk }

// at gives n bytes at an offset; they lie in one chunk, or the caller has a bug.
func (r *region) at(off, n uint64) []byte {
	in := off % uint64(r.chunk)
	return (*r.chunks.Load())[off/uint64(r.chunk)][in : in+n : in+n]
}

// grow maps at least size bytes. The disk space is taken here, because a full disk must be an error now and not
// a SIGBUS when the page is written.
func (r *region) grow(size int64) error {
	have := *r.chunks.Load()
	chunks := have[:len(have):len(have)]
	defer func() { r.chunks.Store(&chunks) }()
	for int64(len(chunks))*r.chunk < size {
		off := int64(len(chunks)) * r.chunk
		if off+r.chunk > r.taken {
			if err := allocate(r.file, off, r.chunk); err != nil {
				return err
			}
		}
		chunk, err := unix.Mmap(int(r.file.Fd()), off, int(r.chunk), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return fmt.Errorf("map %s: %w", r.file.Name(), err)
		}
		chunks = append(chunks, chunk)
	}
	return nil
}

func allocate(f *os.File, off, n int64) error {
	err := unix.Fallocate(int(f.Fd()), 0, off, n)
	for errors.Is(err, unix.EINTR) {
		err = unix.Fallocate(int(f.Fd()), 0, off, n)
	}
	if errors.Is(err, unix.EOPNOTSUPP) { // NFS and some others: write zeros behind what is there
		var st os.FileInfo
		if st, err = f.Stat(); err == nil {
			at := max(off, st.Size())
			_, err = f.WriteAt(make([]byte, max(0, off+n-at)), at)
		}
	}
	if err != nil {
		return fmt.Errorf("grow %s: %w", f.Name(), err)
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
func (r *region) sync() error {
	err := unix.Fdatasync(int(r.file.Fd()))
	for errors.Is(err, unix.EINTR) {
		err = unix.Fdatasync(int(r.file.Fd()))
	}
	return err
}
