// Package varint encodes and decodes numbers as git writes distances of deltas into packs, and lengths into index files of version 4
// and untracked caches: gitformat-pack(5), "offset encoding", and git's varint.c. The bytes are big-endian groups of 7 bits; every byte
// but the last has its highest bit set, and one is subtracted for each, so that every number has one encoding.
package varint

import (
	"errors"
	"io"
)

// ErrOverflow reports a number of more than 63 bits.
var ErrOverflow = errors.New("number of more than 63 bits")

// Append appends the encoding of v, 10 bytes at most.
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

// Decode decodes the number at the beginning of b and returns how many bytes it takes. n is 0 if b ends before the number, or if the
// number has more than 63 bits.
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

// Read reads a number. The error is that of r, or ErrOverflow.
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
