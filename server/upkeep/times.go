package upkeep

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
)

// The format of a file .mtimes is that of git (gitformat-pack(5), "pack-*.mtimes files"): a header, seconds since 1970
// for each object in the order of the index, the hash of the pack, and the hash of the file.
const (
	timesMagic  = "MTME"
	timesHeader = 12
)

// hashNumber returns the number of a hash function in git's files.
func hashNumber(f object.Format) uint32 {
	if f == object.SHA256 {
		return 2
	}
	return 1
}

// sum returns the hash of data.
func sum(f object.Format, data []byte) []byte {
	if f == object.SHA256 {
		s := sha256.Sum256(data)
		return s[:]
	}
	s := sha1.Sum(data)
	return s[:]
}

// encodeTimes returns the contents of the file PACK.mtimes for a pack with the index x (gitformat-pack(5)). The map
// since has the time at which each object became unreachable.
func encodeTimes(x *odb.Index, f object.Format, pack string, since map[object.ID]time.Time) ([]byte, error) {
	data := []byte(timesMagic)
	data = binary.BigEndian.AppendUint32(data, 1)
	data = binary.BigEndian.AppendUint32(data, hashNumber(f))
	for i := range x.Len() {
		id, err := x.ID(i)
		if err != nil {
			return nil, err
		}
		t, ok := since[id]
		if !ok {
			return nil, fmt.Errorf("write times of garbage: object %s has none", id)
		}
		data = binary.BigEndian.AppendUint32(data, uint32(t.Unix()))
	}
	hash, err := hex.DecodeString(pack)
	if err != nil {
		return nil, err
	}
	data = append(data, hash...)
	return append(data, sum(f, data)...), nil
}

// errDamagedTimes means that a file of times is damaged.
var errDamagedTimes = errors.New("times of garbage are damaged")

// parseTimes returns the times in a file for a pack with n objects.
func parseTimes(data []byte, f object.Format, n int) ([]time.Time, error) {
	if n < 0 || len(data) != timesHeader+4*n+2*f.Size() {
		return nil, fmt.Errorf("%w: %d bytes for %d objects", errDamagedTimes, len(data), n)
	}
	if string(data[:4]) != timesMagic || binary.BigEndian.Uint32(data[4:]) != 1 ||
		binary.BigEndian.Uint32(data[8:]) != hashNumber(f) {
		return nil, fmt.Errorf("%w: header %q", errDamagedTimes, data[:timesHeader])
	}
	if end := len(data) - f.Size(); string(sum(f, data[:end])) != string(data[end:]) {
		return nil, fmt.Errorf("%w: the hash is wrong", errDamagedTimes)
	}
	times := make([]time.Time, n)
	for i := range times {
		times[i] = time.Unix(int64(binary.BigEndian.Uint32(data[timesHeader+4*i:])), 0)
	}
	return times, nil
}
