package odb

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/artifactfs/artifactfs/git/object"
)

// Object is a verified object of a pack.
type Object struct {
	ID   object.ID
	Type object.Type
	Size int64
	// Data holds the contents if File is nil. The receiver may keep Data but must not modify it, because later deltas
	// refer to it.
	Data []byte
	// File holds contents that are larger than UnpackOptions.SpoolOver. The receiver must close it.
	File *os.File
	// base holds the contents of the delta base if the object was a delta and both are in memory.
	base []byte
}

// Discard closes and removes the file with the contents, if there is one.
func (o Object) Discard() { discard(o.File) }

// UnpackOptions configures Unpack.
type UnpackOptions struct {
	Format    object.Format
	SpoolOver int64 // contents of more than this number of bytes are stored in a file
	// size in bytes above which an object is refused with ErrTooLarge, before memory is allocated for it
	MaxObjectSize int64
	// Spool opens a file for contents of size bytes. If size is 0, the file is for the deltas that wait for their base,
	// whose size is not known.
	Spool func(size int64) (*os.File, error)
	// Base returns the contents of an object that was passed to sink during this call: a reader, the size in bytes, and
	// the function that releases the reader.
	Base func(id object.ID) (io.ReaderAt, int64, func(), error)
}

// unpackCache bounds the size, in bytes, of the recent contents that Unpack caches as delta bases.
const unpackCache = 4 << 20

// Unpack reads a pack from r to its end and calls the function sink with each object as soon as the object was received
// and verified. An object whose delta precedes its base follows after the base. Unpack returns the number of objects
// that it has passed to sink; these objects are valid even if Unpack returns an error. The pack must contain the bases
// of all its deltas. If sink returns an error, Unpack returns that error.
func Unpack(ctx context.Context, r io.Reader, o UnpackOptions, sink func(Object) error) (objects int, err error) {
	in := newInput(r, o.Format.New(), ctx.Err, nil)
	u := &unpacking{UnpackOptions: o, table: newTable(o.Format), sink: sink}
	if _, err := newDecoder(o.Format, o.MaxObjectSize, unpackCache, in, u.table, u).run(); err != nil {
		return u.objects, fmt.Errorf("unpack objects: %w", err)
	}
	return u.objects, nil
}

// unpacking is the keeper that Unpack passes to the decoder. It stores nothing, and reads bases by calling
// UnpackOptions.Base.
type unpacking struct {
	UnpackOptions
	table   *table
	sink    func(Object) error
	objects int
}

var _ keeper = (*unpacking)(nil)

// inMemory reports whether contents of this size are passed in memory.
func (u *unpacking) inMemory(_ object.Type, size int64) bool { return size <= u.SpoolOver }

// spool opens a file for contents that are not passed in memory.
func (u *unpacking) spool(size int64) (*os.File, error) { return u.Spool(size) }

// scratch opens a file for deltas that wait for their base.
func (u *unpacking) scratch() (*os.File, error) { return u.Spool(0) }

// base returns the contents of the record rec. They are read into memory unless they are large.
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

// deliver records the id of the object and passes the object to the sink.
func (u *unpacking) deliver(rec, depth int, o Object) error {
	u.table.name(rec, o.ID, o.Type, depth)
	u.objects++
	return u.sink(o)
}
