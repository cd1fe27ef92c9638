// Package ulid makes and parses ULIDs (github.com/ulid/spec), the IDs of checkpoints and of records: 26 digits of Crockford's base 32
// that sort by time.
package ulid

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// crockford holds the digits of an ID, in ascending order: I, L, O and U are not among them.
const crockford = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

// Len is the number of digits of an ID.
const Len = 26

// ErrID reports a text that is not an ID.
var ErrID = errors.New("invalid checkpoint ID")

// ID is a ULID in upper case.
type ID string

// last is the last ID that New has returned in this process.
var last struct {
	sync.Mutex
	ms     uint64 // milliseconds since 1970
	random [10]byte
}

// New returns an ID that sorts after all IDs that this process has made before, even if the clock was set back.
func New(now time.Time) ID {
	last.Lock()
	defer last.Unlock()
	ms := uint64(max(0, now.UnixMilli()))
	if ms > last.ms {
		last.ms = ms
		rand.Read(last.random[:])
		last.random[0] &= 0x7f // clear the highest bit, so that the number can be incremented in the same millisecond
	} else {
		// In the same millisecond, or if the clock was set back, the random part is incremented as a number.
		for i := len(last.random) - 1; i >= 0; i-- {
			if last.random[i]++; last.random[i] != 0 {
				break
			}
		}
	}
	var raw [16]byte
	// The first 48 bits are the time, the other 80 the random part.
	binary.BigEndian.PutUint64(raw[:8], last.ms<<16)
	copy(raw[6:], last.random[:])
	return encode(raw)
}

// NewAfter returns an ID that also sorts after the ID in the parameter after, which another process may have made with a clock that
// is ahead.
func NewAfter(now time.Time, after ID) ID {
	if after != "" && !after.Time().Before(now) {
		now = after.Time().Add(time.Millisecond)
	}
	return New(now)
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

// Parse parses an ID in upper or lower case and returns it in upper case. It returns ErrID if text is not an ID.
func Parse(text string) (ID, error) {
	up := strings.ToUpper(text)
	if len(up) != Len || up[0] > '7' || !IsDigits(up) {
		return "", fmt.Errorf("%w: %.40q", ErrID, text)
	}
	return ID(up), nil
}

// IsDigits reports whether text consists only of digits of an ID, in upper case.
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
