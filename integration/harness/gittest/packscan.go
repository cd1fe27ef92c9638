package gittest

import (
	"bufio"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/artifactfs/artifactfs/git/object"
)

// packCount is the result of counting the objects of a pack.
type packCount struct {
	objects int // number of complete objects
	blobs   []object.ID
	err     error // reason why not all objects could be read; nil if all were read
}

// bases returns objects that a thin pack uses as bases of deltas but does not contain. A served repository has all of
// them.
type bases interface {
	object(id object.ID) (object.Type, []byte, error)
}

const (
	ofsDelta = 6
	refDelta = 7
	// maximum size of contents in bytes; git creates no deltas of larger files (default of core.bigFileThreshold)
	maxContent  = 512 << 20
	maxBaseKept = 64 << 20 // maximum total size, in bytes, of the contents that are kept as bases of deltas
)

// packReader reads a pack in a file (gitformat-pack) to find out which blobs it contains.
type packReader struct {
	format object.Format
	src    io.ReaderAt
	size   int64
	bases  bases

	next    *counter // reader that is at the start of the next object
	inflate io.ReadCloser
	hasher  *object.Hasher
	types   map[int64]object.Type // types of the objects that were read, by offset; a delta has the type of its base
	kept    map[int64][]byte      // contents of some blobs, by offset
	held    int                   // number of bytes in kept
}

// countPack counts the objects of a pack of size bytes.
func countPack(f object.Format, src io.ReaderAt, size int64, b bases) packCount {
	p := &packReader{format: f, src: src, size: size, bases: b, types: map[int64]object.Type{}, kept: map[int64][]byte{}}
	p.hasher = object.NewHasher(f, object.Blob, 0)
	return p.count()
}

func (p *packReader) count() (c packCount) {
	var head [12]byte
	if _, err := p.src.ReadAt(head[:], 0); err != nil {
		c.err = fmt.Errorf("read pack header: %w", err)
		return c
	}
	n, err := packHeader(head[:])
	if err != nil {
		c.err = err
		return c
	}
	for at := int64(len(head)); uint32(c.objects) < n; {
		t, id, next, err := p.object(at)
		if err != nil {
			c.err = fmt.Errorf("read object %d of %d at %d: %w", c.objects+1, n, at, err)
			return c
		}
		if t == object.Blob {
			c.blobs = append(c.blobs, id)
		}
		c.objects++
		at = next
	}
	return c
}

func packHeader(b []byte) (objects uint32, err error) {
	if string(b[:4]) != "PACK" || binary.BigEndian.Uint32(b[4:]) != 2 {
		return 0, fmt.Errorf("read pack header: invalid header %q", b[:8])
	}
	return binary.BigEndian.Uint32(b[8:]), nil
}

// element is the header of an object in a pack.
type element struct {
	kind   uint8
	size   uint64 // size of the contents or of the delta, in bytes
	offset int64  // offset of the base if kind is ofsDelta
	base   object.ID
	data   *counter // reader that is at the start of the compressed bytes
}

// counter is a buffered reader that knows its position. It implements io.ByteReader, so that decompression does not
// read bytes of the next object.
type counter struct {
	*bufio.Reader
	at int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.at += int64(n)
	return n, err
}

func (c *counter) ReadByte() (byte, error) {
	b, err := c.Reader.ReadByte()
	if err == nil {
		c.at++
	}
	return b, err
}

func (p *packReader) element(at int64) (e element, err error) {
	if e.data = p.next; e.data == nil || e.data.at != at {
		e.data = &counter{bufio.NewReaderSize(io.NewSectionReader(p.src, at, p.size-at), 16<<10), at}
	}
	b, err := e.data.ReadByte()
	if err != nil {
		return e, noEOF(err)
	}
	e.kind, e.size = b>>4&7, uint64(b&15)
	for shift := 4; b&0x80 != 0; shift += 7 {
		if b, err = e.data.ReadByte(); err != nil {
			return e, noEOF(err)
		}
		if shift > 57 {
			return e, errors.New("size is too long")
		}
		e.size |= uint64(b&0x7f) << shift
	}
	switch e.kind {
	case ofsDelta:
		back := int64(-1)
		for more := true; more; {
			if b, err = e.data.ReadByte(); err != nil {
				return e, noEOF(err)
			}
			if back = (back+1)<<7 | int64(b&0x7f); back < 0 || back > at {
				return e, errors.New("delta base lies before the pack")
			}
			more = b&0x80 != 0
		}
		e.offset = at - back
	case refDelta:
		id := make([]byte, p.format.Size())
		if _, err := io.ReadFull(e.data, id); err != nil {
			return e, noEOF(err)
		}
		e.base, err = object.FromBytes(id)
	}
	return e, err
}

// object reads the object at the offset at. It returns the type, the ID if the object is a blob, and the offset of the
// next object.
func (p *packReader) object(at int64) (t object.Type, id object.ID, next int64, err error) {
	e, err := p.element(at)
	if err != nil {
		return 0, id, 0, err
	}
	p.next = e.data
	switch e.kind {
	case uint8(object.Commit), uint8(object.Tree), uint8(object.Tag):
		t = object.Type(e.kind)
		err = p.inflateTo(io.Discard, e)
	case uint8(object.Blob):
		t = object.Blob
		p.hasher.Reset(t, int64(e.size))
		if err = p.inflateTo(p.hasher, e); err == nil {
			id, err = p.hasher.Sum()
		}
	case ofsDelta, refDelta:
		if t, err = p.deltaType(e); err != nil {
			return 0, id, 0, err
		}
		var delta []byte
		if delta, err = p.inflateAll(e); err == nil && t == object.Blob {
			var content []byte
			if content, err = p.apply(e, delta, 0); err == nil {
				p.keep(at, content)
				p.hasher.Reset(t, int64(len(content)))
				p.hasher.Write(content)
				id, err = p.hasher.Sum()
			}
		}
	default:
		err = fmt.Errorf("unknown type %d", e.kind)
	}
	p.types[at] = t
	return t, id, e.data.at, err
}

func (p *packReader) deltaType(e element) (object.Type, error) {
	if e.kind == refDelta {
		t, _, err := p.bases.object(e.base)
		return t, err
	}
	t, ok := p.types[e.offset]
	if !ok {
		return 0, fmt.Errorf("read delta: no object at offset %d of its base", e.offset)
	}
	return t, nil
}

// maxChain is the maximum number of deltas in a chain. It is above the length of the longest chain that git creates
// (4095, the limit of pack.depth).
const maxChain = 5000

// blobAt returns the contents of the blob at an offset, which has been read before.
func (p *packReader) blobAt(at int64, depth int) ([]byte, error) {
	if content, ok := p.kept[at]; ok {
		return content, nil
	}
	if depth > maxChain {
		return nil, errors.New("delta chain is too long")
	}
	e, err := p.element(at)
	if err != nil {
		return nil, err
	}
	content, err := p.inflateAll(e)
	if err == nil && e.kind != uint8(object.Blob) {
		content, err = p.apply(e, content, depth+1)
	}
	if err == nil {
		p.keep(at, content)
	}
	return content, err
}

func (p *packReader) keep(at int64, content []byte) {
	if p.held+len(content) > maxBaseKept {
		clear(p.kept)
		p.held = 0
	}
	p.kept[at] = content
	p.held += len(content)
}

// apply returns the contents of the object that the delta of e describes.
func (p *packReader) apply(e element, delta []byte, depth int) ([]byte, error) {
	var base []byte
	var err error
	if e.kind == refDelta {
		_, base, err = p.bases.object(e.base)
	} else {
		base, err = p.blobAt(e.offset, depth)
	}
	if err != nil {
		return nil, err
	}
	return applyDelta(base, delta)
}

func (p *packReader) inflateAll(e element) ([]byte, error) {
	var w sliceWriter
	err := p.inflateTo(&w, e)
	return w.b, err
}

// sliceWriter collects the written bytes, and returns an error for more than maxContent bytes.
type sliceWriter struct{ b []byte }

func (w *sliceWriter) Write(b []byte) (int, error) {
	if len(w.b)+len(b) > maxContent {
		return 0, fmt.Errorf("contents have more than %d bytes", maxContent)
	}
	w.b = append(w.b, b...)
	return len(b), nil
}

func (p *packReader) inflateTo(w io.Writer, e element) error {
	if p.inflate == nil {
		z, err := zlib.NewReader(e.data)
		if err != nil {
			return noEOF(err)
		}
		p.inflate = z
	} else if err := p.inflate.(zlib.Resetter).Reset(e.data, nil); err != nil {
		return noEOF(err)
	}
	n, err := io.Copy(w, p.inflate)
	if err != nil {
		return noEOF(err)
	}
	if uint64(n) != e.size {
		return fmt.Errorf("inflate object: got %d bytes, header states %d", n, e.size)
	}
	return nil
}

func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// applyDelta returns the result of applying a delta to base (gitformat-pack, "Deltified representation").
func applyDelta(base, delta []byte) ([]byte, error) {
	bad := errors.New("invalid delta")
	from, delta, ok := deltaSize(delta)
	if !ok || from != uint64(len(base)) {
		return nil, bad
	}
	to, delta, ok := deltaSize(delta)
	if !ok || to > maxContent {
		return nil, bad
	}
	var out []byte
	for len(delta) > 0 {
		op := delta[0]
		delta = delta[1:]
		if op&0x80 == 0 { // the instruction inserts bytes
			if op == 0 || int(op) > len(delta) {
				return nil, bad
			}
			out, delta = append(out, delta[:op]...), delta[op:]
			continue
		}
		var offset, size uint64
		for i := range 7 {
			if op&(1<<i) == 0 {
				continue
			}
			if len(delta) == 0 {
				return nil, bad
			}
			if i < 4 {
				offset |= uint64(delta[0]) << (8 * i)
			} else {
				size |= uint64(delta[0]) << (8 * (i - 4))
			}
			delta = delta[1:]
		}
		if size == 0 {
			size = 0x10000
		}
		if offset+size > uint64(len(base)) || uint64(len(out))+size > to {
			return nil, bad
		}
		out = append(out, base[offset:offset+size]...)
	}
	if uint64(len(out)) != to {
		return nil, bad
	}
	return out, nil
}

func deltaSize(b []byte) (n uint64, rest []byte, ok bool) {
	for i, c := range b {
		if i > 8 {
			break
		}
		n |= uint64(c&0x7f) << (7 * i)
		if c&0x80 == 0 {
			return n, b[i+1:], true
		}
	}
	return 0, nil, false
}
