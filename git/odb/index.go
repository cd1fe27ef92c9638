package odb

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"

	"github.com/artifactfs/artifactfs/git/object"
)

// Index is a pack index of version 2: gitformat-pack(5), "Version 2 pack-*.idx files". It refers to the bytes that it
// was parsed from, so they must remain valid.
type Index struct {
	data   []byte // the whole index file, usually mapped into memory
	idLen  int    // length of an id in bytes
	n      int    // number of objects
	names  int    // offset in data at which the sorted ids begin
	offs   int    // offset in data at which the table of 4-byte offsets begins
	large  int    // offset in data at which the table of 8-byte offsets begins
	larges int    // number of 8-byte offsets
}

// Sizes and marks in the version 2 format.
const (
	indexMagic      = "\xfftOc"
	indexHeaderSize = 8
	fanoutSize      = 256 * 4
	largeOffset     = 1 << 31 // bit that marks a 4-byte offset as a position in the table of 8-byte offsets
)

// ParseIndex returns the index whose bytes are data. It returns ErrCorrupt if one of the tables is not inside data. It
// does not check ids and offsets: if one of them is wrong, an object is unreadable, and other objects are not affected.
func ParseIndex(data []byte, f object.Format) (*Index, error) {
	x := &Index{data: data, idLen: f.Size()}
	if len(data) < indexHeaderSize+fanoutSize+2*x.idLen {
		return nil, corrupt("index is too small: %d bytes", len(data))
	}
	if string(data[:4]) != indexMagic || binary.BigEndian.Uint32(data[4:]) != 2 {
		return nil, corrupt("index does not have version 2: file starts with %.8q", data)
	}
	var last uint32
	for i := range 256 {
		n := x.fanout(i)
		if n < last {
			return nil, corrupt("fan-out table of the index decreases at %02x", i)
		}
		last = n
	}
	x.n = int(last)
	x.names = indexHeaderSize + fanoutSize
	x.offs = x.names + x.n*(x.idLen+4)
	x.large = x.offs + x.n*4
	// The tables are followed by two hashes: the hash of the pack and the hash of the index.
	rest := len(data) - 2*x.idLen - x.large
	if rest < 0 || rest%8 != 0 || rest/8 > x.n {
		return nil, corrupt("index has %d bytes, which is wrong for %d objects", len(data), x.n)
	}
	x.larges = rest / 8
	return x, nil
}

// fanout returns the number of objects whose ids begin with a byte that is not greater than i.
func (x *Index) fanout(i int) uint32 { return binary.BigEndian.Uint32(x.data[indexHeaderSize+4*i:]) }

// Len returns the number of objects.
func (x *Index) Len() int { return x.n }

// ID returns the id at position i of the sorted ids.
func (x *Index) ID(i int) (object.ID, error) { return object.FromBytes(x.name(i)) }

// Position returns the position of id among the sorted ids. It returns false if the index does not contain id.
func (x *Index) Position(id object.ID) (int, bool) {
	want := id.Bytes()
	if len(want) != x.idLen {
		return 0, false
	}
	return x.search(want)
}

// name returns the bytes of the id at position i. They are part of data and must not be modified.
func (x *Index) name(i int) []byte {
	at := x.names + i*x.idLen
	return x.data[at : at+x.idLen]
}

// packSum returns the trailer of the pack that the index describes.
func (x *Index) packSum() []byte { return x.data[len(x.data)-2*x.idLen : len(x.data)-x.idLen] }

// find returns the offset of the entry of the object id, and true. The offset is -1 if the index refers to a position
// outside its table of 8-byte offsets. If the index does not contain the object, find returns false.
func (x *Index) find(id object.ID) (int64, bool) {
	i, ok := x.Position(id)
	if !ok {
		return 0, false
	}
	return x.offset(i), true
}

// lookup returns the same as find. Its parameter is the id as bytes.
func (x *Index) lookup(want []byte) (int64, bool) {
	i, ok := x.search(want)
	if !ok {
		return 0, false
	}
	return x.offset(i), true
}

// search returns the position of an id among the sorted ids, and false if the index does not contain the id. The
// fan-out table bounds the range of ids with the same first byte, in which a binary search finds the id.
func (x *Index) search(want []byte) (int, bool) {
	lo, hi := 0, int(x.fanout(int(want[0])))
	if want[0] > 0 {
		lo = int(x.fanout(int(want[0]) - 1))
	}
	for lo < hi {
		mid := int(uint(lo+hi) / 2)
		switch c := bytes.Compare(x.name(mid), want); {
		case c == 0:
			return mid, true
		case c < 0:
			lo = mid + 1
		default:
			hi = mid
		}
	}
	return 0, false
}

// crc returns the CRC-32 of the entry at position i, which is stored in the index.
func (x *Index) crc(i int) uint32 {
	return binary.BigEndian.Uint32(x.data[x.names+x.n*x.idLen+4*i:])
}

// offset returns the offset of the entry at position i in the pack, or -1 if the index refers to a position outside its
// table of 8-byte offsets.
func (x *Index) offset(i int) int64 {
	off := binary.BigEndian.Uint32(x.data[x.offs+4*i:])
	if off < largeOffset {
		return int64(off)
	}
	k := int(off - largeOffset)
	if k >= x.larges {
		return -1
	}
	return int64(binary.BigEndian.Uint64(x.data[x.large+8*k:]) & (1<<63 - 1))
}

// writeIndex writes the index of a pack to w. The table t lists the entries of the pack, and packSum is the trailer of
// the pack.
func writeIndex(w io.Writer, f object.Format, t *table, packSum []byte) error {
	sum := f.New()
	out := bufio.NewWriterSize(io.MultiWriter(w, sum), copyBuffer)
	order := t.sorted()
	var word [8]byte
	put32 := func(v uint32) {
		binary.BigEndian.PutUint32(word[:], v)
		out.Write(word[:4])
	}
	out.WriteString(indexMagic)
	put32(2)
	// The fan-out table contains, for each value of the first byte, the number of ids up to this value.
	below := 0
	for b := range 256 {
		for below < len(order) && int(t.sum(int(order[below]))[0]) == b {
			below++
		}
		put32(uint32(below))
	}
	for _, i := range order {
		out.Write(t.sum(int(i)))
	}
	for _, i := range order {
		put32(t.crc(int(i)))
	}
	var large []int64
	for _, i := range order {
		if off := t.offset(int(i)); off < largeOffset {
			put32(uint32(off))
		} else {
			put32(largeOffset | uint32(len(large)))
			large = append(large, off)
		}
	}
	for _, off := range large {
		binary.BigEndian.PutUint64(word[:], uint64(off))
		out.Write(word[:])
	}
	out.Write(packSum)
	if err := out.Flush(); err != nil { // Flush returns the first error of all writes
		return err
	}
	_, err := w.Write(sum.Sum(nil))
	return err
}
