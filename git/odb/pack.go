package odb

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// source is a pack from which objects are read: either a finished pack or a pack that is being received.
type source interface {
	io.ReaderAt
	// open must be called before the other methods. It returns fs.ErrNotExist if the pack was removed.
	open() error
	// find returns the offset of the entry of the object id. It returns false if the pack does not contain the object.
	find(id object.ID) (off int64, ok bool)
	// end returns the offset of the end of the last entry.
	end() int64
	// serial returns the number that identifies the source in the cache of bases. A finished pack that was received by
	// Ingest keeps the number that it had while it was received.
	serial() uint64
	// close closes the files of the source. No reader may be using the source.
	close()
}

// pack is a finished pack. Its index is mapped into memory. The pack itself is read with pread(2), because a read error
// of the disk then causes an error and not a signal.
type pack struct {
	path    string // path of the pack without .pack or .idx
	format  object.Format
	number  uint64 // serial number of the pack; see source.serial
	foreign bool   // whether other programs can change the files: see OpenForeign

	files atomic.Pointer[packFiles] // the open files; nil before the first call of open
	mu    sync.Mutex                // held while the files are opened; readers of an open pack do not acquire it
}

// packFiles holds the open files of a pack. They are opened and closed together.
type packFiles struct {
	idx  *Index
	pack *os.File
	end  int64 // offset of the trailer in pack
}

var _ source = (*pack)(nil)

// open maps the index and opens the pack, unless they are already open. It may be called at any time.
func (p *pack) open() error {
	if p.files.Load() != nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// Another goroutine may have opened the files while this one waited for the lock.
	if p.files.Load() != nil {
		return nil
	}
	f, err := openPack(p.path, p.format, p.foreign)
	if err != nil {
		return fmt.Errorf("open pack %s: %w", p.path, err)
	}
	p.files.Store(f)
	return nil
}

// openPack opens the files of the pack at path, which has no suffix, and checks that they belong together.
func openPack(path string, f object.Format, foreign bool) (_ *packFiles, err error) {
	// An index may have tens of megabytes, and one lookup reads only a few pages. If it becomes shorter, a mapping of the
	// file is not safe.
	get := disk.MapRegular
	if foreign {
		get = func(name string) ([]byte, error) { return disk.CopyRegular(name, maxForeign) }
	}
	data, err := get(path + ".idx")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			unix.Munmap(data)
		}
	}()
	idx, err := ParseIndex(data, f)
	if err != nil {
		return nil, err
	}
	file, err := disk.OpenRegular(path+".pack", 0)
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

// checkPack checks that idx describes the pack f, by comparing the number of entries and the trailer. It does not read
// the entries. It returns the offset of the trailer.
func checkPack(f *os.File, idx *Index) (end int64, err error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if end = st.Size() - int64(idx.idLen); end < packHeaderSize {
		return 0, corrupt("pack is too small: %d bytes", st.Size())
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
		return 0, corrupt("index belongs to another pack")
	}
	return end, nil
}

// maxForeign is the maximum size in bytes of the index of a pack that this program has not made. Such an index is
// copied into memory. The size is that of an index of about two million objects.
const maxForeign = 64 << 20

// find returns the offset of the entry of the object id, or false if the pack does not contain the object. The methods
// find, ReadAt and end may be called only after open and before close.
func (p *pack) find(id object.ID) (int64, bool) { return p.files.Load().idx.find(id) }

// ReadAt reads bytes of the pack file.
func (p *pack) ReadAt(b []byte, off int64) (int, error) { return p.files.Load().pack.ReadAt(b, off) }

// end returns the offset of the trailer, which follows the last entry.
func (p *pack) end() int64 { return p.files.Load().end }

// serial returns the number that identifies the pack in the cache of bases.
func (p *pack) serial() uint64 { return p.number }

// close unmaps the index and closes the pack. The caller ensures that no reader uses the pack; Store.release calls
// close only then.
func (p *pack) close() {
	if f := p.files.Swap(nil); f != nil {
		unix.Munmap(f.idx.data)
		f.pack.Close()
	}
}

// packReader reads a source, beginning at any offset. It is used to read entry headers and zlib data.
type packReader struct {
	src source
	off int64 // offset of buf[end] in the pack
	buf []byte
	pos int // buf[pos:end] was read but not returned yet
	end int
	hit error // the error that fill has returned
}

// seek sets the offset of the next byte to off. It keeps the contents of buf if the byte at off is among them.
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

// fill reads the next bytes into buf. It returns io.EOF at the end of the entries.
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

// ReadByte returns the next byte. Because packReader is an io.ByteReader, zlib reads no byte beyond the end of an
// entry.
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

// Read returns up to len(p) bytes that are buffered. It reads from the source only if no bytes are buffered.
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
