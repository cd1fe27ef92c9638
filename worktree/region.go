package worktree

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// chunkSize is by how much a region grows, in bytes.
const chunkSize = 1 << 20

// region is a file that only grows, mapped into memory chunk by chunk, so that nothing moves when it does. What
// is written into the mapping belongs to the file at once and survives the death of the process.
type region struct {
	file   *os.File
	chunks atomic.Pointer[[][]byte] // replaced whole when it grows, so that readers need no lock
}

func openRegion(path string) (*region, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	r := &region{file: f}
	r.chunks.Store(&[][]byte{})
	st, err := f.Stat()
	if err == nil {
		err = r.grow(st.Size())
	}
	if err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

// len is how many bytes are mapped.
func (r *region) len() int64 { return int64(len(*r.chunks.Load())) * chunkSize }

// at gives n bytes at an offset; they lie in one chunk, or the caller has a bug.
func (r *region) at(off, n uint64) []byte {
	in := off % chunkSize
	return (*r.chunks.Load())[off/chunkSize][in : in+n : in+n]
}

// grow maps at least size bytes. The disk space is taken here, because a full disk must be an error now and not
// a SIGBUS when the page is written.
func (r *region) grow(size int64) error {
	have := *r.chunks.Load()
	chunks := have[:len(have):len(have)]
	defer func() { r.chunks.Store(&chunks) }()
	for int64(len(chunks))*chunkSize < size {
		off := int64(len(chunks)) * chunkSize
		if err := allocate(r.file, off, chunkSize); err != nil {
			return err
		}
		chunk, err := unix.Mmap(int(r.file.Fd()), off, chunkSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
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
	var errs []error
	for _, chunk := range *r.chunks.Load() {
		errs = append(errs, unix.Munmap(chunk))
	}
	r.chunks.Store(&[][]byte{})
	return errors.Join(append(errs, r.file.Close())...)
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
