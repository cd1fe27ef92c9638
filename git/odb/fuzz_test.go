package odb

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

const fuzzLimit = 1 << 20

// classified fails the test unless err is one of the documented errors for invalid input.
func classified(t *testing.T, err error) {
	t.Helper()
	if err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrTooLarge) && !errors.Is(err, ErrNotFound) {
		t.Fatalf("error is not classified: %v", err)
	}
}

// FuzzPack passes the same bytes, with a correct trailer, to Unpack and Ingest. Both must accept the same inputs with
// the correct object ids, and the objects must be readable from the pack that Ingest has stored.
func FuzzPack(f *testing.F) {
	for _, h := range hostile(object.SHA1) {
		if n := len(h.pack); n > 20 {
			f.Add(h.pack[:n-20])
		}
	}
	c := newCraft(object.SHA1)
	text := bytes.Repeat([]byte("text"), 10)
	c.ref(idOf(object.SHA1, object.Tree, nil), insertion(nil, "late"))
	off, _ := c.plain(object.Blob, text)
	c.ofs(c.ofs(off, insertion(text, "1")), insertion(append(bytes.Clone(text), '1'), "2"))
	c.plain(object.Tree, nil)
	f.Add(c.pack()[:c.offset()])

	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) > 1<<16 {
			return
		}
		pack := seal(object.SHA1, body)
		k := newUnpackSink(t, object.SHA1)
		o := k.options(100)
		o.MaxObjectSize = fuzzLimit
		n, err := Unpack(context.Background(), bytes.NewReader(pack), o, k.take)
		classified(t, err)

		s := must(Open(t.TempDir(), object.SHA1))
		defer s.Close()
		res, err2 := s.Ingest(context.Background(), bytes.NewReader(pack), IngestOptions{MaxObjectSize: fuzzLimit}, nil)
		classified(t, err2)
		if (err == nil) != (err2 == nil) || err == nil && res.Objects != n {
			t.Fatalf("Unpack returned %d, %v; Ingest returned %d, %v", n, err, res.Objects, err2)
		}
		if err == nil {
			k.objects.check(t, s)
		}
	})
}

// FuzzStored reads from a pack on disk that Ingest would not have accepted.
func FuzzStored(f *testing.F) {
	c := newCraft(object.SHA1)
	text := []byte("some text of a blob, long enough\n")
	off, id := c.plain(object.Blob, text)
	two := c.ref(id, insertion(text, "more"))
	three := c.ofs(two, insertion(append(bytes.Clone(text), "more"...), "more"))
	pack := c.pack()[:c.offset()]
	f.Add(pack, id.Bytes(), uint64(off), uint64(two))
	f.Add(pack, id.Bytes(), uint64(two), uint64(three))
	f.Add(pack, id.Bytes(), uint64(three), uint64(1<<63))
	f.Add(pack, id.Bytes(), uint64(len(pack)), uint64(0))
	f.Fuzz(func(t *testing.T, body, name []byte, one, two uint64) {
		if len(body) < packHeaderSize || len(name) != 20 || len(body) > 1<<16 {
			return
		}
		copy(body, "PACK\x00\x00\x00\x02\x00\x00\x00\x02")
		dir := t.TempDir()
		pack := seal(object.SHA1, body)
		a, _ := object.FromBytes(name)
		b := idOf(object.SHA1, object.Blob, name)
		tab := newTable(object.SHA1)
		tab.name(tab.add(int64(one&maxPackSize), 0), a, 0, 0)
		tab.name(tab.add(int64(two&maxPackSize), 0), b, 0, 0)
		var idx bytes.Buffer
		if err := errors.Join(writeIndex(&idx, object.SHA1, tab, pack[len(body):]),
			os.Mkdir(filepath.Join(dir, "pack"), 0o755),
			os.WriteFile(filepath.Join(dir, "pack", "pack-1.pack"), pack, 0o644),
			os.WriteFile(filepath.Join(dir, "pack", "pack-1.idx"), idx.Bytes(), 0o644)); err != nil {
			t.Fatal(err)
		}
		s := must(Open(dir, object.SHA1))
		defer s.Close()
		for _, id := range []object.ID{a, b} {
			typ, data, err := s.Get(id, fuzzLimit)
			classified(t, err)
			if err == nil && (idOf(object.SHA1, typ, data) != id || len(data) > fuzzLimit) {
				t.Fatal("got wrong contents")
			}
			_, _, err = s.Size(id)
			classified(t, err)
			var w bytes.Buffer
			err = s.WriteTo(id, &limitedWriter{&w, fuzzLimit})
			if !errors.Is(err, errFull) {
				classified(t, err)
			}
			if err == nil && data != nil && !bytes.Equal(w.Bytes(), data) {
				t.Fatal("Get and WriteTo differ")
			}
		}
	})
}

var errFull = errors.New("full")

type limitedWriter struct {
	w    io.Writer
	left int
}

func (l *limitedWriter) Write(p []byte) (int, error) {
	if l.left -= len(p); l.left < 0 {
		return 0, errFull
	}
	return l.w.Write(p)
}

// FuzzDelta checks that applying a delta in memory and as a stream have the same result, or both fail.
func FuzzDelta(f *testing.F) {
	base := []byte("some text of a base, long enough\n")
	f.Add(base, insertion(base, "more"))
	f.Add(base, append(sizes(int64(len(base)), 3), 1, 'a', 0x90|1, 4, 2))
	f.Add([]byte{}, insertion(nil, ""))
	f.Add(base, sizes(int64(len(base)), 1<<40))
	f.Fuzz(func(t *testing.T, base, delta []byte) {
		out, err := applyDelta(base, delta, fuzzLimit)
		classified(t, err)

		var w bytes.Buffer
		r := bytes.NewReader(delta)
		baseSize, size, err2 := readDeltaSizes(r)
		if err2 == nil && (size > fuzzLimit || baseSize != int64(len(base))) {
			err2 = ErrCorrupt
		}
		if err2 == nil {
			err2 = streamDelta(&w, bytes.NewReader(base), baseSize, size, r, make([]byte, 7))
		}
		classified(t, err2)
		if (err == nil) != (err2 == nil) {
			t.Fatalf("delta in memory: got %v, as a stream: got %v", err, err2)
		}
		if err == nil && !bytes.Equal(out, w.Bytes()) {
			t.Fatal("results in memory and as a stream differ")
		}
	})
}

// FuzzIndex looks up all objects of a pack index with arbitrary contents.
func FuzzIndex(f *testing.F) {
	for _, format := range formats {
		tab, _ := randomTable(format, 20)
		var b bytes.Buffer
		if err := writeIndex(&b, format, tab, make([]byte, format.Size())); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes(), format == object.SHA256)
	}
	f.Add(binary.BigEndian.AppendUint32([]byte(indexMagic), 2), false)
	f.Fuzz(func(t *testing.T, data []byte, long bool) {
		format := object.SHA1
		if long {
			format = object.SHA256
		}
		x, err := ParseIndex(data, format)
		classified(t, err)
		if err != nil {
			return
		}
		for i := range x.n {
			id, _ := object.FromBytes(x.name(i))
			if off, ok := x.find(id); ok && off < -1 {
				t.Fatalf("find returned the invalid offset %d", off)
			}
		}
	})
}
