package odb

import (
	"compress/flate"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"io"

	"github.com/artifactfs/artifactfs/internal/varint"
	"github.com/artifactfs/artifactfs/object"
)

// The values of a pack that gitformat-pack(5) defines beside the object types.
const (
	packHeaderSize = 12
	ofsDelta       = 6
	refDelta       = 7
)

// entry is the header of one object in a pack: gitformat-pack(5), "pack-*.pack files have the
// following format".
type entry struct {
	off     int64 // offset of the header in the pack
	kind    uint8 // object.Type, ofsDelta or refDelta
	size    int64 // size of the inflated data in bytes, as the header claims
	baseOff int64 // offset of the base of an ofsDelta
	baseID  object.ID
}

// isDelta reports whether the entry's data is a delta and not contents.
func (e *entry) isDelta() bool { return e.kind >= ofsDelta }

// parsePackHeader reads the 12 bytes every pack starts with and returns the number of entries it
// claims.
func parsePackHeader(b []byte) (uint32, error) {
	if len(b) < packHeaderSize || string(b[:4]) != "PACK" {
		return 0, corrupt("no pack: starts with %.8q", b)
	}
	if v := binary.BigEndian.Uint32(b[4:]); v != 2 && v != 3 {
		return 0, corrupt("pack version %d, want 2 or 3", v)
	}
	return binary.BigEndian.Uint32(b[8:]), nil
}

// readEntry reads the header of the entry at off. Afterwards r is at the start of the zlib data.
func readEntry(r io.ByteReader, f object.Format, off int64) (entry, error) {
	e := entry{off: off}
	c, err := r.ReadByte()
	if err != nil {
		return e, err
	}
	// The first byte holds 3 bits of type and the lowest 4 bits of the size; each further byte holds 7 bits.
	e.kind = c >> 4 & 7
	e.size = int64(c & 15)
	for shift := 4; c&0x80 != 0; shift += 7 {
		if c, err = r.ReadByte(); err != nil {
			return e, err
		}
		if shift > 60 || shift == 60 && c&0x7f > 7 { // 63 bits are all a size has
			return e, corrupt("size of more than 63 bits")
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
		// A base lies before its delta and behind the pack header, so no chain of OFS deltas can form a circle.
		if back <= 0 || back > off-packHeaderSize {
			return e, corrupt("delta base %d bytes before offset %d", back, off)
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
		return e, corrupt("entry of unknown type %d", e.kind)
	}
	return e, nil
}

// readBack reads the distance of an OFS delta to its base.
func readBack(r io.ByteReader) (int64, error) {
	n, err := varint.Read(r)
	if err == varint.ErrOverflow {
		err = corrupt("delta base offset: %v", err)
	}
	return int64(n), err
}

// inflater reads one entry's zlib data after the other, keeping its tables and window.
type inflater struct{ zr io.ReadCloser }

// start begins to inflate at the next byte of r. It reads no byte beyond the end of the zlib data.
func (z *inflater) start(r flate.Reader) error {
	// Resetting the reader reuses the window and tables for the next entry.
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

// finish checks that the data ends at the current position, and its Adler-32.
func (z *inflater) finish() error {
	var one [1]byte
	switch n, err := z.zr.Read(one[:]); {
	case n != 0:
		return corrupt("more data than the header claims")
	case err != io.EOF:
		if err == nil {
			err = io.ErrNoProgress
		}
		return err
	}
	return nil
}

// whole reads exactly size bytes, into scratch if they fit, and checks that the data ends there. It
// allocates at most four times the bytes that have arrived.
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
		// The buffer grows fourfold only after it was filled: a header can claim gigabytes in a few bytes.
		next := make([]byte, min(size, 4*int64(got)))
		copy(next, buf)
		buf = next
	}
}

// stream copies exactly size bytes to w by way of buf and checks that they are all.
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

// short returns the error of data that ended before the claimed size.
func short(err error) error {
	if err == io.EOF {
		return corrupt("less data than the header claims")
	}
	return err
}

// elsewhere is an error of writing, or of reading anything but the current pack: it does not mean
// that the pack is corrupt.
type elsewhere struct{ error }

func (e elsewhere) Unwrap() error { return e.error }

// diagnose returns the meaning of an error met while decoding. readErr is the error of the pack's
// reader, if there was one; without it, any complaint of zlib is corruption.
func diagnose(err, readErr error) error {
	var e elsewhere
	switch {
	case err == nil, errors.Is(err, ErrCorrupt), errors.Is(err, ErrTooLarge), errors.As(err, &e):
		return err
	case readErr == io.EOF:
		return corrupt("cut short: %w", io.ErrUnexpectedEOF)
	case readErr != nil:
		return readErr
	}
	return corrupt("%w", err)
}
