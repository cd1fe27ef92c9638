package odb

import (
	"hash"
	"hash/crc32"
	"io"
)

// input reads a pack stream, byte by byte or in pieces. It computes the hash of the pack for the trailer and the CRC-32
// of each entry, and passes the bytes on to the function tee.
type input struct {
	r    io.Reader          // source of the pack
	stop func() error       // called before each read of r; an error ends the input
	tee  func([]byte) error // receives the bytes that were returned; may be nil
	sum  hash.Hash          // hash of the pack so far

	buf      []byte // bytes that were read from r
	pos, end int    // buf[pos:end] was read but not returned yet
	start    int64  // offset of buf[0] in the pack, in bytes
	marked   int    // buf[:marked] was added to crc and passed to tee
	summed   int    // buf[:summed] was added to sum
	crc      uint32 // CRC-32 of the current entry so far
	err      error  // error of r; returned when all bytes of buf were returned
	hit      error  // error of r or of tee that a method of input has returned to its caller
}

// newInput returns an input that reads a pack from r. The parameter sum is a hash of the pack's format to which no
// bytes were added yet.
func newInput(r io.Reader, sum hash.Hash, stop func() error, tee func([]byte) error) *input {
	return &input{r: r, stop: stop, tee: tee, sum: sum, buf: make([]byte, 32<<10)}
}

// offset returns the offset of the next byte in the pack.
func (in *input) offset() int64 { return in.start + int64(in.pos) }

// ReadByte returns the next byte of the pack. Because input is an io.ByteReader, zlib reads no byte beyond the end of
// an entry.
func (in *input) ReadByte() (byte, error) {
	if in.pos == in.end {
		if err := in.fill(); err != nil {
			return 0, err
		}
	}
	c := in.buf[in.pos]
	in.pos++
	return c, nil
}

// Read returns up to len(p) bytes that are buffered. It reads from r only if no bytes are buffered.
func (in *input) Read(p []byte) (int, error) {
	if in.pos == in.end {
		if err := in.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, in.buf[in.pos:in.end])
	in.pos += n
	return n, nil
}

// fill reads more bytes into buf. It may be called only when all bytes of buf were returned.
func (in *input) fill() error {
	if in.hit == nil {
		in.hit = in.settle()
	}
	if in.hit != nil {
		return in.hit
	}
	in.total()
	in.start += int64(in.end)
	in.pos, in.end, in.marked, in.summed = 0, 0, 0, 0
	// A reader may return neither bytes nor an error. After 100 such reads in a row, return an error, as bufio does.
	for tries := 0; in.end == 0 && in.err == nil; tries++ {
		if err := in.stop(); err != nil {
			in.err = err
			break
		}
		in.end, in.err = in.r.Read(in.buf)
		if tries == 100 && in.end == 0 && in.err == nil {
			in.err = io.ErrNoProgress
		}
	}
	if in.end == 0 {
		in.hit = in.err
		return in.err
	}
	return nil
}

// settle adds the bytes that were returned since the last call of settle to crc, and passes these bytes to tee.
func (in *input) settle() error {
	if in.marked == in.pos {
		return nil
	}
	b := in.buf[in.marked:in.pos]
	in.marked = in.pos
	in.crc = crc32.Update(in.crc, crc32.IEEETable, b)
	if in.tee == nil {
		return nil
	}
	if err := in.tee(b); err != nil {
		return elsewhere{err}
	}
	return nil
}

// total adds the bytes that were returned since the last call of total to sum. It is called as rarely as possible,
// because hashing is faster in large pieces.
func (in *input) total() {
	in.sum.Write(in.buf[in.summed:in.pos])
	in.summed = in.pos
}

// startEntry starts a new CRC at the next byte, which is the first byte of an entry.
func (in *input) startEntry() error {
	err := in.settle()
	in.crc = 0
	return err
}

// trailer reads the hash at the end of the pack and returns it. It returns ErrCorrupt if this hash differs from the
// hash of the bytes that precede it, or if more data follows.
func (in *input) trailer() ([]byte, error) {
	in.total()
	// The hash is computed before the trailer is read, because it does not include the trailer.
	sum := in.sum.Sum(nil)
	got := make([]byte, len(sum))
	if _, err := io.ReadFull(in, got); err != nil {
		return nil, err
	}
	if string(got) != string(sum) {
		return nil, corrupt("trailer has hash %x, but the pack has hash %x", got, sum)
	}
	if err := in.settle(); err != nil {
		return nil, err
	}
	if _, err := in.ReadByte(); err == nil {
		return nil, corrupt("unexpected data after the pack's trailer")
	} else if err != io.EOF {
		return nil, err
	}
	return sum, nil
}
