package odb

import (
	"bytes"
	"compress/zlib"
	"context"
	"encoding/binary"
	"io"
	"os"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

// craft makes packs that git would never write.
type craft struct {
	f     object.Format
	body  bytes.Buffer
	count uint32
	z     *zlib.Writer
}

func newCraft(f object.Format) *craft {
	c := &craft{f: f}
	c.body.Write(make([]byte, packHeaderSize))
	return c
}

func (c *craft) head(kind uint8, size int64) {
	c.count++
	b := kind<<4 | byte(size&15)
	for size >>= 4; size > 0; size >>= 7 {
		c.body.WriteByte(b | 0x80)
		b = byte(size & 0x7f)
	}
	c.body.WriteByte(b)
}

func (c *craft) deflate(data []byte) {
	if c.z == nil {
		c.z = zlib.NewWriter(nil)
	}
	c.z.Reset(&c.body)
	c.z.Write(data)
	c.z.Close()
}

func (c *craft) offset() int64 { return int64(c.body.Len()) }

// plain adds an object and returns its offset and id.
func (c *craft) plain(t object.Type, data []byte) (int64, object.ID) {
	off := c.offset()
	c.head(uint8(t), int64(len(data)))
	c.deflate(data)
	return off, idOf(c.f, t, data)
}

func (c *craft) ofs(base int64, delta []byte) int64 {
	off := c.offset()
	c.head(ofsDelta, int64(len(delta)))
	c.back(off - base)
	c.deflate(delta)
	return off
}

func (c *craft) back(n int64) {
	var b [10]byte
	i := len(b) - 1
	b[i] = byte(n & 0x7f)
	for n >>= 7; n > 0; n >>= 7 {
		n--
		i--
		b[i] = byte(n&0x7f) | 0x80
	}
	c.body.Write(b[i:])
}

func (c *craft) ref(base object.ID, delta []byte) int64 {
	off := c.offset()
	c.head(refDelta, int64(len(delta)))
	c.body.Write(base.Bytes())
	c.deflate(delta)
	return off
}

// pack returns the pack with its header and trailer.
func (c *craft) pack() []byte { return c.packOf(c.count) }

func (c *craft) packOf(count uint32) []byte {
	b := bytes.Clone(c.body.Bytes())
	copy(b, "PACK\x00\x00\x00\x02")
	binary.BigEndian.PutUint32(b[8:], count)
	return seal(c.f, b)
}

// seal appends the correct trailer to a pack.
func seal(f object.Format, pack []byte) []byte {
	h := f.New()
	h.Write(pack)
	return h.Sum(bytes.Clone(pack))
}

func idOf(f object.Format, t object.Type, data []byte) object.ID {
	return must(object.Hash(f, t, data))
}

// insertion returns a delta that copies the whole base and appends tail, which has at most 127 bytes.
func insertion(base []byte, tail string) []byte {
	d := sizes(int64(len(base)), int64(len(base)+len(tail)))
	for off := 0; off < len(base); off += 0xffffff {
		n := min(len(base)-off, 0xffffff)
		d = append(d, 0xff, byte(off), byte(off>>8), byte(off>>16), byte(off>>24), byte(n), byte(n>>8), byte(n>>16))
	}
	if tail != "" {
		d = append(append(d, byte(len(tail))), tail...)
	}
	return d
}

// sizes returns the header of a delta, with the sizes of its base and its result.
func sizes(base, result int64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(nil, uint64(base)), uint64(result))
}

// unpackSink receives the objects from Unpack, returns them as bases, and counts both.
type unpackSink struct {
	t       testing.TB
	f       object.Format
	objects truth
	files   int
	bases   int
	out     int // number of bases that were not released yet
}

func newUnpackSink(t testing.TB, f object.Format) *unpackSink {
	return &unpackSink{t: t, f: f, objects: truth{}}
}

func (k *unpackSink) options(spoolOver int64) UnpackOptions {
	return UnpackOptions{Format: k.f, SpoolOver: spoolOver, MaxObjectSize: 1 << 30,
		Spool: func(int64) (*os.File, error) { return os.CreateTemp(k.t.TempDir(), "spool") },
		Base: func(id object.ID) (io.ReaderAt, int64, func(), error) {
			c, ok := k.objects[id]
			if !ok {
				k.t.Fatalf("Unpack requested the base %s, which it has not delivered", id)
			}
			k.bases++
			k.out++
			return bytes.NewReader(c.data), int64(len(c.data)), func() { k.out-- }, nil
		}}
}

func (k *unpackSink) take(o Object) error {
	data := o.Data
	if o.File != nil {
		if data != nil {
			k.t.Fatalf("%s has both data and file", o.ID)
		}
		k.files++
		var err error
		if data, err = io.ReadAll(io.NewSectionReader(o.File, 0, 1<<40)); err != nil {
			k.t.Fatal(err)
		}
		discard(o.File)
	} else if data == nil {
		k.t.Fatalf("%s has neither data nor file", o.ID)
	}
	if int64(len(data)) != o.Size || idOf(k.f, o.Type, data) != o.ID {
		k.t.Fatalf("object %s has wrong contents of %d bytes, want %d", o.ID, len(data), o.Size)
	}
	k.objects[o.ID] = content{o.Type, data}
	return nil
}

func (k *unpackSink) unpack(pack []byte, spoolOver int64) (int, error) {
	n, err := Unpack(context.Background(), bytes.NewReader(pack), k.options(spoolOver), k.take)
	if k.out != 0 {
		k.t.Fatalf("%d bases not released", k.out)
	}
	return n, err
}
