package odb

import (
	"errors"
	"fmt"
	"io"
)

// The format of a delta is described in gitformat-pack(5), "Deltified representation": two sizes, and then instructions
// that either copy a range of the base or insert the bytes that follow.

// byteSource is a reader from which deltas are read.
type byteSource interface {
	io.Reader
	io.ByteReader
}

// readDeltaSizes reads the size of the base and the size of the result, which are stated at the start of a delta.
func readDeltaSizes(r io.ByteReader) (base, result int64, err error) {
	if base, err = readSize(r); err == nil {
		result, err = readSize(r)
	}
	return base, result, err
}

// readSize reads a size: 7 bits in each byte, the lowest bits first. The high bit of a byte is set if another byte
// follows.
func readSize(r io.ByteReader) (int64, error) {
	var n uint64
	for shift := 0; ; shift += 7 {
		c, err := r.ReadByte()
		if err != nil {
			return 0, cutDelta(err)
		}
		if shift >= 63 {
			return 0, corrupt("size in the delta has more than 63 bits")
		}
		if n |= uint64(c&0x7f) << shift; c&0x80 == 0 {
			return int64(n), nil // n has at most 63 bits, because the last shift is at most 56
		}
	}
}

// instruction is one step of a delta. It copies n bytes from the offset off of the base or, if off is negative, inserts
// the n bytes of the delta that follow the instruction.
type instruction struct{ off, n int64 }

// readInstruction reads the next instruction. It returns io.EOF at the end of the delta.
//
// An instruction begins with one byte. If the high bit is set, it is a copy: bits 0 to 3 state which bytes of the
// offset follow, and bits 4 to 6 which bytes of the length. Otherwise the byte is the number of bytes to insert; 0 is
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

// check returns ErrCorrupt for an instruction that reads outside the base, or that makes the result larger than the
// delta states. The parameter left is the number of bytes that are still missing in the result.
func (in instruction) check(baseSize, left int64) error {
	if in.off >= 0 && (in.off > baseSize || in.n > baseSize-in.off) {
		return corrupt("delta copies %d bytes from offset %d of a base of %d bytes", in.n, in.off, baseSize)
	}
	if in.n > left {
		return corrupt("delta produces more bytes than it states")
	}
	return nil
}

// cutDelta returns the error for a delta that ends inside an instruction. It replaces io.EOF by ErrCorrupt, because
// readInstruction returns io.EOF for the regular end of a delta.
func cutDelta(err error) error {
	if err == io.EOF {
		return corrupt("delta is truncated")
	}
	return err
}

// applyDelta returns the result of a delta in memory. It returns ErrTooLarge if the result is larger than limit bytes.
// It checks the whole delta before it allocates the result, because a delta of a few bytes can state, and even produce,
// gigabytes.
func applyDelta(base, delta []byte, limit int64) ([]byte, error) {
	r := sliceReader{delta, 0}
	baseSize, size, err := readDeltaSizes(&r)
	if err != nil {
		return nil, err
	}
	if baseSize != int64(len(base)) {
		return nil, corrupt("delta needs a base of %d bytes, but the base has %d", baseSize, len(base))
	}
	if size > limit {
		return nil, tooLarge(size, limit)
	}
	// First pass: check all instructions, without copying.
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
				return nil, corrupt("delta is truncated")
			}
			r.pos += int(in.n)
		}
		left -= in.n
	}
	// Second pass: the instructions are valid, so the result can be allocated.
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

// lacks returns the error for a delta that ends before its result is complete.
func lacks(err error) error {
	if err == io.EOF {
		return corrupt("delta produces fewer bytes than it states")
	}
	return err
}

// sliceReader reads bytes from a slice, like bytes.Reader. The compiler can inline its methods.
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

// streamDelta applies the rest of a delta, which it reads from r, and writes the result to w. The caller has read the
// two sizes at the start of the delta: base has baseSize bytes, and the result has size bytes. Apart from buf,
// streamDelta allocates no memory for the contents.
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
		// A copy may be as long as the base, so it is made in pieces that fit into buf.
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
