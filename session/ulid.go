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

// crockford holds the digits of a CheckpointID, in ascending order: I, L, O and U are not among them (github.com/ulid/spec).
const crockford = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

// idLen is the number of digits of a CheckpointID.
const idLen = 26

// ErrCheckpointID reports a text that is not a CheckpointID.
var ErrCheckpointID = errors.New("invalid checkpoint ID")

// lastID is the last ID that NewCheckpointID has returned in this process.
var lastID struct {
	sync.Mutex
	ms     uint64 // milliseconds since 1970
	random [10]byte
}

// NewCheckpointID returns an ID that sorts after all IDs that this process has made before, even if the clock was set back.
func NewCheckpointID(now time.Time) CheckpointID {
	lastID.Lock()
	defer lastID.Unlock()
	ms := uint64(max(0, now.UnixMilli()))
	if ms > lastID.ms {
		lastID.ms = ms
		rand.Read(lastID.random[:])
		lastID.random[0] &= 0x7f // clear the highest bit, so that the number can be incremented in the same millisecond
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

// NewCheckpointIDAfter returns an ID that also sorts after the ID in the parameter after, which another process may have made
// with a clock that is ahead.
func NewCheckpointIDAfter(now time.Time, after CheckpointID) CheckpointID {
	if after != "" && !after.Time().Before(now) {
		now = after.Time().Add(time.Millisecond)
	}
	return NewCheckpointID(now)
}

// encodeID formats 128 bits as 26 digits of 5 bits each; the two highest bits of the first digit are 0.
func encodeID(raw [16]byte) CheckpointID {
	var text [idLen]byte
	hi, lo := binary.BigEndian.Uint64(raw[:8]), binary.BigEndian.Uint64(raw[8:])
	for i := idLen - 1; i >= 0; i-- {
		text[i] = crockford[lo&31]
		lo = lo>>5 | hi<<59
		hi >>= 5
	}
	return CheckpointID(text[:])
}

// ParseCheckpointID parses an ID in upper or lower case and returns it in upper case. It returns ErrCheckpointID if text is not an ID.
func ParseCheckpointID(text string) (CheckpointID, error) {
	up := strings.ToUpper(text)
	if len(up) != idLen || up[0] > '7' || !isDigits(up) {
		return "", fmt.Errorf("%w: %.40q", ErrCheckpointID, text)
	}
	return CheckpointID(up), nil
}

// isDigits reports whether text consists only of digits of a CheckpointID.
func isDigits(text string) bool {
	for i := range len(text) {
		if strings.IndexByte(crockford, text[i]) < 0 {
			return false
		}
	}
	return true
}

// Time returns the time at which the ID was made, with a precision of one millisecond.
func (id CheckpointID) Time() time.Time {
	var ms uint64
	for i := range min(10, len(id)) {
		ms = ms<<5 | uint64(max(0, strings.IndexByte(crockford, id[i])))
	}
	return time.UnixMilli(int64(ms)).UTC()
}
