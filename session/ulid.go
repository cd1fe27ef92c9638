package session

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// crockford holds the digits of a PointID, in ascending order: I, L, O and U are not among them
// (github.com/ulid/spec).
const crockford = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

// idLen is the number of digits of a PointID.
const idLen = 26

// ErrPointID reports a text that is not a PointID.
var ErrPointID = errors.New("not a checkpoint ID")

// lastID is the last ID that NewPointID has returned in this process.
var lastID struct {
	sync.Mutex
	ms     uint64 // milliseconds since 1970
	random [10]byte
}

// NewPointID returns an ID that sorts after all IDs that this process has made before, even if the clock was set
// back.
func NewPointID(now time.Time) PointID {
	lastID.Lock()
	defer lastID.Unlock()
	ms := uint64(max(0, now.UnixMilli()))
	if ms > lastID.ms {
		lastID.ms = ms
		rand.Read(lastID.random[:])
		lastID.random[0] &= 0x7f // leaves room to increment it in the same millisecond
	} else {
		// In the same millisecond, or if the clock was set back, the random part is incremented as a number.
		for i := len(lastID.random) - 1; i >= 0; i-- {
			if lastID.random[i]++; lastID.random[i] != 0 {
				break
			}
		}
	}
	var raw [16]byte
	// The first 48 bits are the time, the other 80 the random part.
	binary.BigEndian.PutUint64(raw[:8], lastID.ms<<16)
	copy(raw[6:], lastID.random[:])
	return encodeID(raw)
}

// NewPointIDAfter returns an ID that also sorts after the ID after, which another process may have made with a clock
// that is ahead.
func NewPointIDAfter(now time.Time, after PointID) PointID {
	if after != "" && !after.Time().Before(now) {
		now = after.Time().Add(time.Millisecond)
	}
	return NewPointID(now)
}

// encodeID formats 128 bits as 26 digits of 5 bits each; the two highest bits of the first digit are 0.
func encodeID(raw [16]byte) PointID {
	var text [idLen]byte
	hi, lo := binary.BigEndian.Uint64(raw[:8]), binary.BigEndian.Uint64(raw[8:])
	for i := idLen - 1; i >= 0; i-- {
		text[i] = crockford[lo&31]
		lo = lo>>5 | hi<<59
		hi >>= 5
	}
	return PointID(text[:])
}

// ParsePointID parses an ID in upper or lower case and returns it in upper case. It returns ErrPointID if text is not
// an ID.
func ParsePointID(text string) (PointID, error) {
	up := strings.ToUpper(text)
	if len(up) != idLen || up[0] > '7' || !isDigits(up) {
		return "", fmt.Errorf("%w: %.40q", ErrPointID, text)
	}
	return PointID(up), nil
}

// isDigits reports whether text consists of digits of a PointID.
func isDigits(text string) bool {
	for i := range len(text) {
		if strings.IndexByte(crockford, text[i]) < 0 {
			return false
		}
	}
	return true
}

// Time returns the time that the ID was made, in milliseconds.
func (id PointID) Time() time.Time {
	var ms uint64
	for i := range min(10, len(id)) {
		ms = ms<<5 | uint64(max(0, strings.IndexByte(crockford, id[i])))
	}
	return time.UnixMilli(int64(ms)).UTC()
}
