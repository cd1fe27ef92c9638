package odb

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"syscall"

	"github.com/artifactfs/artifactfs/object"
)

// body is the contents of a delta's base, in memory (data) or readable through at. The user of a body must call free.
type body struct {
	typ     object.Type
	size    int64
	data    []byte      // whole contents, if at is nil
	at      io.ReaderAt // source of the contents, if they are not in memory
	release func()      // may be nil
}

// reader returns a reader of the contents, wherever they are kept.
func (b *body) reader() io.ReaderAt {
	if b.at == nil {
		return bytes.NewReader(b.data)
	}
	return b.at
}

// free releases the file behind at. It does nothing for contents in memory.
func (b *body) free() {
	if b.release != nil {
		b.release()
	}
}

// keeper is the part of decoding that differs between Ingest and Unpack.
type keeper interface {
	// inMemory reports whether contents are delivered in memory.
	inMemory(t object.Type, size int64) bool
	// spool opens the file for a content that is not; nil if its bytes are not wanted.
	spool(size int64) (*os.File, error)
	// scratch opens a file for deltas whose base has not arrived yet.
	scratch() (*os.File, error)
	// base returns the content of a record that was delivered.
	base(rec int) (body, error)
	// deliver takes over a verified object.
	deliver(rec int, depth int, o Object) error
}

// decoder turns a pack stream into verified objects. Its cache holds recent contents by record.
type decoder struct {
	format object.Format
	limit  int64 // bytes of one content or delta
	in     *input
	table  *table
	keeper keeper
	// cache saves decoding a base again, because several deltas in a row often share one.
	cache *lru[int]

	z    inflater
	hash *object.Hasher
	// delta is reused for each small delta, so that a pack of small deltas allocates little.
	delta []byte // scratch for deltas that fit into it
	buf   []byte // see copying

	// Deltas whose base has not arrived yet are in late, one after the other.
	late     *os.File
	lateSize int64
	// waiting is the number of deltas in byID and byRecord. The pack is incomplete if it is not zero at the end.
	waiting int
	// byID lists REF deltas by the id of their base; byRecord lists OFS deltas by the record of their base, which is
	// itself a delta that waits.
	byID     map[object.ID][]lateDelta
	byRecord map[int][]lateDelta
}

// lateDelta is a delta whose base was not decoded yet when the delta arrived. Its inflated data waits in
// decoder.late.
type lateDelta struct {
	rec      int
	base     int   // record of its base, once that is known
	at, size int64 // position and size of its inflated data in decoder.late, in bytes
}

// maxDelta is the size of deltas that are read into memory at once, in bytes; larger ones stream.
const maxDelta = 1 << 20

// newDecoder returns a decoder for one pack. limit bounds one object, and cache the contents kept as delta bases, in
// bytes.
func newDecoder(f object.Format, limit, cache int64, in *input, t *table, k keeper) *decoder {
	return &decoder{
		format: f, limit: limit, in: in, table: t, keeper: k, cache: newLRU[int](cache),
		hash:  object.NewHasher(f, object.Blob, 0),
		delta: make([]byte, 0, 4<<10),
		byID:  map[object.ID][]lateDelta{}, byRecord: map[int][]lateDelta{},
	}
}

// copying returns the buffer for contents that stream; most packs need none.
func (d *decoder) copying() []byte {
	if d.buf == nil {
		d.buf = make([]byte, copyBuffer)
	}
	return d.buf
}

// run decodes the whole stream and returns the pack's trailer.
func (d *decoder) run() ([]byte, error) {
	// The scratch file of late deltas has no use after the pack was decoded.
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
			return nil, corrupt("pack over %d bytes", int64(maxPackSize))
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

// missing returns the error for a delta whose base never arrived: it is not in the pack, or it
// depends on the delta itself.
func (d *decoder) missing() error {
	var first lateDelta
	var base string
	// Map order is random; the delta with the lowest record makes the error the same each time.
	for id, late := range d.byID {
		if base == "" || late[0].rec < first.rec {
			first, base = late[0], id.String()
		}
	}
	return atOffset(d.table.offset(first.rec), corrupt("base %s of delta is not in the pack (%d deltas wait)", base, d.waiting))
}

// next decodes the entry at off, which is the next one in the stream, and delivers the object. A delta without its
// base is postponed.
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

// limitOf is the largest size of an object of type t. All but blobs may have to be held in memory.
func (d *decoder) limitOf(t object.Type) int64 {
	if t == object.Blob {
		return d.limit
	}
	return min(d.limit, object.MaxTreeSize)
}

// add adds a record for the entry that was just read, and returns its number.
func (d *decoder) add(off int64) (int, error) {
	if err := d.in.settle(); err != nil {
		return 0, err
	}
	return d.table.add(off, d.in.crc), nil
}

// resolve applies the delta whose data is next in the input, or stores it until its base has arrived.
func (d *decoder) resolve(e *entry) error {
	base, ok := 0, false
	if e.kind == refDelta {
		base, ok = d.table.find(e.baseID)
	} else {
		if base, ok = d.table.at(e.baseOff); !ok {
			return corrupt("no entry at delta base offset %d", e.baseOff)
		}
		// A base in this pack that has no type yet is itself a delta that waits for its base.
		ok = d.table.typ(base) != 0
	}
	if !ok {
		return d.postpone(e, base)
	}
	var o Object
	var err error
	// The inflated size of a delta is known from the header, but the size of its result only from the delta.
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

// postpone stores the delta whose data is next in the input. base is the record of an OFS delta's base.
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
	// A REF delta can precede its base; the base of an OFS delta has a record but may wait itself.
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

// deliver passes an object to the keeper, and then the objects that waited for it as their base.
func (d *decoder) deliver(rec, depth int, o Object) error {
	if err := d.handOver(rec, depth, o); err != nil {
		return err
	}
	// The deltas to apply are kept in a list and not resolved by recursion: a chain may be thousands of deltas long.
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

// handOver passes one object to the keeper. Contents in memory also go to the cache, because the next delta probably
// uses them.
func (d *decoder) handOver(rec, depth int, o Object) error {
	// The depth is bounded because a later read has to follow the whole chain.
	if depth > maxDepth {
		discard(o.File)
		return corrupt("chain of more than %d deltas", maxDepth)
	}
	if o.Data != nil {
		d.cache.put(rec, o.Type, o.Data)
	}
	if err := d.keeper.deliver(rec, depth, o); err != nil {
		return elsewhere{err}
	}
	return nil
}

// wake adds to ready the deltas that waited for record rec, which turned out to be id.
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

// patchLate applies a delta that waited.
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

// patch applies a delta to the contents of record base. The delta is small, or, if that is nil,
// read from r.
func (d *decoder) patch(base int, small []byte, r byteSource) (Object, error) {
	b, err := d.body(base)
	if err != nil {
		return Object{}, elsewhere{err}
	}
	defer b.free()
	// Delta and base are both in memory, which is the common case: the result is computed without a reader.
	if r == nil && b.at == nil {
		s := sliceReader{small, 0}
		if _, size, err := readDeltaSizes(&s); err == nil && d.keeper.inMemory(b.typ, size) {
			data, err := applyDelta(b.data, small, d.limitOf(b.typ))
			if err != nil {
				return Object{}, err
			}
			return d.hashed(b.typ, data)
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
		return Object{}, corrupt("delta wants a base of %d bytes, it has %d", baseSize, b.size)
	case size > d.limitOf(b.typ):
		return Object{}, tooLarge(size, d.limitOf(b.typ))
	}
	return d.output(b.typ, size, func(w io.Writer) error {
		return streamDelta(w, b.reader(), baseSize, size, r, d.copying())
	})
}

// body returns the content of a record that was delivered.
func (d *decoder) body(rec int) (body, error) {
	if t, data, ok := d.cache.get(rec); ok {
		return body{typ: t, size: int64(len(data)), data: data}, nil
	}
	b, err := d.keeper.base(rec)
	// A base in a file stays there: the cache holds contents in memory only.
	if err == nil && b.at == nil {
		d.cache.put(rec, b.typ, b.data)
	}
	return b, err
}

// hashed returns the object with the contents data, after it has computed its id.
func (d *decoder) hashed(t object.Type, data []byte) (Object, error) {
	d.hash.Reset(t, int64(len(data)))
	d.hash.Write(data)
	id, err := d.hash.Sum()
	return Object{ID: id, Type: t, Size: int64(len(data)), Data: data}, err
}

// output collects the bytes that write produces, in memory or in a file as the keeper decides, and
// hashes them.
func (d *decoder) output(t object.Type, size int64, write func(io.Writer) error) (Object, error) {
	if d.keeper.inMemory(t, size) {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			return Object{}, err
		}
		// The copy has no spare capacity, so that the cache counts the memory that the contents really occupy.
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

// exactReader reads exactly left bytes; ending earlier is corruption.
type exactReader struct {
	r    io.Reader
	left int64
}

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

// discard closes a spool file and removes it. It must not remove the file's name: that of an
// unnamed temporary file (O_TMPFILE) is its directory, which os.Remove would remove.
func discard(f *os.File) {
	if f != nil {
		f.Close()
		syscall.Unlink(f.Name())
	}
}
