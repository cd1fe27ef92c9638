// Package packs defines the files that a relay stores: packs of git with a table, and tables without a pack.
//
// A file consists of a body, a table and a footer. The body is empty or a complete pack of git. The footer has 48
// bytes: a magic text (8 bytes), the length of the table (8 bytes, big endian), and the SHA-256 of everything before it
// (32 bytes). There are four kinds, which differ in their tables:
//
//	snap  a pack as a git server has sent it; the table lists the commits whose parents are missing
//	tree  a pack of a tag, a commit and trees, each without delta; the table lists the objects with their places
//	blob  the same for blobs
//	size  no pack; the table lists objects with their sizes
//
// Objects of kinds tree and blob are stored without deltas, so that each of them can be read and sent without the
// others.
package packs

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"

	"github.com/artifactfs/artifactfs/git/object"
)

// Kind distinguishes the files of the relay by what they contain.
type Kind string

const (
	Snap Kind = "snap"
	Tree Kind = "tree"
	Blob Kind = "blob"
	Size Kind = "size"
)

const (
	magic      = "AFSRLY01"
	FooterSize = 48
	// MaxTable is the maximum length of a table. It is also the maximum memory that the reader of a file allocates.
	MaxTable = 256 << 20
)

// ErrDamaged means that the contents of a file are not those that were stored.
var ErrDamaged = errors.New("stored file is damaged")

// footer returns the footer of a file with a table of this length. sum is the hash of the bytes before the footer.
func footer(table int, sum hash.Hash) []byte {
	b := append(make([]byte, 0, FooterSize), magic...)
	b = binary.BigEndian.AppendUint64(b, uint64(table))
	sum.Write(b)
	return sum.Sum(b)
}

// Finish returns the table and the footer of a file, in the form in which they are stored. sum is the SHA-256 of the
// body.
func Finish(table []byte, sum hash.Hash) []byte {
	sum.Write(table)
	return append(table, footer(len(table), sum)...)
}

// ParseFooter returns the offset and the length of the table of a file of size bytes. end is the last part of the file,
// which contains the footer.
func ParseFooter(end []byte, size int64) (start, length int64, err error) {
	if len(end) != FooterSize || string(end[:len(magic)]) != magic {
		return 0, 0, fmt.Errorf("%w: file does not end in a footer", ErrDamaged)
	}
	n := binary.BigEndian.Uint64(end[len(magic):])
	if n > MaxTable || int64(n) > size-FooterSize {
		return 0, 0, fmt.Errorf("%w: footer states a table of %d bytes in a file of %d bytes", ErrDamaged, n, size)
	}
	return size - FooterSize - int64(n), int64(n), nil
}

// File is an open file. It may be used by several goroutines, even after its name was removed.
type File struct {
	*os.File
	Body  int64 // length of the pack in bytes
	Table []byte
}

// Open opens the file at path. If check is true, it compares the contents with their hash. The error wraps ErrDamaged
// if the contents are not valid. The caller must close the File.
func Open(path string, check bool) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	file, err := read(f, check)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return file, nil
}

// read reads the table of a file. If check is true, it reads the whole file and compares the contents with their hash.
func read(f *os.File, check bool) (*File, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	size := info.Size()
	if size < FooterSize {
		return nil, fmt.Errorf("%w: %d bytes", ErrDamaged, size)
	}
	end := make([]byte, FooterSize)
	if _, err := f.ReadAt(end, size-FooterSize); err != nil {
		return nil, err
	}
	start, length, err := ParseFooter(end, size)
	if err != nil {
		return nil, err
	}
	if check {
		sum := sha256.New()
		if _, err := io.CopyBuffer(onlyWriter{sum}, onlyReader{io.NewSectionReader(f, 0, size-sha256.Size)},
			make([]byte, 256<<10)); err != nil {
			return nil, err
		}
		if string(sum.Sum(nil)) != string(end[FooterSize-sha256.Size:]) {
			return nil, fmt.Errorf("%w: contents do not match the checksum", ErrDamaged)
		}
	}
	table := make([]byte, length)
	if _, err := f.ReadAt(table, start); err != nil {
		return nil, err
	}
	return &File{File: f, Body: start, Table: table}, nil
}

// onlyWriter and onlyReader hide the other methods of a writer and of a reader, so that io.CopyBuffer uses its buffer.
type onlyWriter struct{ io.Writer }
type onlyReader struct{ io.Reader }

// AppendID appends an id to a table: its length in one byte, and its bytes.
func AppendID(b []byte, id object.ID) []byte {
	return append(append(b, byte(len(id.Bytes()))), id.Bytes()...)
}

// Decoder reads the elements of a table.
type Decoder struct{ b []byte }

// NewDecoder returns a Decoder of a table.
func NewDecoder(table []byte) *Decoder { return &Decoder{table} }

// More reports whether the table has further elements.
func (d *Decoder) More() bool { return len(d.b) > 0 }

// ID reads an object id from the table.
func (d *Decoder) ID() (object.ID, error) {
	if len(d.b) == 0 || len(d.b) < 1+int(d.b[0]) {
		return object.ID{}, fmt.Errorf("%w: table is cut off within an id", ErrDamaged)
	}
	n := 1 + int(d.b[0])
	id, err := object.FromBytes(d.b[1:n])
	if err != nil {
		return object.ID{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	d.b = d.b[n:]
	return id, nil
}

// Number reads a number from the table.
func (d *Decoder) Number() (int64, error) {
	n, length := binary.Uvarint(d.b)
	if length <= 0 || n > 1<<62 {
		return 0, fmt.Errorf("%w: invalid number in a table", ErrDamaged)
	}
	d.b = d.b[length:]
	return int64(n), nil
}

// AppendSize appends the size of an object, in bytes, to the table of a file of the kind size.
func AppendSize(b []byte, id object.ID, size int64) []byte {
	return binary.AppendUvarint(AppendID(b, id), uint64(size))
}

// Sizes returns the sizes of objects in the table of a file of the kind size.
func Sizes(table []byte) (map[object.ID]int64, error) {
	sizes := map[object.ID]int64{}
	for d := NewDecoder(table); d.More(); {
		id, err := d.ID()
		if err != nil {
			return nil, err
		}
		if sizes[id], err = d.Number(); err != nil {
			return nil, err
		}
	}
	return sizes, nil
}

// IDs returns the ids in the table of a file of the kind snap: the commits whose parents are missing.
func IDs(table []byte) (ids []object.ID, err error) {
	for d := NewDecoder(table); d.More(); {
		id, err := d.ID()
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}
