// Package varint encodes and decodes numbers in the variable-length format that git uses for the distances of deltas in
// packs, and for lengths in index files of version 4 and in untracked caches. The format is described in
// gitformat-pack(5), "offset encoding", and in git's varint.c. A number consists of groups of 7 bits, the most
// significant first. Every byte but the last has its highest bit set, and for each of these bytes one is subtracted, so
// that every number has exactly one encoding.
package varint

import (
	"errors"
	"io"
)

// ErrOverflow reports that a number has more than 63 bits.
var ErrOverflow = errors.New("number has more than 63 bits")

// Append appends the encoding of v to b. The encoding has at most 10 bytes.
func Append(b []byte, v uint64) []byte {
	var groups [10]byte
	at := len(groups) - 1
	groups[at] = byte(v & 0x7f)
	for v >>= 7; v > 0; v >>= 7 {
		v--
		at--
		groups[at] = byte(v&0x7f) | 0x80
	}
	return append(b, groups[at:]...)
}

// Decode decodes the number at the beginning of b, and returns the number and the length n of its encoding in bytes. n
// is 0 if b ends within the number, or if the number has more than 63 bits.
func Decode(b []byte) (v uint64, n int) {
	for n < len(b) && v < 1<<56 {
		v = v<<7 | uint64(b[n]&0x7f)
		n++
		if b[n-1]&0x80 == 0 {
			return v, n
		}
		v++
	}
	return 0, 0
}

// Read reads one encoded number. It returns an error of r unchanged, and ErrOverflow if the number has more than 63
// bits.
func Read(r io.ByteReader) (uint64, error) {
	for v := uint64(0); v < 1<<56; v++ {
		c, err := r.ReadByte()
		if err != nil {
			return 0, err
		}
		v = v<<7 | uint64(c&0x7f)
		if c&0x80 == 0 {
			return v, nil
		}
	}
	return 0, ErrOverflow
}
