// Package ulid makes and parses ULIDs (github.com/ulid/spec), the IDs of checkpoints and of records: 26 digits of
// Crockford's base 32 that sort by time.
package ulid

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"strings"
	"sync"
	"time"
)

// crockford contains the digits of an ID in ascending order. The letters I, L, O and U are not digits.
const crockford = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

// Len is the number of digits of an ID.
const Len = 26

// ErrID means that a text is not a ULID.
var ErrID = errors.New("invalid checkpoint ID")

// ID is a ULID in upper case.
type ID string

// last is the last ID that New has returned in this process: 48 bits of milliseconds since 1970, and 80 random bits.
var last struct {
	sync.Mutex
	raw   [16]byte
	ahead [16]byte // the last one that NewAfter has made after an ID that is more than maxAhead ahead
}

// New returns an ID that sorts after all IDs that this process has made before, even if the clock was set back, except
// those that NewAfter has made after an ID that is far ahead.
func New(now time.Time) ID {
	last.Lock()
	defer last.Unlock()
	return next(now)
}

// maxAhead is the maximum time by which the clocks of hosts are expected to differ.
const maxAhead = time.Hour

// NewAfter returns an ID that sorts after the ID after, and after all IDs that this process has made before. Another
// process may have made the ID after in the same millisecond, or with a clock that is ahead. If it is ahead by more
// than maxAhead, the new ID has its time and sorts after the last ID that this process has made with this time, but
// IDs that are made after other ones sort before: they would get a time in the future. No ID sorts after the greatest
// one.
func NewAfter(now time.Time, after ID) ID {
	last.Lock()
	defer last.Unlock()
	id, err := Parse(string(after))
	if err != nil {
		return next(now)
	}
	raw := decode(id)
	switch {
	case id.Time().Sub(now) > maxAhead:
		// The random part of the last one may have overflowed into the time.
		if ms := milliseconds(last.ahead) - milliseconds(raw); ms <= 1 && bytes.Compare(last.ahead[:], raw[:]) > 0 {
			if later, ok := following(last.ahead); ok {
				last.ahead = later
				return encode(later)
			}
		}
		if later, ok := following(raw); ok {
			last.ahead = later
			return encode(later)
		}
	case bytes.Compare(raw[:], last.raw[:]) > 0:
		last.raw = raw
	}
	return next(now)
}

// milliseconds returns the time in the bits of an ID.
func milliseconds(raw [16]byte) uint64 { return binary.BigEndian.Uint64(raw[:8]) >> 16 }

// following returns the bits of an ID that sorts after that with the bits raw. The difference is random, so that IDs
// that two processes make after the same one differ. ok is false if there is no such ID.
func following(raw [16]byte) (later [16]byte, ok bool) {
	hi, lo := binary.BigEndian.Uint64(raw[:8]), binary.BigEndian.Uint64(raw[8:])
	var step [8]byte
	rand.Read(step[:])
	sum, carry := bits.Add64(lo, 1+binary.BigEndian.Uint64(step[:])>>1, 0)
	if hi == math.MaxUint64 && carry > 0 {
		sum, carry = bits.Add64(lo, 1, 0)
	}
	hi, over := bits.Add64(hi, 0, carry)
	binary.BigEndian.PutUint64(later[:8], hi)
	binary.BigEndian.PutUint64(later[8:], sum)
	return later, over == 0
}

// next returns a new ID that sorts after the ID last, and stores it in last. The caller holds the lock of last.
func next(now time.Time) ID {
	if ms := uint64(max(0, now.UnixMilli())); ms > milliseconds(last.raw) {
		binary.BigEndian.PutUint64(last.raw[:8], ms<<16)
		rand.Read(last.raw[6:])
		last.raw[6] &= 0x7f // clear the highest random bit, so that no increment changes the time
	} else {
		// In the same millisecond, or if the clock was set back, the last ID is incremented as a number.
		for i := len(last.raw) - 1; i >= 0; i-- {
			if last.raw[i]++; last.raw[i] != 0 {
				break
			}
		}
	}
	return encode(last.raw)
}

// encode formats 128 bits as 26 digits of 5 bits each; the two highest bits of the first digit are 0.
func encode(raw [16]byte) ID {
	var text [Len]byte
	hi, lo := binary.BigEndian.Uint64(raw[:8]), binary.BigEndian.Uint64(raw[8:])
	for i := Len - 1; i >= 0; i-- {
		text[i] = crockford[lo&31]
		lo = lo>>5 | hi<<59
		hi >>= 5
	}
	return ID(text[:])
}

// decode returns the 128 bits of a valid ID.
func decode(id ID) (raw [16]byte) {
	var hi, lo uint64
	for i := range len(id) {
		hi = hi<<5 | lo>>59
		lo = lo<<5 | uint64(strings.IndexByte(crockford, id[i]))
	}
	binary.BigEndian.PutUint64(raw[:8], hi)
	binary.BigEndian.PutUint64(raw[8:], lo)
	return raw
}

// Parse parses an ID in upper or lower case and returns it in upper case. It returns ErrID if text is not an ID.
func Parse(text string) (ID, error) {
	up := strings.ToUpper(text)
	if len(up) != Len || up[0] > '7' || !IsDigits(up) {
		return "", fmt.Errorf("%w: %.40q", ErrID, text)
	}
	return ID(up), nil
}

// Valid reports whether text is a ULID in upper case.
func Valid(text string) bool {
	id, err := Parse(text)
	return err == nil && string(id) == text
}

// IsDigits reports whether all characters of text can be digits of a ULID in upper case. The length is not checked.
func IsDigits(text string) bool {
	for i := range len(text) {
		if strings.IndexByte(crockford, text[i]) < 0 {
			return false
		}
	}
	return true
}

// Time returns the time at which the ID was made, with a precision of one millisecond.
func (id ID) Time() time.Time {
	var ms uint64
	for i := range min(10, len(id)) {
		ms = ms<<5 | uint64(max(0, strings.IndexByte(crockford, id[i])))
	}
	return time.UnixMilli(int64(ms)).UTC()
}
