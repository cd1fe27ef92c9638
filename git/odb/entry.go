package odb

import (
	"encoding/binary"
	"errors"
	"io"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/zlib"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/varint"
)

// Constants of the pack format that gitformat-pack(5) defines in addition to the object types.
const (
	packHeaderSize = 12
	ofsDelta       = 6
	refDelta       = 7
)

// entry is the header of one object in a pack: gitformat-pack(5), "pack-*.pack files have the following format".
type entry struct {
	off     int64     // offset of the header in the pack
	kind    uint8     // object.Type, ofsDelta or refDelta
	size    int64     // size of the inflated data in bytes, as the header states it
	baseOff int64     // offset of the base, if the entry is an ofsDelta
	baseID  object.ID // id of the base, if the entry is a refDelta
}

// isDelta reports whether the data of the entry is a delta.
func (e *entry) isDelta() bool { return e.kind >= ofsDelta }

// parsePackHeader parses the 12 bytes with which every pack starts. It returns the number of entries that these bytes
// state.
func parsePackHeader(b []byte) (uint32, error) {
	if len(b) < packHeaderSize || string(b[:4]) != "PACK" {
		return 0, corrupt("file is not a pack: it starts with %.8q", b)
	}
	if v := binary.BigEndian.Uint32(b[4:]); v != 2 && v != 3 {
		return 0, corrupt("pack version %d, want 2 or 3", v)
	}
	return binary.BigEndian.Uint32(b[8:]), nil
}

// readEntry reads the header of the entry at the offset off. When readEntry returns, the next byte of r is the first
// byte of the entry's zlib data.
func readEntry(r io.ByteReader, f object.Format, off int64) (entry, error) {
	e := entry{off: off}
	c, err := r.ReadByte()
	if err != nil {
		return e, err
	}
	// The first byte holds 3 bits of the type and the lowest 4 bits of the size. Each further byte holds 7 bits of the
	// size.
	e.kind = c >> 4 & 7
	e.size = int64(c & 15)
	for shift := 4; c&0x80 != 0; shift += 7 {
		if c, err = r.ReadByte(); err != nil {
			return e, err
		}
		if shift > 60 || shift == 60 && c&0x7f > 7 { // the size must fit into 63 bits
			return e, corrupt("size in the entry header has more than 63 bits")
		}
		e.size |= int64(c&0x7f) << shift
	}
	switch e.kind {
	case uint8(object.Commit), uint8(object.Tree), uint8(object.Blob), uint8(object.Tag):
	case ofsDelta:
		back, err := readBack(r)
		if err != nil {
			return e, err
		}
		// A base lies between the pack header and its delta, so OFS deltas cannot form a cycle.
		if back <= 0 || back > off-packHeaderSize {
			return e, corrupt("delta base is %d bytes before offset %d, outside the pack", back, off)
		}
		e.baseOff = off - back
	case refDelta:
		var sum [32]byte
		for i := range f.Size() {
			if sum[i], err = r.ReadByte(); err != nil {
				return e, err
			}
		}
		e.baseID, _ = object.FromBytes(sum[:f.Size()])
	default:
		return e, corrupt("unknown entry type %d", e.kind)
	}
	return e, nil
}

// readBack reads the distance in bytes from an OFS delta back to its base.
func readBack(r io.ByteReader) (int64, error) {
	n, err := varint.Read(r)
	if err == varint.ErrOverflow {
		err = corrupt("read delta base offset: %v", err)
	}
	return int64(n), err
}

// inflater inflates the zlib data of one entry after the other. It reuses its tables and its window.
type inflater struct{ zr io.ReadCloser }

// start prepares to inflate the data that begins at the next byte of r. The inflater reads no byte beyond the end of
// the zlib data.
func (z *inflater) start(r flate.Reader) error {
	// Reset reuses the window and the tables for the next entry.
	if z.zr != nil {
		return z.zr.(zlib.Resetter).Reset(r, nil)
	}
	zr, err := zlib.NewReader(r)
	if err != nil {
		return err
	}
	z.zr = zr
	return nil
}

// Read returns inflated data.
func (z *inflater) Read(p []byte) (int, error) { return z.zr.Read(p) }

// finish checks that the zlib data ends at the current position, and verifies its Adler-32 checksum.
func (z *inflater) finish() error {
	var one [1]byte
	switch n, err := z.zr.Read(one[:]); {
	case n != 0:
		return corrupt("more data than the header states")
	case err != io.EOF:
		if err == nil {
			err = io.ErrNoProgress
		}
		return err
	}
	return nil
}

// whole inflates exactly size bytes and checks that the zlib data ends there. It stores them in scratch if scratch is
// large enough. It never allocates more than four times the number of bytes that have arrived, or firstAlloc if that is
// more.
func (z *inflater) whole(scratch []byte, size int64) ([]byte, error) {
	buf := scratch[:min(size, int64(cap(scratch)))]
	if len(buf) == 0 {
		buf = make([]byte, min(size, firstAlloc))
	}
	for got := 0; ; {
		n, err := io.ReadFull(z.zr, buf[got:])
		if err != nil {
			return nil, short(err)
		}
		if got += n; int64(got) == size {
			return buf, z.finish()
		}
		// The buffer grows only after it was filled, fourfold, because a header of a few bytes can state a size of
		// gigabytes.
		next := make([]byte, min(size, 4*int64(got)))
		copy(next, buf)
		buf = next
	}
}

// stream inflates exactly size bytes into w, in pieces of the size of buf, and checks that the zlib data ends there.
func (z *inflater) stream(w io.Writer, size int64, buf []byte) error {
	for size > 0 {
		n, err := io.ReadFull(z.zr, buf[:min(size, int64(len(buf)))])
		if err != nil {
			return short(err)
		}
		if _, err := w.Write(buf[:n]); err != nil {
			return elsewhere{err}
		}
		size -= int64(n)
	}
	return z.finish()
}

// short returns the error for zlib data that ends before the size in the entry's header is reached.
func short(err error) error {
	if err == io.EOF {
		return corrupt("less data than the header states")
	}
	return err
}

// elsewhere marks the error of a write, or of a read from a file other than the current pack. Such an error does not
// mean that the pack is corrupt.
type elsewhere struct{ error }

// Unwrap returns the error without the mark.
func (e elsewhere) Unwrap() error { return e.error }

// diagnose returns the cause of err, an error that occurred during decoding. The parameter readErr is the error of the
// reader of the pack, or nil if the reader did not fail. If readErr is nil, an error of zlib means that the pack is
// corrupt.
func diagnose(err, readErr error) error {
	var e elsewhere
	switch {
	case err == nil, errors.Is(err, ErrCorrupt), errors.Is(err, ErrTooLarge), errors.As(err, &e):
		return err
	case readErr == io.EOF:
		return corrupt("pack is truncated: %w", io.ErrUnexpectedEOF)
	case readErr != nil:
		return readErr
	}
	return corrupt("%w", err)
}
