package index

import (
	"encoding/binary"
	"fmt"
)

// These are limits of a run-length word. A bitmap in the index is compressed by EWAH (gitformat-bitmap(5)): a
// run-length word states how many words with only zeros or only ones it replaces, and how many literal words follow.
const (
	runBits     = 32
	literalBits = 31
	maxRun      = 1<<runBits - 1
	maxLiterals = 1<<literalBits - 1
)

// bitmap is a set of small numbers, with one bit for each.
type bitmap struct {
	words []uint64
	n     int // the highest number in the set, plus one
}

// set adds i to the set.
func (b *bitmap) set(i int) {
	for len(b.words) <= i/64 {
		b.words = append(b.words, 0)
	}
	b.words[i/64] |= 1 << (i % 64)
	b.n = max(b.n, i+1)
}

// has reports whether i is in the set.
func (b *bitmap) has(i int) bool { return i/64 < len(b.words) && b.words[i/64]&(1<<(i%64)) != 0 }

// appendTo appends the bitmap in the format of git.
func (b *bitmap) appendTo(out []byte) []byte {
	start := len(out)
	out = binary.BigEndian.AppendUint32(out, uint32(b.n))
	out = append(out, 0, 0, 0, 0) // number of words, set below
	last, count := 0, 0
	// A bitmap has at least one run-length word, even if it is empty.
	for rest, first := b.words, true; first || len(rest) > 0; first = false {
		var word uint64
		run := 0
		if len(rest) > 0 && (rest[0] == 0 || rest[0] == ^uint64(0)) {
			for run < len(rest) && rest[run] == rest[0] && run < maxRun {
				run++
			}
			word = rest[0]&1 | uint64(run)<<1
			rest = rest[run:]
		}
		literals := 0
		for literals < len(rest) && rest[literals] != 0 && rest[literals] != ^uint64(0) && literals < maxLiterals {
			literals++
		}
		last = count
		out = binary.BigEndian.AppendUint64(out, word|uint64(literals)<<(1+runBits))
		for _, w := range rest[:literals] {
			out = binary.BigEndian.AppendUint64(out, w)
		}
		count += 1 + literals
		rest = rest[literals:]
	}
	binary.BigEndian.PutUint32(out[start+4:], uint32(count))
	return binary.BigEndian.AppendUint32(out, uint32(last))
}

// readBitmap parses a bitmap of at most limit bits. It returns the number of bytes that it has read.
func readBitmap(in []byte, limit int) (bitmap, int, error) {
	var b bitmap
	if len(in) < 12 {
		return b, 0, fmt.Errorf("bitmap is truncated")
	}
	n, count := int64(binary.BigEndian.Uint32(in)), int64(binary.BigEndian.Uint32(in[4:]))
	if n > int64(limit) {
		return b, 0, fmt.Errorf("bitmap has %d bits, limit is %d", n, limit)
	}
	if int64(len(in))-12 < 8*count {
		return b, 0, fmt.Errorf("bitmap of %d words is truncated", count)
	}
	words, size := in[8:8+8*count], int(12+8*count)
	most := (n + 63) / 64 // maximum number of words for n bits; git may omit words of zeros at the end
	for len(words) > 0 {
		head := binary.BigEndian.Uint64(words)
		words = words[8:]
		run, literals := int64(head>>1&maxRun), int64(head>>(1+runBits))
		// A run of up to 2^32 words takes only 8 bytes in the file, so its length is checked before memory is allocated.
		if int64(len(b.words))+run+literals > most || literals > int64(len(words)/8) {
			return b, 0, fmt.Errorf("bitmap of %d bits has too many words", n)
		}
		for range run {
			b.words = append(b.words, -(head & 1))
		}
		for range literals {
			b.words = append(b.words, binary.BigEndian.Uint64(words))
			words = words[8:]
		}
	}
	b.n = int(n)
	// A run of ones may contain bits beyond the last number of the bitmap. Clear these bits.
	if top := int(n % 64); top != 0 && int64(len(b.words)) == most {
		b.words[most-1] &= 1<<top - 1
	}
	return b, size, nil
}
