package odb

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"syscall"

	"github.com/artifactfs/artifactfs/git/object"
)

// body is the contents of a delta's base, either in memory (the field data) or in a file (the field at). A caller that
// gets a body from a function must call its method free.
type body struct {
	typ     object.Type
	size    int64
	data    []byte      // the whole contents, if at is nil
	at      io.ReaderAt // file with the contents; nil if they are in memory
	release func()      // closes the file; may be nil
}

// reader returns a reader of the contents, in memory or in the file.
func (b *body) reader() io.ReaderAt {
	if b.at == nil {
		return bytes.NewReader(b.data)
	}
	return b.at
}

// free releases the file with the contents. It does nothing if the contents are in memory.
func (b *body) free() {
	if b.release != nil {
		b.release()
	}
}

// keeper contains the steps of decoding in which Ingest and Unpack differ: how contents are stored, and how they are
// read again.
type keeper interface {
	// inMemory reports whether contents of this type and size are delivered in memory and not in a file.
	inMemory(t object.Type, size int64) bool
	// spool opens a file for contents that are not delivered in memory. It returns nil as the file if the contents need
	// not be stored.
	spool(size int64) (*os.File, error)
	// scratch opens a file for the deltas whose base has not arrived yet.
	scratch() (*os.File, error)
	// base returns the contents of record rec, which was delivered before.
	base(rec int) (body, error)
	// deliver receives a verified object. The parameter depth is the number of deltas between the object and plain
	// contents.
	deliver(rec int, depth int, o Object) error
}

// decoder decodes a pack stream into verified objects.
type decoder struct {
	format object.Format
	limit  int64 // maximum size of the contents of one object, and of one delta, in bytes
	in     *input
	table  *table
	keeper keeper
	// cache holds the contents of recent records, because several deltas in a row often have the same base.
	cache *lru[int]

	z inflater
	// hash computes the id of the current object.
	hash *object.Hasher
	// delta is reused for each delta that fits into it, so that a pack of small deltas allocates little.
	delta []byte // buffer for deltas that fit into it
	buf   []byte // buffer for streamed contents; created by the method copying

	// late is a temporary file with the inflated data of the deltas in byID and byRecord, in the order in which they were
	// stored.
	late     *os.File
	lateSize int64 // number of bytes in late
	// waiting is the number of deltas in byID and byRecord. If it is not zero at the end, the pack is incomplete.
	waiting int
	// byID lists REF deltas whose base has not arrived yet, by the id of the base. byRecord lists OFS deltas, by the
	// record of their base, which has arrived but is itself a delta that waits for its base.
	byID     map[object.ID][]lateDelta
	byRecord map[int][]lateDelta
}

// lateDelta is a delta that arrived before its base was decoded. Its inflated data is in decoder.late.
type lateDelta struct {
	rec      int   // record of the delta
	base     int   // record of its base; set by wake
	at, size int64 // offset of the inflated data in decoder.late, and its size, in bytes
}

// maxDelta is the maximum size, in bytes, of deltas that are read into memory as a whole. Larger deltas are streamed.
const maxDelta = 1 << 20

// newDecoder returns a decoder for one pack. The parameter limit is the maximum size of an object, and cache is the
// maximum total size of the contents that are kept as delta bases, both in bytes.
func newDecoder(f object.Format, limit, cache int64, in *input, t *table, k keeper) *decoder {
	return &decoder{
		format: f, limit: limit, in: in, table: t, keeper: k, cache: newLRU[int](cache),
		hash:  object.NewHasher(f, object.Blob, 0),
		delta: make([]byte, 0, 4<<10),
		byID:  map[object.ID][]lateDelta{}, byRecord: map[int][]lateDelta{},
	}
}

// copying returns the buffer for streamed contents. The buffer is allocated at the first call, because most packs have
// no contents that are streamed.
func (d *decoder) copying() []byte {
	if d.buf == nil {
		d.buf = make([]byte, copyBuffer)
	}
	return d.buf
}

// run decodes the whole stream and returns the trailer of the pack, which is its hash.
func (d *decoder) run() ([]byte, error) {
	// The file with the postponed deltas is not needed after the pack was decoded.
	defer func() { discard(d.late) }()
	var head [packHeaderSize]byte
	if _, err := io.ReadFull(d.in, head[:]); err != nil {
		return nil, diagnose(err, d.in.hit)
	}
	n, err := parsePackHeader(head[:])
	if err != nil {
		return nil, err
	}
	for range n {
		off := d.in.offset()
		if off > maxPackSize {
			return nil, corrupt("pack is larger than %d bytes", int64(maxPackSize))
		}
		if err := d.next(off); err != nil {
			return nil, atOffset(off, diagnose(err, d.in.hit))
		}
	}
	if d.waiting > 0 {
		return nil, d.missing()
	}
	sum, err := d.in.trailer()
	if err != nil {
		return nil, diagnose(err, d.in.hit)
	}
	return sum, nil
}

// missing returns the error for a delta whose base has not arrived: either the base is not in the pack, or the base is
// itself a delta whose chain leads back to this delta.
func (d *decoder) missing() error {
	var first lateDelta
	var base string
	// The iteration order of a map is random. Reporting the delta with the lowest record makes the error reproducible.
	for id, late := range d.byID {
		if base == "" || late[0].rec < first.rec {
			first, base = late[0], id.String()
		}
	}
	return atOffset(d.table.offset(first.rec), corrupt("delta base %s is not in the pack (needed by %d deltas)",
		base, d.waiting))
}

// next decodes the entry at the offset off, which is the next entry of the stream, and delivers the object. It
// postpones a delta whose base has not been decoded yet.
func (d *decoder) next(off int64) error {
	if err := d.in.startEntry(); err != nil {
		return err
	}
	e, err := readEntry(d.in, d.format, off)
	if err != nil {
		return err
	}
	if e.size > d.limit {
		return tooLarge(e.size, d.limit)
	}
	// The inflater stops at the end of the zlib data, so the input is then at the header of the next entry.
	if err := d.z.start(d.in); err != nil {
		return err
	}
	if e.isDelta() {
		return d.resolve(&e)
	}
	t := object.Type(e.kind)
	if limit := d.limitOf(t); e.size > limit {
		return tooLarge(e.size, limit)
	}
	var o Object
	if d.keeper.inMemory(t, e.size) {
		var data []byte
		if data, err = d.z.whole(nil, e.size); err == nil {
			o, err = d.hashed(t, data)
		}
	} else {
		o, err = d.output(t, e.size, func(w io.Writer) error { return d.z.stream(w, e.size, d.copying()) })
	}
	if err != nil {
		return err
	}
	rec, err := d.add(off)
	if err != nil {
		discard(o.File)
		return err
	}
	return d.deliver(rec, 0, o)
}

// limitOf returns the largest allowed size of an object of type t. Commits, trees and tags have a lower limit, because
// they may have to be held in memory.
func (d *decoder) limitOf(t object.Type) int64 {
	if t == object.Blob {
		return d.limit
	}
	return min(d.limit, object.MaxTreeSize)
}

// add appends a record for the entry that was just read, and returns the number of the record.
func (d *decoder) add(off int64) (int, error) {
	if err := d.in.settle(); err != nil {
		return 0, err
	}
	return d.table.add(off, d.in.crc), nil
}

// resolve applies the delta whose data is next in the input, and delivers the resulting object. If the base of the
// delta has not been decoded yet, resolve postpones the delta.
func (d *decoder) resolve(e *entry) error {
	base, ok := 0, false
	if e.kind == refDelta {
		base, ok = d.table.find(e.baseID)
	} else {
		if base, ok = d.table.at(e.baseOff); !ok {
			return corrupt("no entry at the offset of the delta base, %d", e.baseOff)
		}
		// If the type of the base is unknown, the base is itself a delta that waits for its base.
		ok = d.table.typ(base) != 0
	}
	if !ok {
		return d.postpone(e, base)
	}
	var o Object
	var err error
	// The header of the entry contains the size of the delta. The delta begins with the size of its result.
	if e.size <= maxDelta {
		if d.delta, err = d.z.whole(d.delta, e.size); err == nil {
			o, err = d.patch(base, d.delta, nil)
		}
	} else {
		r := bufio.NewReaderSize(&exactReader{&d.z, e.size}, copyBuffer)
		if o, err = d.patch(base, nil, r); err == nil {
			err = d.z.finish()
		}
	}
	if err == nil {
		var rec int
		if rec, err = d.add(e.off); err == nil {
			return d.deliver(rec, d.table.depth(base)+1, o)
		}
	}
	discard(o.File)
	return err
}

// postpone stores the delta whose data is next in the input. For an OFS delta, base is the record of its base.
func (d *decoder) postpone(e *entry, base int) error {
	if d.late == nil {
		f, err := d.keeper.scratch()
		if err != nil {
			return elsewhere{err}
		}
		d.late = f
	}
	if err := d.z.stream(d.late, e.size, d.copying()); err != nil {
		return err
	}
	rec, err := d.add(e.off)
	if err != nil {
		return err
	}
	// The base of a REF delta may not have arrived. The base of an OFS delta has arrived, but may itself wait for its
	// base.
	l := lateDelta{rec: rec, at: d.lateSize, size: e.size}
	if e.kind == refDelta {
		d.byID[e.baseID] = append(d.byID[e.baseID], l)
	} else {
		d.byRecord[base] = append(d.byRecord[base], l)
	}
	d.lateSize += e.size
	d.waiting++
	return nil
}

// deliver passes an object to d.keeper. It then decodes and delivers the deltas that have waited for this object as
// their base.
func (d *decoder) deliver(rec, depth int, o Object) error {
	if err := d.handOver(rec, depth, o); err != nil {
		return err
	}
	// The deltas to apply are kept in a list, not on the call stack, because a chain may be thousands of deltas long.
	for ready := d.wake(nil, rec, o.ID); len(ready) > 0; {
		l := ready[len(ready)-1]
		o, err := d.patchLate(l)
		if err == nil {
			err = d.handOver(l.rec, d.table.depth(l.base)+1, o)
		}
		if err != nil {
			return atOffset(d.table.offset(l.rec), err)
		}
		ready = d.wake(ready[:len(ready)-1], l.rec, o.ID)
	}
	return nil
}

// handOver passes one object to the method deliver of d.keeper. If the contents are in memory, handOver also adds them
// to the cache, because one of the next deltas probably has this object as its base.
func (d *decoder) handOver(rec, depth int, o Object) error {
	// The depth is bounded, because later reads of the object have to follow the whole chain.
	if depth > maxDepth {
		discard(o.File)
		return corrupt("delta chain is longer than %d", maxDepth)
	}
	if o.Data != nil {
		d.cache.put(rec, o.Type, o.Data)
	}
	if err := d.keeper.deliver(rec, depth, o); err != nil {
		return elsewhere{err}
	}
	return nil
}

// wake removes the deltas whose base is the record rec from the lists of waiting deltas, appends these deltas to ready,
// and returns ready. The parameter id is the id of the base.
func (d *decoder) wake(ready []lateDelta, rec int, id object.ID) []lateDelta {
	if d.waiting == 0 {
		return ready
	}
	for _, late := range [][]lateDelta{d.byID[id], d.byRecord[rec]} {
		for _, l := range late {
			l.base = rec
			ready = append(ready, l)
		}
		d.waiting -= len(late)
	}
	delete(d.byID, id)
	delete(d.byRecord, rec)
	return ready
}

// patchLate applies a delta that was stored by postpone, and returns the resulting object.
func (d *decoder) patchLate(l lateDelta) (Object, error) {
	data := io.NewSectionReader(d.late, l.at, l.size)
	if l.size > maxDelta {
		return d.patch(l.base, nil, bufio.NewReaderSize(data, copyBuffer))
	}
	small := make([]byte, l.size)
	if _, err := io.ReadFull(data, small); err != nil {
		return Object{}, elsewhere{err}
	}
	return d.patch(l.base, small, nil)
}

// patch applies a delta to the contents of the record base and returns the resulting object. The parameter small
// contains the delta. If small is nil, patch reads the delta from r.
func (d *decoder) patch(base int, small []byte, r byteSource) (Object, error) {
	b, err := d.body(base)
	if err != nil {
		return Object{}, elsewhere{err}
	}
	defer b.free()
	// The common case: delta and base are both in memory, so the result is computed there without a reader.
	if r == nil && b.at == nil {
		s := sliceReader{small, 0}
		if _, size, err := readDeltaSizes(&s); err == nil && d.keeper.inMemory(b.typ, size) {
			data, err := applyDelta(b.data, small, d.limitOf(b.typ))
			if err != nil {
				return Object{}, err
			}
			o, err := d.hashed(b.typ, data)
			o.base = b.data
			return o, err
		}
	}
	if r == nil {
		r = bytes.NewReader(small)
	}
	baseSize, size, err := readDeltaSizes(r)
	switch {
	case err != nil:
		return Object{}, err
	case baseSize != b.size:
		return Object{}, corrupt("delta needs a base of %d bytes, but the base has %d", baseSize, b.size)
	case size > d.limitOf(b.typ):
		return Object{}, tooLarge(size, d.limitOf(b.typ))
	}
	return d.output(b.typ, size, func(w io.Writer) error {
		return streamDelta(w, b.reader(), baseSize, size, r, d.copying())
	})
}

// body returns the contents of a record that was delivered before.
func (d *decoder) body(rec int) (body, error) {
	if t, data, ok := d.cache.get(rec); ok {
		return body{typ: t, size: int64(len(data)), data: data}, nil
	}
	b, err := d.keeper.base(rec)
	// The cache holds only contents in memory, so a base in a file is not added.
	if err == nil && b.at == nil {
		d.cache.put(rec, b.typ, b.data)
	}
	return b, err
}

// hashed returns the object with the contents data. It computes the object's id.
func (d *decoder) hashed(t object.Type, data []byte) (Object, error) {
	d.hash.Reset(t, int64(len(data)))
	d.hash.Write(data)
	id, err := d.hash.Sum()
	return Object{ID: id, Type: t, Size: int64(len(data)), Data: data}, err
}

// output returns an object and computes its id. The function write writes the contents of the object; they are stored
// in memory or in a file, as d.keeper decides.
func (d *decoder) output(t object.Type, size int64, write func(io.Writer) error) (Object, error) {
	if d.keeper.inMemory(t, size) {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			return Object{}, err
		}
		// The contents are copied to a slice without spare capacity, so that the cache counts the memory that they occupy.
		return d.hashed(t, append([]byte{}, b.Bytes()...))
	}
	f, err := d.keeper.spool(size)
	if err != nil {
		return Object{}, elsewhere{err}
	}
	d.hash.Reset(t, size)
	var w io.Writer = d.hash
	if f != nil {
		w = io.MultiWriter(f, d.hash)
	}
	err = write(w)
	o := Object{Type: t, Size: size, File: f}
	if err == nil {
		o.ID, err = d.hash.Sum()
	}
	if err != nil {
		discard(f)
		return Object{}, err
	}
	return o, nil
}

// exactReader reads exactly left bytes from r. If r ends earlier, the pack is corrupt.
type exactReader struct {
	r    io.Reader // source of the bytes
	left int64     // number of bytes that are still to be read
}

// Read returns ErrCorrupt if r ends before left bytes were read.
func (r *exactReader) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	n, err := r.r.Read(p[:min(int64(len(p)), r.left)])
	if r.left -= int64(n); err == io.EOF {
		err = nil
		if r.left > 0 {
			err = short(io.EOF)
		}
	}
	return n, err
}

// discard closes a temporary file and unlinks its name. It does not use os.Remove: the name of a file that was opened
// with O_TMPFILE is that of a directory, and os.Remove would remove the directory if it is empty.
func discard(f *os.File) {
	if f != nil {
		f.Close()
		syscall.Unlink(f.Name())
	}
}
