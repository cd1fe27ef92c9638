package odb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"testing"
	"testing/iotest"

	"github.com/artifactfs/artifactfs/git/object"
)

func (want truth) equal(got truth) bool {
	return maps.EqualFunc(want, got, func(a, b content) bool { return a.typ == b.typ && bytes.Equal(a.data, b.data) })
}

// TestUnpack unpacks packs of git with all mixtures of contents in memory and in files.
func TestUnpack(t *testing.T) {
	forEachFormat(t, func(t *testing.T, f object.Format) {
		dir, want := fixture(t, f)
		for name, args := range map[string][]string{"ofs": {"--delta-base-offset"}, "ref": nil} {
			pack := packOf(t, dir, args...)
			for _, spoolOver := range []int64{-1, 300, 20000, 1 << 20} {
				t.Run(fmt.Sprintf("%s/%d", name, spoolOver), func(t *testing.T) {
					k := newUnpackSink(t, f)
					n, err := k.unpack(pack, spoolOver)
					if err != nil || n != len(want) || !want.equal(k.objects) {
						t.Fatalf("unpacked %d objects, %v, want %d", n, err, len(want))
					}
					if all := k.files == n; k.files == 0 || all != (spoolOver < 0) {
						t.Errorf("%d of %d contents were delivered in files", k.files, n)
					}
				})
			}
		}
	})
}

// TestUnpackWithoutCache makes Unpack request every base from the sink.
func TestUnpackWithoutCache(t *testing.T) {
	dir, want := fixture(t, object.SHA1)
	pack := packOf(t, dir, "--delta-base-offset")
	for _, r := range []io.Reader{bytes.NewReader(pack), iotest.OneByteReader(bytes.NewReader(pack)),
		iotest.DataErrReader(bytes.NewReader(pack))} {
		k := newUnpackSink(t, object.SHA1)
		in := newInput(r, object.SHA1.New(), context.Background().Err, nil)
		u := &unpacking{UnpackOptions: k.options(1 << 20), table: newTable(object.SHA1), sink: k.take}
		if _, err := newDecoder(object.SHA1, noLimit, 0, in, u.table, u).run(); err != nil {
			t.Fatal(err)
		}
		if !want.equal(k.objects) || k.bases < 100 || k.out != 0 {
			t.Fatalf("unpacked %d objects with %d bases, %d of which were not released", len(k.objects), k.bases, k.out)
		}
	}
}

// TestUnpackLateBases unpacks deltas that precede their bases: bases that are named by id, deltas against deltas, and
// bases that are named by offset and precede their own bases.
func TestUnpackLateBases(t *testing.T) {
	forEachFormat(t, func(t *testing.T, f object.Format) {
		for _, spoolOver := range []int64{-1, 1 << 20} {
			base := bytes.Repeat([]byte("base"), 1000)
			one, two := append(bytes.Clone(base), "1"...), append(bytes.Clone(base), "12"...)
			c := newCraft(f)
			off := c.ref(idOf(f, object.Blob, one), insertion(one, "2"))
			c.ofs(off, insertion(two, "3"))
			c.ref(idOf(f, object.Blob, base), insertion(base, "1"))
			c.ref(idOf(f, object.Blob, base), insertion(base, "other"))
			c.plain(object.Blob, base)
			c.plain(object.Blob, nil)

			k := newUnpackSink(t, f)
			n, err := k.unpack(c.pack(), spoolOver)
			if err != nil || n != 6 || len(k.objects) != 6 {
				t.Fatalf("unpacked %d objects, %v", n, err)
			}
			for _, s := range []string{"", "1", "12", "123", "other"} {
				want := append(bytes.Clone(base), s...)
				if got := k.objects[idOf(f, object.Blob, want)]; !bytes.Equal(got.data, want) {
					t.Errorf("base+%q is missing", s)
				}
			}
			s := open(t, t.TempDir(), f)
			ingest(t, s, c.pack())
			k.objects.check(t, s)
		}
	})
}

// TestUnpackLarge unpacks contents, deltas and bases that are larger than the memory that may be allocated.
func TestUnpackLarge(t *testing.T) {
	pack, large := largePack(t)
	k := newUnpackSink(t, object.SHA1)
	files := map[object.ID]*os.File{}
	o := k.options(1 << 20)
	o.Base = func(id object.ID) (io.ReaderAt, int64, func(), error) {
		st, err := files[id].Stat()
		return files[id], st.Size(), func() {}, err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	n, err := Unpack(context.Background(), bytes.NewReader(pack), o, func(o Object) error {
		files[o.ID] = o.File
		return nil
	})
	runtime.ReadMemStats(&after)
	if err != nil || n != len(large) {
		t.Fatalf("unpacked %d bytes, %v, want %d", n, err, len(large))
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 8<<20 {
		t.Errorf("allocated %d bytes for %d objects of 18 MB", took, n)
	}
	for id, want := range large {
		got, err := io.ReadAll(io.NewSectionReader(files[id], 0, noLimit))
		if err != nil || !bytes.Equal(got, want.data) {
			t.Errorf("object %s: got %d bytes, %v, want %d", id, len(got), err, len(want.data))
		}
		files[id].Close()
	}
}

// largePack returns a pack with an object of 18 MB, a small delta against it, and a delta against that delta with 3 MB
// of new data.
func largePack(t testing.TB) ([]byte, truth) {
	base := bytes.Repeat([]byte("0123456789abcdef0123456789abcdef"), 18<<20/32)
	one := append(bytes.Clone(base), "one"...)
	delta := sizes(int64(len(one)), int64(len(one)+3*1000*1000))
	delta = append(delta, insertion(one, "")[len(sizes(int64(len(one)), int64(len(one)))):]...)
	two := bytes.Clone(one)
	for i := range 3 * 1000 * 10 {
		piece := fmt.Sprintf("%-100d", i)
		delta = append(append(delta, 100), piece...)
		two = append(two, piece...)
	}
	c := newCraft(object.SHA1)
	off, id := c.plain(object.Blob, base)
	off = c.ofs(off, insertion(base, "one"))
	c.ofs(off, delta)
	return c.pack(), truth{
		id:                                  {object.Blob, base},
		idOf(object.SHA1, object.Blob, one): {object.Blob, one},
		idOf(object.SHA1, object.Blob, two): {object.Blob, two},
	}
}

// hostile returns packs that must be refused, with the expected errors, by name.
func hostile(f object.Format) map[string]struct {
	pack []byte
	want error
} {
	text := []byte("some text of a blob, long enough\n")
	missing := idOf(f, object.Blob, []byte("missing"))
	build := func(add func(c *craft)) []byte {
		c := newCraft(f)
		c.plain(object.Blob, []byte("first"))
		add(c)
		return c.pack()
	}
	delta := func(d []byte) []byte {
		return build(func(c *craft) { off, _ := c.plain(object.Blob, text); c.ofs(off, d) })
	}
	n := int64(len(text))
	good := build(func(c *craft) { c.plain(object.Blob, text) })
	wrong := bytes.Clone(good)
	wrong[len(wrong)-1] ^= 1
	type h = struct {
		pack []byte
		want error
	}
	return map[string]h{
		"nothing":        {nil, io.ErrUnexpectedEOF},
		"no pack":        {[]byte("HTTP/1.1 404 Not Found\r\n\r\n"), ErrCorrupt},
		"version 4":      {seal(f, []byte("PACK\x00\x00\x00\x04\x00\x00\x00\x00")), ErrCorrupt},
		"4 billion":      {newCraft(f).packOf(1<<32 - 1), ErrCorrupt},
		"one too many":   {append(bytes.Clone(good[:11]), append([]byte{3}, good[12:]...)...), ErrCorrupt},
		"one too few":    {append(bytes.Clone(good[:11]), append([]byte{1}, good[12:]...)...), ErrCorrupt},
		"trailer":        {wrong, ErrCorrupt},
		"no trailer":     {good[:len(good)-f.Size()], io.ErrUnexpectedEOF},
		"garbage behind": {append(bytes.Clone(good), 'x'), ErrCorrupt},
		"type 0":         {build(func(c *craft) { c.head(0, 1); c.deflate([]byte("x")) }), ErrCorrupt},
		"type 5":         {build(func(c *craft) { c.head(5, 1); c.deflate([]byte("x")) }), ErrCorrupt},
		"size over":      {build(func(c *craft) { c.head(3, 1<<30+1); c.deflate(text) }), ErrTooLarge},
		"size of 64 bits": {build(func(c *craft) {
			c.count++
			c.body.WriteString("\xbf\xff\xff\xff\xff\xff\xff\xff\xff\x7f")
		}), ErrCorrupt},
		"endless size": {build(func(c *craft) { c.count++; c.body.Write(bytes.Repeat([]byte{0xbf}, 100)) }), ErrCorrupt},
		"size claimed": {build(func(c *craft) { c.head(3, 1<<30); c.deflate(text) }), ErrCorrupt},
		"size short":   {build(func(c *craft) { c.head(3, n+1); c.deflate(text) }), ErrCorrupt},
		"size long":    {build(func(c *craft) { c.head(3, n-1); c.deflate(text) }), ErrCorrupt},
		"no zlib":      {build(func(c *craft) { c.head(3, n); c.body.Write(text) }), ErrCorrupt},
		"tree over":    {build(func(c *craft) { c.head(2, object.MaxTreeSize+1); c.deflate(text) }), ErrTooLarge},

		"base missing":       {build(func(c *craft) { c.ref(missing, insertion(text, "x")) }), ErrCorrupt},
		"base itself":        {build(func(c *craft) { c.ofs(c.offset(), insertion(text, "x")) }), ErrCorrupt},
		"base before pack":   {build(func(c *craft) { c.ofs(-5, insertion(text, "x")) }), ErrCorrupt},
		"base in header":     {build(func(c *craft) { c.ofs(4, insertion(text, "x")) }), ErrCorrupt},
		"base in the middle": {build(func(c *craft) { c.ofs(13, insertion([]byte("first"), "x")) }), ErrCorrupt},
		"endless base": {build(func(c *craft) { c.head(ofsDelta, 5); c.body.Write(bytes.Repeat([]byte{0xff}, 100)) }),
			ErrCorrupt},
		"circle": {build(func(c *craft) {
			a := c.ref(missing, insertion(text, "x"))
			c.ofs(a, insertion(append(bytes.Clone(text), 'x'), "y"))
		}), ErrCorrupt},
		"base of other size": {delta(append(sizes(n+1, 1), 1, 'x')), ErrCorrupt},

		"delta empty":           {delta(nil), ErrCorrupt},
		"delta sizes cut":       {delta([]byte{0x80}), ErrCorrupt},
		"delta endless size":    {delta(bytes.Repeat([]byte{0xff}, 50)), ErrCorrupt},
		"delta instruction 0":   {delta(append(sizes(n, 1), 0, 'x')), ErrCorrupt},
		"delta copies too far":  {delta(append(sizes(n, 2), 0x91, byte(n-1), 2)), ErrCorrupt},
		"delta copies beyond":   {delta(append(sizes(n, 2), 0x98, 0xff, 2)), ErrCorrupt},
		"delta makes less":      {delta(append(sizes(n, 5), 1, 'x')), ErrCorrupt},
		"delta makes more":      {delta(append(sizes(n, 1), 2, 'x', 'y')), ErrCorrupt},
		"delta makes more yet":  {delta(append(sizes(n, 1), 1, 'x', 1, 'y')), ErrCorrupt},
		"delta insert cut":      {delta(append(sizes(n, 9), 9, 'x')), ErrCorrupt},
		"delta copy cut":        {delta(append(sizes(n, 9), 0x91)), ErrCorrupt},
		"delta claims too much": {delta(append(sizes(n, 1<<30+1), 1, 'x')), ErrTooLarge},
		"delta claims a lot":    {delta(append(sizes(n, 1<<30), 1, 'x')), ErrCorrupt},
		"delta over": {build(func(c *craft) { c.head(ofsDelta, 1<<30+1); c.back(18); c.deflate(text) }),
			ErrTooLarge},
	}
}

func TestUnpackHostile(t *testing.T) {
	forEachFormat(t, func(t *testing.T, f object.Format) {
		for name, h := range hostile(f) {
			for _, spoolOver := range []int64{-1, 1 << 20, 1 << 40} {
				k := newUnpackSink(t, f)
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				_, err := k.unpack(h.pack, spoolOver)
				runtime.ReadMemStats(&after)
				if !errors.Is(err, h.want) {
					t.Errorf("pack %s: got %v, want %v", name, err, h.want)
				}
				if took := after.TotalAlloc - before.TotalAlloc; took > 2<<20 {
					t.Errorf("pack %s: Unpack allocated %d bytes", name, took)
				}
				if name != "nothing" && !bytes.Contains(h.pack, []byte("HTTP")) && errors.Is(err, io.EOF) {
					t.Errorf("pack %s: got io.EOF itself: %v", name, err)
				}
			}
		}
	})
}

// TestUnpackDamaged truncates a pack at every length, and flips every byte.
func TestUnpackDamaged(t *testing.T) {
	c := newCraft(object.SHA1)
	text := []byte("some text of a blob, long enough\n")
	off, id := c.plain(object.Blob, text)
	c.ofs(off, insertion(text, "more"))
	c.ref(id, insertion(text, "even more"))
	pack := c.pack()
	for i := range pack {
		if n, err := newUnpackSink(t, object.SHA1).unpack(pack[:i], 1<<20); !errors.Is(err, ErrCorrupt) ||
			!errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("pack cut at byte %d: got %d objects, %v", i, n, err)
		}
		bad := bytes.Clone(pack)
		bad[i] ^= 0x41
		if n, err := newUnpackSink(t, object.SHA1).unpack(bad, 1<<20); err == nil {
			t.Fatalf("pack with byte %d flipped: got %d objects and no error", i, n)
		}
	}
}

func TestUnpackErrorsPassThrough(t *testing.T) {
	c := newCraft(object.SHA1)
	c.plain(object.Blob, bytes.Repeat([]byte("x"), 1000))
	pack := c.pack()
	broken := errors.New("broken")

	k := newUnpackSink(t, object.SHA1)
	if _, err := Unpack(context.Background(), io.MultiReader(bytes.NewReader(pack[:20]), iotest.ErrReader(broken)),
		k.options(1<<20), k.take); !errors.Is(err, broken) || errors.Is(err, ErrCorrupt) {
		t.Errorf("failing reader: got %v", err)
	}
	if n, err := Unpack(context.Background(), bytes.NewReader(pack), k.options(1<<20),
		func(Object) error { return broken }); !errors.Is(err, broken) || errors.Is(err, ErrCorrupt) {
		t.Errorf("failing sink: got %d, %v", n, err)
	}
	o := k.options(10)
	o.Spool = func(int64) (*os.File, error) { return nil, broken }
	if _, err := Unpack(context.Background(), bytes.NewReader(pack), o, k.take); !errors.Is(err, broken) ||
		errors.Is(err, ErrCorrupt) {
		t.Errorf("failing spool: got %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Unpack(ctx, bytes.NewReader(pack), k.options(10), k.take); !errors.Is(err, context.Canceled) ||
		errors.Is(err, ErrCorrupt) {
		t.Errorf("cancelled context: got %v", err)
	}
}
