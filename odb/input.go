package odb

import (
	"hash"
	"hash/crc32"
	"io"
)

// input reads a pack stream byte by byte or in pieces. It hashes the bytes that it returns, for the
// pack's trailer and for the CRC of each entry, and passes them on to tee.
type input struct {
	r    io.Reader
	stop func() error       // checked before each read of r; an error ends the input
	tee  func([]byte) error // receives the bytes that were returned, if not nil
	sum  hash.Hash

	buf      []byte
	pos, end int   // buf[pos:end] was read and not returned yet
	start    int64 // offset of buf[0] in the pack
	marked   int   // buf[:marked] went to crc and tee
	summed   int   // buf[:summed] went to sum
	crc      uint32
	err      error // r's, kept until buf is used up
	hit      error // err or tee's, once it was returned
}

// newInput returns an input that reads a pack from r. sum is the hash of the pack's format.
func newInput(r io.Reader, sum hash.Hash, stop func() error, tee func([]byte) error) *input {
	return &input{r: r, stop: stop, tee: tee, sum: sum, buf: make([]byte, 32<<10)}
}

// offset returns the offset of the next byte in the pack.
func (in *input) offset() int64 { return in.start + int64(in.pos) }

// ReadByte returns the next byte of the pack. It makes input an io.ByteReader, so that zlib reads no byte beyond the
// end of an entry.
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

// Read returns up to len(p) bytes that are already buffered, and reads more only if none are.
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

// fill reads more once buf is used up.
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
	// A reader may return no bytes and no error; 100 such reads in a row are an error, as in bufio.
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

// settle passes the bytes returned since its last call to crc and tee.
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

// total passes the bytes returned since its last call to sum. It is called as late as possible:
// hashing is faster in large pieces.
func (in *input) total() {
	in.sum.Write(in.buf[in.summed:in.pos])
	in.summed = in.pos
}

// startEntry starts the CRC of an entry at the next byte.
func (in *input) startEntry() error {
	err := in.settle()
	in.crc = 0
	return err
}

// trailer reads the hash that ends a pack and compares it with the hash of the bytes before it. It returns ErrCorrupt
// if they differ, or if data follows.
func (in *input) trailer() ([]byte, error) {
	in.total()
	// The sum is taken before the trailer is read: the trailer is not part of what it covers.
	sum := in.sum.Sum(nil)
	got := make([]byte, len(sum))
	if _, err := io.ReadFull(in, got); err != nil {
		return nil, err
	}
	if string(got) != string(sum) {
		return nil, corrupt("trailer says %x, the pack hashes to %x", got, sum)
	}
	if err := in.settle(); err != nil {
		return nil, err
	}
	if _, err := in.ReadByte(); err == nil {
		return nil, corrupt("data behind the trailer")
	} else if err != io.EOF {
		return nil, err
	}
	return sum, nil
}
