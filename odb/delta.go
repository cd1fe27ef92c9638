package odb

import (
	"errors"
	"fmt"
	"io"
)

// Deltas: gitformat-pack(5), "Deltified representation". Two sizes, then instructions: copy from
// the base, or insert the bytes that follow.

// byteSource is a reader for deltas.
type byteSource interface {
	io.Reader
	io.ByteReader
}

// readDeltaSizes reads the sizes of base and result that a delta claims.
func readDeltaSizes(r io.ByteReader) (base, result int64, err error) {
	if base, err = readSize(r); err == nil {
		result, err = readSize(r)
	}
	return base, result, err
}

// readSize reads a size: 7 bits in each byte, the lowest first; the high bit of a byte marks that another follows.
func readSize(r io.ByteReader) (int64, error) {
	var n uint64
	for shift := 0; ; shift += 7 {
		c, err := r.ReadByte()
		if err != nil {
			return 0, cutDelta(err)
		}
		if shift >= 63 {
			return 0, corrupt("delta size of more than 63 bits")
		}
		if n |= uint64(c&0x7f) << shift; c&0x80 == 0 {
			return int64(n), nil // shift <= 56: at most 63 bits
		}
	}
}

// instruction is one step of a delta: copy n bytes from off in the base, or insert the n bytes that
// follow (off < 0).
type instruction struct{ off, n int64 }

// readInstruction reads the next step. It returns io.EOF at the end of the delta.
// An instruction begins with one byte. If its high bit is set it is a copy: bits 0 to 3 state which bytes of the
// offset follow, bits 4 to 6 which bytes of the length. Otherwise the byte is the length of the data to insert; 0 is
// reserved.
func readInstruction(r io.ByteReader) (instruction, error) {
	op, err := r.ReadByte()
	if err != nil {
		return instruction{}, err
	}
	if op == 0 {
		return instruction{}, corrupt("reserved delta instruction")
	}
	if op&0x80 == 0 {
		return instruction{-1, int64(op)}, nil
	}
	var in instruction
	for i := range 7 {
		if op>>i&1 == 0 {
			continue
		}
		c, err := r.ReadByte()
		if err != nil {
			return in, cutDelta(err)
		}
		if i < 4 {
			in.off |= int64(c) << (8 * i)
		} else {
			in.n |= int64(c) << (8 * (i - 4))
		}
	}
	// A length of zero stands for 64 KiB (gitformat-pack(5)).
	if in.n == 0 {
		in.n = 0x10000
	}
	return in, nil
}

// check refuses a step that reads outside the base or makes the result larger than claimed.
func (in instruction) check(baseSize, left int64) error {
	if in.off >= 0 && (in.off > baseSize || in.n > baseSize-in.off) {
		return corrupt("delta copies %d bytes from %d of a base of %d", in.n, in.off, baseSize)
	}
	if in.n > left {
		return corrupt("delta makes more than the size it claims")
	}
	return nil
}

// cutDelta returns the error of a delta that ends inside an instruction; io.EOF would mean a regular end.
func cutDelta(err error) error {
	if err == io.EOF {
		return corrupt("delta cut short")
	}
	return err
}

// applyDelta makes the result in memory. A result over limit bytes is refused, and the whole delta
// is checked before anything is allocated: a few bytes of delta can claim, and really make,
// gigabytes.
func applyDelta(base, delta []byte, limit int64) ([]byte, error) {
	r := sliceReader{delta, 0}
	baseSize, size, err := readDeltaSizes(&r)
	if err != nil {
		return nil, err
	}
	if baseSize != int64(len(base)) {
		return nil, corrupt("delta wants a base of %d bytes, it has %d", baseSize, len(base))
	}
	if size > limit {
		return nil, tooLarge(size, limit)
	}
	// First pass: check all instructions without copying.
	start := r.pos
	for left := size; ; {
		in, err := readInstruction(&r)
		if err == io.EOF && left == 0 {
			break
		}
		if err != nil {
			return nil, lacks(err)
		}
		if err := in.check(baseSize, left); err != nil {
			return nil, err
		}
		if in.off < 0 {
			if int64(len(delta)-r.pos) < in.n {
				return nil, corrupt("delta cut short")
			}
			r.pos += int(in.n)
		}
		left -= in.n
	}
	// Second pass: the instructions are valid, so size bytes can be allocated.
	out := make([]byte, 0, size)
	for r.pos = start; r.pos < len(delta); {
		in, _ := readInstruction(&r)
		if in.off < 0 {
			out = append(out, delta[r.pos:r.pos+int(in.n)]...)
			r.pos += int(in.n)
		} else {
			out = append(out, base[in.off:in.off+in.n]...)
		}
	}
	return out, nil
}

// lacks returns the error of a delta that ends before its result is complete.
func lacks(err error) error {
	if err == io.EOF {
		return corrupt("delta makes less than the size it claims")
	}
	return err
}

// sliceReader is a bytes.Reader that the compiler sees through.
type sliceReader struct {
	b   []byte
	pos int
}

// ReadByte returns the next byte, or io.EOF at the end of the slice.
func (r *sliceReader) ReadByte() (byte, error) {
	if r.pos == len(r.b) {
		return 0, io.EOF
	}
	r.pos++
	return r.b[r.pos-1], nil
}

// streamDelta writes the result, size bytes, to w by way of buf; the sizes were read from r
// already, base has baseSize bytes. It holds nothing but buf.
func streamDelta(w io.Writer, base io.ReaderAt, baseSize, size int64, r byteSource, buf []byte) error {
	for left := size; ; {
		in, err := readInstruction(r)
		if err == io.EOF && left == 0 {
			return nil
		}
		if err != nil {
			return lacks(err)
		}
		if err := in.check(baseSize, left); err != nil {
			return err
		}
		// A copy may be as long as the base, so it moves in pieces of buf.
		for n := in.n; n > 0; {
			piece := buf[:min(n, int64(len(buf)))]
			if in.off < 0 {
				if _, err := io.ReadFull(r, piece); err != nil {
					if errors.Is(err, io.ErrUnexpectedEOF) {
						err = io.EOF
					}
					return cutDelta(err)
				}
			} else if m, err := base.ReadAt(piece, in.off+in.n-n); m < len(piece) {
				return elsewhere{fmt.Errorf("read delta base: %w", err)}
			}
			if _, err := w.Write(piece); err != nil {
				return elsewhere{err}
			}
			n -= int64(len(piece))
		}
		left -= in.n
	}
}
