package state

import (
	"encoding/binary"
	"math/bits"
)

// Seed is the key of the hash function that orders the names in the directories of a table.
type Seed [16]byte

// hash returns the SipHash-1-3 of a name. The order of the hashes is unpredictable without the seed. Unlike
// hash/maphash, hash returns the same value in every process and every build of the program.
func (s *Seed) hash(name string) uint32 {
	k0, k1 := binary.LittleEndian.Uint64(s[:]), binary.LittleEndian.Uint64(s[8:])
	v0, v1 := k0^0x736f6d6570736575, k1^0x646f72616e646f6d
	v2, v3 := k0^0x6c7967656e657261, k1^0x7465646279746573
	last := uint64(len(name)) << 56
	for ; len(name) >= 8; name = name[8:] {
		m := uint64(name[0]) | uint64(name[1])<<8 | uint64(name[2])<<16 | uint64(name[3])<<24 |
			uint64(name[4])<<32 | uint64(name[5])<<40 | uint64(name[6])<<48 | uint64(name[7])<<56
		v3 ^= m
		v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
		v0 ^= m
	}
	for i := range len(name) {
		last |= uint64(name[i]) << (8 * i)
	}
	v3 ^= last
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0 ^= last
	v2 ^= 0xff
	for range 3 {
		v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	}
	return uint32(v0 ^ v1 ^ v2 ^ v3)
}

// sipRound is the round function of SipHash. It returns the next state of v0 to v3.
func sipRound(v0, v1, v2, v3 uint64) (uint64, uint64, uint64, uint64) {
	v0 += v1
	v1 = bits.RotateLeft64(v1, 13) ^ v0
	v0 = bits.RotateLeft64(v0, 32)
	v2 += v3
	v3 = bits.RotateLeft64(v3, 16) ^ v2
	v0 += v3
	v3 = bits.RotateLeft64(v3, 21) ^ v0
	v2 += v1
	v1 = bits.RotateLeft64(v1, 17) ^ v2
	v2 = bits.RotateLeft64(v2, 32)
	return v0, v1, v2, v3
}
