// Package named stores which blobs the trees of a pack name: the ids of the files and symbolic links in these trees,
// sorted, in one file for each pack. A blob that a tree names is called a named blob. Gitlinks name commits, so they do
// not count.
//
// A file has a header of 16 bytes: the mark "afsnamed", the version and the length of an id, which are numbers of 32
// bits. A table follows as in a pack index: for each value of the first byte of an id, the number of ids up to this
// value. The ids follow, sorted and without duplicates, and at the end the CRC-32C of all bytes before. All numbers are
// big-endian. An id takes 20 bytes with SHA-1 and 32 with SHA-256. The file can be computed from the pack again, so a
// damaged file costs time, but no data.
//
// The package does not access packs and does not decide when a file is written: see odb.Named.
package named

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"iter"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/git/object"
)

// ErrDamaged means that a file has another version, belongs to another object format, or contains invalid bytes.
var ErrDamaged = errors.New("damaged list of named blobs")

const (
	mark       = "afsnamed"
	version    = 1
	headerSize = len(mark) + 4 + 4
	fanoutSize = 256 * 4
	firstID    = headerSize + fanoutSize
	crcSize    = 4
)

// checksum is the polynomial of the CRC at the end of a file. Processors have an instruction for it.
var checksum = crc32.MakeTable(crc32.Castagnoli)

// Set is the contents of one file: a sorted set of ids. It is never modified, so any goroutine may use it.
type Set struct {
	data   []byte // the whole file, usually mapped into memory
	format object.Format
	idLen  int
	n      int
}

// Path returns the path of the file for the pack at path, which has no suffix. The files are in the directory
// info/artifactfs-named beside the directory of the packs, in which git reports files that it does not know as garbage.
func Path(pack string) string {
	return filepath.Join(filepath.Dir(filepath.Dir(pack)), "info", "artifactfs-named", filepath.Base(pack))
}

// Open maps a file into memory and parses it. The mapping remains valid after the file was removed, and ends when the
// Set is not reachable any more.
func Open(path string, f object.Format) (*Set, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if st.Size() < int64(firstID+crcSize) {
		return nil, fmt.Errorf("%w: file has %d bytes", ErrDamaged, st.Size())
	}
	data, err := unix.Mmap(int(file.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map file %s: %w", path, err)
	}
	s, err := Parse(data, f)
	if err != nil {
		return nil, errors.Join(err, unix.Munmap(data))
	}
	runtime.AddCleanup(s, func(data []byte) { _ = unix.Munmap(data) }, data)
	return s, nil
}

// Parse returns the Set whose file has the bytes data. It returns ErrDamaged if the file is invalid. The Set refers to
// data.
func Parse(data []byte, f object.Format) (*Set, error) {
	s := &Set{data: data, format: f, idLen: f.Size()}
	if len(data) < firstID+crcSize || string(data[:len(mark)]) != mark {
		return nil, fmt.Errorf("%w: header is missing or invalid", ErrDamaged)
	}
	if v, n := binary.BigEndian.Uint32(data[len(mark):]), binary.BigEndian.Uint32(data[len(mark)+4:]); v != version ||
		int(n) != s.idLen {
		return nil, fmt.Errorf("%w: unsupported version %d or size of ids: %d bytes", ErrDamaged, v, n)
	}
	last := 0
	for b := range 256 {
		n := s.upTo(b)
		if n < last {
			return nil, fmt.Errorf("%w: table decreases at entry 0x%02x", ErrDamaged, b)
		}
		last = n
	}
	if s.n = last; int64(len(data)) != int64(firstID)+int64(s.n)*int64(s.idLen)+crcSize {
		return nil, fmt.Errorf("%w: wrong file size %d bytes for %d ids", ErrDamaged, len(data), s.n)
	}
	body := data[:len(data)-crcSize]
	if crc32.Checksum(body, checksum) != binary.BigEndian.Uint32(data[len(body):]) {
		return nil, fmt.Errorf("%w: wrong checksum", ErrDamaged)
	}
	return s, nil
}

// upTo returns the number of ids whose first byte is not greater than b.
func (s *Set) upTo(b int) int { return int(binary.BigEndian.Uint32(s.data[headerSize+4*b:])) }

// bucket returns the positions of the ids with the first byte b: from lo, inclusive, to hi, exclusive.
func (s *Set) bucket(b byte) (lo, hi int) {
	if b > 0 {
		lo = s.upTo(int(b) - 1)
	}
	return lo, s.upTo(int(b))
}

// at returns the bytes of the id at position i. They are valid as long as s is reachable.
func (s *Set) at(i int) []byte {
	off := firstID + i*s.idLen
	return s.data[off : off+s.idLen]
}

// Len returns the number of ids.
func (s *Set) Len() int { return s.n }

// Has reports whether the set contains id.
func (s *Set) Has(id object.ID) bool {
	if id.IsZero() || id.Format() != s.format {
		return false
	}
	want := id.Bytes()
	i := s.search(want)
	found := i < s.n && bytes.Equal(s.at(i), want)
	runtime.KeepAlive(s)
	return found
}

// search returns the position of the first id that is not less than want, which has at least 8 bytes. Ids are evenly
// distributed, so it estimates the position from the value of the id, and finds it a few steps from there.
func (s *Set) search(want []byte) int {
	lo, hi := s.bucket(want[0])
	if lo == hi {
		return lo
	}
	guess := lo + int(uint64(hi-lo)*uint64(binary.BigEndian.Uint32(want[1:]))>>32)
	// The steps double, so that the search also takes logarithmic time if the ids are not evenly distributed.
	if bytes.Compare(s.at(guess), want) < 0 {
		for step := 1; ; step *= 2 {
			lo = guess + 1
			if guess += step; guess >= hi {
				break
			}
			if bytes.Compare(s.at(guess), want) >= 0 {
				hi = guess
				break
			}
		}
	} else {
		for step := 1; ; step *= 2 {
			hi = guess
			if guess -= step; guess < lo {
				break
			}
			if bytes.Compare(s.at(guess), want) < 0 {
				lo = guess + 1
				break
			}
		}
	}
	for lo < hi {
		mid := int(uint(lo+hi) / 2)
		if bytes.Compare(s.at(mid), want) < 0 {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// PrefixBits is the number of leading bits of an id that Prefix returns.
const PrefixBits = 62

// Prefix returns the first PrefixBits bits of an id as a number below 1<<PrefixBits.
func Prefix(id object.ID) uint64 { return binary.BigEndian.Uint64(id.Bytes()) >> (64 - PrefixBits) }

// AppendPrefixed appends the ids with this prefix to ids, without those that ids contains already.
func (s *Set) AppendPrefixed(ids []object.ID, prefix uint64) []object.ID {
	var want [32]byte
	binary.BigEndian.PutUint64(want[:], prefix<<(64-PrefixBits))
	for i := s.search(want[:s.idLen]); i < s.n && binary.BigEndian.Uint64(s.at(i))>>(64-PrefixBits) == prefix; i++ {
		id, _ := object.FromBytes(s.at(i))
		ids = appendNew(ids, id)
	}
	runtime.KeepAlive(s)
	return ids
}

// appendNew appends id to ids unless ids contains it.
func appendNew(ids []object.ID, id object.ID) []object.ID {
	for _, other := range ids {
		if other == id {
			return ids
		}
	}
	return append(ids, id)
}

// Within reports whether the sets contain every id of s.
func (s *Set) Within(sets []*Set) bool {
	defer runtime.KeepAlive(s)
next:
	for i := range s.n {
		want := s.at(i)
		for _, other := range sets {
			if k := other.search(want); k < other.n && bytes.Equal(other.at(k), want) {
				continue next
			}
		}
		return false
	}
	runtime.KeepAlive(sets)
	return true
}

// From returns the ids of all sets that have the first byte b, in order and without duplicates. It starts with the
// first id after the parameter after; the zero id stands for the start. All sets have the same object format.
func From(sets []*Set, b byte, after object.ID) iter.Seq[object.ID] {
	return func(yield func(object.ID) bool) {
		defer runtime.KeepAlive(sets)
		var cursors []cursor
		for _, s := range sets {
			lo, hi := s.bucket(b)
			if !after.IsZero() && after.Bytes()[0] == b {
				if lo = s.search(after.Bytes()); lo < hi && bytes.Equal(s.at(lo), after.Bytes()) {
					lo++
				}
			} else if !after.IsZero() && after.Bytes()[0] > b {
				lo = hi
			}
			if lo < hi {
				cursors = append(cursors, cursor{s, lo, hi})
			}
		}
		for next := range merged(cursors) {
			id, _ := object.FromBytes(next)
			if !yield(id) {
				return
			}
		}
	}
}

// Count returns the number of different ids in the sets.
func Count(sets []*Set) int {
	if len(sets) == 1 {
		return sets[0].n
	}
	n := 0
	for range all(sets) {
		n++
	}
	runtime.KeepAlive(sets)
	return n
}

// all returns the ids of all sets, in order and without duplicates.
func all(sets []*Set) iter.Seq[[]byte] {
	var cursors []cursor
	for _, s := range sets {
		if s.n > 0 {
			cursors = append(cursors, cursor{s, 0, s.n})
		}
	}
	return merged(cursors)
}

// cursor is a range of positions in a set that is not empty.
type cursor struct {
	s      *Set
	at, to int
}

// merged returns the ids of all cursors, in order and without duplicates. The bytes of an id are valid until the next
// one. The slice of cursors is modified.
func merged(cursors []cursor) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for len(cursors) > 1 {
			first := 0
			least := cursors[0].s.at(cursors[0].at)
			for i := 1; i < len(cursors); i++ {
				if id := cursors[i].s.at(cursors[i].at); bytes.Compare(id, least) < 0 {
					first, least = i, id
				}
			}
			if !yield(least) {
				return
			}
			// The cursors at the indexes below first are at greater ids.
			for i := len(cursors) - 1; i >= first; i-- {
				c := &cursors[i]
				if !bytes.Equal(c.s.at(c.at), least) {
					continue
				}
				if c.at++; c.at == c.to {
					cursors = append(cursors[:i], cursors[i+1:]...)
				}
			}
		}
		for _, c := range cursors {
			for ; c.at < c.to; c.at++ {
				if !yield(c.s.at(c.at)) {
					return
				}
			}
		}
	}
}
