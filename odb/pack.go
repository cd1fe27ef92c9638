package odb

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/artifactfs/artifactfs/object"
)

// source is a pack that objects are read from: one that is complete, or one that still streams in.
type source interface {
	io.ReaderAt
	// open must be called before the other methods. It returns fs.ErrNotExist if the pack was
	// removed.
	open() error
	// find returns the offset of id's entry.
	find(id object.ID) (off int64, ok bool)
	// end is the offset behind the last entry.
	end() int64
	// serial returns a number that identifies the source in the cache of bases; a finished pack
	// keeps the number from the time when it was received.
	serial() uint64
	close()
}

// pack is a finished pack. Its index is mapped; the pack is read with pread, so that a failing disk
// returns an error here instead of raising a signal.
type pack struct {
	path   string // without .pack or .idx
	format object.Format
	number uint64

	files atomic.Pointer[packFiles]
	mu    sync.Mutex // held while the files are opened, never by readers of an open pack
}

// packFiles are the open files of a pack. They are replaced and closed as a whole.
type packFiles struct {
	idx  *Index
	pack *os.File
	end  int64
}

var _ source = (*pack)(nil)

// open maps the index and opens the pack, unless they are open. It may be called at any time.
func (p *pack) open() error {
	if p.files.Load() != nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// Another goroutine may have opened it while this one waited for the lock.
	if p.files.Load() != nil {
		return nil
	}
	f, err := openPack(p.path, p.format)
	if err != nil {
		return fmt.Errorf("open pack %s: %w", p.path, err)
	}
	p.files.Store(f)
	return nil
}

// openPack opens the files of the pack at path, without suffix, and checks that they belong together.
func openPack(path string, f object.Format) (_ *packFiles, err error) {
	data, err := mapFile(path + ".idx")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			syscall.Munmap(data)
		}
	}()
	idx, err := ParseIndex(data, f)
	if err != nil {
		return nil, err
	}
	file, err := os.Open(path + ".pack")
	if err != nil {
		return nil, err
	}
	end, err := checkPack(file, idx)
	if err != nil {
		file.Close()
		return nil, err
	}
	return &packFiles{idx, file, end}, nil
}

// checkPack checks that idx describes this pack by comparing header, count and trailer. It does not read the entries.
// end is the offset of the trailer.
func checkPack(f *os.File, idx *Index) (end int64, err error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if end = st.Size() - int64(idx.idLen); end < packHeaderSize {
		return 0, corrupt("pack of %d bytes", st.Size())
	}
	var head [packHeaderSize]byte
	sum := make([]byte, idx.idLen)
	if _, err := f.ReadAt(head[:], 0); err != nil {
		return 0, err
	}
	if _, err := f.ReadAt(sum, end); err != nil {
		return 0, err
	}
	n, err := parsePackHeader(head[:])
	if err != nil {
		return 0, err
	}
	if int(n) != idx.n || string(sum) != string(idx.packSum()) {
		return 0, corrupt("index is of another pack")
	}
	return end, nil
}

// mapFile maps a file for reading. The mapping stays valid after the file was removed.
func mapFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if st.Size() == 0 {
		return nil, corrupt("index is empty")
	}
	// The index is mapped and not read, because a large one has tens of megabytes of which a read touches a few
	// pages.
	data, err := syscall.Mmap(int(f.Fd()), 0, int(st.Size()), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	return data, nil
}

// find returns the offset of id's entry. It and the methods below may be called only after open: the files are then
// set until close.
func (p *pack) find(id object.ID) (int64, bool)         { return p.files.Load().idx.find(id) }
func (p *pack) ReadAt(b []byte, off int64) (int, error) { return p.files.Load().pack.ReadAt(b, off) }
func (p *pack) end() int64                              { return p.files.Load().end }
func (p *pack) serial() uint64                          { return p.number }

// close unmaps the index and closes the pack. No reader may use the pack any more; Store.release ensures that.
func (p *pack) close() {
	if f := p.files.Swap(nil); f != nil {
		syscall.Munmap(f.idx.data)
		f.pack.Close()
	}
}

// packReader reads a source from some offset on, for headers and zlib.
type packReader struct {
	src source
	off int64 // offset of buf[end] in the pack
	buf []byte
	pos int
	end int
	hit error // the error that the consumer saw
}

// seek sets the offset of the next byte. A target that is still in buf costs no read.
func (r *packReader) seek(src source, off int64) {
	r.hit = nil
	if at := r.off - int64(r.end); r.src == src && off >= at && off <= r.off {
		r.pos = int(off - at)
		return
	}
	r.src, r.off, r.pos, r.end = src, off, 0, 0
}

// offset returns the offset of the next byte in the pack.
func (r *packReader) offset() int64 { return r.off - int64(r.end-r.pos) }

// fill reads the next piece into buf. It returns io.EOF at the trailer.
func (r *packReader) fill() error {
	want := min(int64(len(r.buf)), r.src.end()-r.off)
	if want <= 0 || r.off < packHeaderSize {
		r.hit = io.EOF
		return r.hit
	}
	n, err := r.src.ReadAt(r.buf[:want], r.off)
	r.pos, r.end = 0, n
	r.off += int64(n)
	if n > 0 {
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	if !errors.Is(err, io.EOF) {
		err = elsewhere{err}
	}
	r.hit = err
	return err
}

// ReadByte returns the next byte. It makes packReader an io.ByteReader, so that zlib reads no byte beyond the end of
// an entry.
func (r *packReader) ReadByte() (byte, error) {
	if r.pos == r.end {
		if err := r.fill(); err != nil {
			return 0, err
		}
	}
	c := r.buf[r.pos]
	r.pos++
	return c, nil
}

// Read returns up to len(p) bytes that are already buffered, and reads more only if none are.
func (r *packReader) Read(p []byte) (int, error) {
	if r.pos == r.end {
		if err := r.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.buf[r.pos:r.end])
	r.pos += n
	return n, nil
}
