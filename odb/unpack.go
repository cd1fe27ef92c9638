package odb

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/artifactfs/artifactfs/object"
)

// Object is a verified object of an unpacked stream.
type Object struct {
	ID   object.ID
	Type object.Type
	Size int64
	// Data is the content if File is nil. It may be kept, but not changed: later deltas read it
	// too.
	Data []byte
	// File holds a content over UnpackOptions.SpoolOver. It is the receiver's to close.
	File *os.File
}

// UnpackOptions are options of Unpack.
type UnpackOptions struct {
	Format        object.Format
	SpoolOver     int64 // larger contents go to a file, in bytes
	MaxObjectSize int64 // larger ones are refused with ErrTooLarge before anything is allocated, in bytes
	// Spool opens a file for a content of size bytes, or for deltas that have to wait (size 0).
	Spool func(size int64) (*os.File, error)
	// Base returns the contents of an object that the sink received earlier in this call, and the
	// function that releases them.
	Base func(id object.ID) (io.ReaderAt, int64, func(), error)
}

// unpackCache bounds the recent contents that Unpack keeps as delta bases, in bytes.
const unpackCache = 4 << 20

// Unpack reads a pack from r to its end and passes each verified object to sink as it arrives; a
// delta that precedes its base is delivered after it. It returns the number of objects delivered,
// which are valid even after an error. The pack must be self-contained. An error of sink ends it.
func Unpack(ctx context.Context, r io.Reader, o UnpackOptions, sink func(Object) error) (objects int, err error) {
	in := newInput(r, o.Format.New(), ctx.Err, nil)
	u := &unpacking{UnpackOptions: o, table: newTable(o.Format), sink: sink}
	if _, err := newDecoder(o.Format, o.MaxObjectSize, unpackCache, in, u.table, u).run(); err != nil {
		return u.objects, fmt.Errorf("unpack: %w", err)
	}
	return u.objects, nil
}

// unpacking is the keeper of Unpack. It stores nothing: bases are read back from the caller.
type unpacking struct {
	UnpackOptions
	table   *table
	sink    func(Object) error
	objects int
}

var _ keeper = (*unpacking)(nil)

func (u *unpacking) inMemory(_ object.Type, size int64) bool { return size <= u.SpoolOver }

func (u *unpacking) spool(size int64) (*os.File, error) { return u.Spool(size) }

func (u *unpacking) scratch() (*os.File, error) { return u.Spool(0) }

func (u *unpacking) base(rec int) (body, error) {
	id := u.table.id(rec)
	at, size, release, err := u.Base(id)
	if err != nil {
		return body{}, fmt.Errorf("read delta base %s: %w", id, err)
	}
	b := body{typ: u.table.typ(rec), size: size, at: at, release: release}
	if size > min(u.SpoolOver, maxInMemory) {
		return b, nil
	}
	defer b.free()
	data := make([]byte, size)
	if n, err := at.ReadAt(data, 0); int64(n) < size {
		return body{}, fmt.Errorf("read delta base %s: %w", id, err)
	}
	return body{typ: b.typ, size: size, data: data}, nil
}

func (u *unpacking) deliver(rec, depth int, o Object) error {
	u.table.name(rec, o.ID, o.Type, depth)
	u.objects++
	return u.sink(o)
}
