package packs

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"io"

	"github.com/klauspost/compress/zlib"

	"github.com/artifactfs/artifactfs/git/object"
)

// Place is the part of a pack that contains one object without delta: the header of the entry, and the compressed
// contents.
type Place struct {
	Offset, Length int64
}

// end returns the offset of the byte after the entry.
func (p Place) end() int64 { return p.Offset + p.Length }

// checksum returns the hash function for the checksum at the end of a pack. The checksum must only detect accidents, so
// SHA-1 is used without collision detection, which makes it several times as fast.
func checksum(f object.Format) hash.Hash {
	if f == object.SHA256 {
		return sha256.New()
	}
	return sha1.New()
}

// appendHead appends the header of a pack with n objects.
func appendHead(b []byte, n int) []byte {
	return binary.BigEndian.AppendUint32(append(b, "PACK\x00\x00\x00\x02"...), uint32(n))
}

// typeCodes are the codes of object types in the entries of a pack.
var typeCodes = map[object.Type]byte{object.Commit: 1, object.Tree: 2, object.Blob: 3, object.Tag: 4}

// appendEntryHead appends the header of an entry: the type and the size of the contents.
func appendEntryHead(b []byte, t object.Type, size int64) []byte {
	first := typeCodes[t]<<4 | byte(size&15)
	for size >>= 4; size > 0; size >>= 7 {
		b = append(b, first|0x80)
		first = byte(size & 0x7f)
	}
	return append(b, first)
}

// Writer writes a file of the kind tree or blob. Its methods must be called by one goroutine.
type Writer struct {
	w      io.Writer
	format object.Format
	n      int // number of objects that must still be added
	at     int64
	pack   hash.Hash // checksum of the pack so far
	file   hash.Hash // hash of the file so far
	zip    *zlib.Writer
	buf    bytes.Buffer
	table  []byte
}

// NewWriter returns a Writer that writes to w a file whose pack contains n objects.
func NewWriter(w io.Writer, f object.Format, n int) (*Writer, error) {
	p := &Writer{w: w, format: f, n: n, pack: checksum(f), file: sha256.New()}
	p.zip, _ = zlib.NewWriterLevel(nil, zlib.BestSpeed)
	return p, p.write(appendHead(nil, n))
}

// write writes bytes of the pack to the file.
func (p *Writer) write(b []byte) error {
	p.pack.Write(b)
	return p.writeFile(b)
}

// writeFile writes bytes to the file, and adds them to its hash.
func (p *Writer) writeFile(b []byte) error {
	p.file.Write(b)
	n, err := p.w.Write(b)
	p.at += int64(n)
	return err
}

// Write implements io.Writer for the compressor of large contents.
func (p *Writer) Write(b []byte) (int, error) { return len(b), p.write(b) }

// maxBuffered is the size, in bytes, up to which the compressed contents of an object are collected in memory.
const maxBuffered = 1 << 20

// Add writes an object whose contents have size bytes. It returns the place of the object.
func (p *Writer) Add(id object.ID, t object.Type, size int64, contents io.Reader) (Place, error) {
	if p.n == 0 {
		return Place{}, fmt.Errorf("add object %s: pack has all its objects already", id)
	}
	p.n--
	at := Place{Offset: p.at}
	var err error
	if size > maxBuffered {
		if err = p.write(appendEntryHead(nil, t, size)); err == nil {
			err = p.deflate(p, size, contents)
		}
	} else {
		p.buf.Reset()
		p.buf.Write(appendEntryHead(p.buf.AvailableBuffer(), t, size))
		if err = p.deflate(&p.buf, size, contents); err == nil {
			err = p.write(p.buf.Bytes())
		}
	}
	if err != nil {
		return Place{}, fmt.Errorf("add object %s: %w", id, err)
	}
	at.Length = p.at - at.Offset
	p.table = binary.AppendUvarint(binary.AppendUvarint(AppendID(p.table, id), uint64(at.Offset)), uint64(at.Length))
	return at, nil
}

// deflate writes the compressed contents to w.
func (p *Writer) deflate(w io.Writer, size int64, contents io.Reader) error {
	p.zip.Reset(w)
	n, err := io.Copy(p.zip, contents)
	if err == nil && n != size {
		err = fmt.Errorf("contents have %d bytes, but the object has %d", n, size)
	}
	if err == nil {
		err = p.zip.Close()
	}
	return err
}

// AddEntry writes an object as an entry that another pack contains.
func (p *Writer) AddEntry(id object.ID, entry []byte) (Place, error) {
	if p.n == 0 {
		return Place{}, fmt.Errorf("add object %s: pack has all its objects already", id)
	}
	p.n--
	at := Place{p.at, int64(len(entry))}
	p.table = binary.AppendUvarint(binary.AppendUvarint(AppendID(p.table, id), uint64(at.Offset)), uint64(at.Length))
	return at, p.write(entry)
}

// Close writes the checksum of the pack, the table and the footer. All objects must have been added before.
func (p *Writer) Close() error {
	if p.n != 0 {
		return fmt.Errorf("close pack: %d objects were not added", p.n)
	}
	if err := p.writeFile(p.pack.Sum(nil)); err != nil {
		return err
	}
	_, err := p.w.Write(Finish(p.table, p.file))
	return err
}

// Places returns the places of the objects in the table of a file of the kind tree or blob. body is the length of the
// file's pack in bytes.
func Places(table []byte, body int64) (map[object.ID]Place, error) {
	places := map[object.ID]Place{}
	for d := NewDecoder(table); d.More(); {
		id, err := d.ID()
		if err != nil {
			return nil, err
		}
		var p Place
		if p.Offset, err = d.Number(); err == nil {
			p.Length, err = d.Number()
		}
		if err != nil {
			return nil, err
		}
		if p.Offset > body || p.Length > body-p.Offset {
			return nil, fmt.Errorf("%w: object %s lies outside of the pack", ErrDamaged, id)
		}
		places[id] = p
	}
	return places, nil
}

// parseEntry splits an entry of a pack. It returns the code of the type, the size of the contents, and the compressed
// contents.
func parseEntry(entry []byte) (code byte, size int64, compressed []byte, err error) {
	if len(entry) == 0 {
		return 0, 0, nil, fmt.Errorf("%w: empty entry", ErrDamaged)
	}
	code, size = entry[0]>>4&7, int64(entry[0]&15)
	n := 1
	for shift, more := 4, entry[0] >= 0x80; more; n, shift = n+1, shift+7 {
		if n >= len(entry) || shift > 56 {
			return 0, 0, nil, fmt.Errorf("%w: entry without a valid size", ErrDamaged)
		}
		size |= int64(entry[n]&0x7f) << shift
		more = entry[n] >= 0x80
	}
	return code, size, entry[n:], nil
}

// VerifyEntry returns an error if an entry is not the object with this id and type.
func VerifyEntry(entry []byte, f object.Format, id object.ID, t object.Type) error {
	code, size, compressed, err := parseEntry(entry)
	if err == nil && code != typeCodes[t] {
		err = fmt.Errorf("%w: entry has another type than expected", ErrDamaged)
	}
	if err != nil {
		return fmt.Errorf("verify object %s: %w", id, err)
	}
	h := object.NewHasher(f, t, size)
	if err := inflate(h, compressed, size); err != nil {
		return fmt.Errorf("verify object %s: %w", id, err)
	}
	if got, err := h.Sum(); err != nil || got != id {
		return fmt.Errorf("verify object %s: %w: the contents have the hash %s", id, ErrDamaged, got)
	}
	return nil
}

// inflate writes the contents of an entry to w. They must have size bytes.
func inflate(w io.Writer, compressed []byte, size int64) error {
	z, err := zlib.NewReader(bytes.NewReader(compressed))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if n, err := io.Copy(w, io.LimitReader(z, size+1)); err != nil || n != size {
		return fmt.Errorf("%w: contents end after %d of %d bytes (%v)", ErrDamaged, n, size, err)
	}
	return nil
}

// Contents returns the contents of an object in a pack. It refuses contents of more than limit bytes.
func Contents(from io.ReaderAt, at Place, limit int64) ([]byte, error) {
	entry := make([]byte, at.Length)
	if n, err := from.ReadAt(entry, at.Offset); n < len(entry) {
		return nil, fmt.Errorf("read pack: %w", err)
	}
	_, size, compressed, err := parseEntry(entry)
	if err != nil {
		return nil, err
	}
	if size > limit {
		return nil, fmt.Errorf("%w: contents of %d bytes are too large", ErrDamaged, size)
	}
	var b bytes.Buffer
	if err := inflate(&b, compressed, size); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// Stream writes a pack to a client. The entries are copied from other packs.
type Stream struct {
	w    io.Writer
	hash hash.Hash
	n    int
	buf  []byte
}

// NewStream writes the header of a pack of n objects to w.
func NewStream(w io.Writer, f object.Format, n int) (*Stream, error) {
	s := &Stream{w: w, hash: checksum(f), n: n, buf: make([]byte, 128<<10)}
	return s, s.write(appendHead(nil, n))
}

func (s *Stream) write(b []byte) error {
	s.hash.Write(b)
	_, err := s.w.Write(b)
	return err
}

// Entry writes one entry to the pack.
func (s *Stream) Entry(entry []byte) error {
	s.n--
	return s.write(entry)
}

// Copy writes the entries at the places in the pack from. The places must be ordered by their offsets. Adjacent entries
// are read together.
func (s *Stream) Copy(from io.ReaderAt, places []Place) error {
	for i := 0; i < len(places); {
		start, end := places[i].Offset, places[i].end()
		for i++; i < len(places) && places[i].Offset == end; i++ {
			end = places[i].end()
		}
		for start < end {
			b := s.buf[:min(int64(len(s.buf)), end-start)]
			n, err := from.ReadAt(b, start)
			if n < len(b) {
				return fmt.Errorf("read pack: %w", err)
			}
			if err := s.write(b); err != nil {
				return err
			}
			start += int64(n)
		}
	}
	s.n -= len(places)
	return nil
}

// Close writes the checksum of the pack. All objects must have been written before.
func (s *Stream) Close() error {
	if s.n != 0 {
		return fmt.Errorf("finish pack: %d of its objects were not written", s.n)
	}
	_, err := s.w.Write(s.hash.Sum(nil))
	return err
}
