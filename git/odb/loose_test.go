package odb

import (
	"bytes"
	"compress/zlib"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

// loosened creates a repository in which all objects are loose.
func loosened(t testing.TB, f object.Format) (dir string, want truth) {
	t.Helper()
	from, want := fixture(t, f)
	dir = newRepo(t, f)
	git(t, dir, packOf(t, from), "unpack-objects", "-q")
	return dir, want
}

func TestLooseObjectsAreRead(t *testing.T) {
	forEachFormat(t, func(t *testing.T, f object.Format) {
		dir, want := loosened(t, f)
		l := NewLoose(filepath.Join(dir, "objects"), f)
		for id, c := range want {
			typ, data, err := l.Get(id, int64(len(c.data)))
			if err != nil || typ != c.typ || !bytes.Equal(data, c.data) {
				t.Fatalf("Get(%s): %s of %d bytes, %v, want %s of %d", id, typ, len(data), err, c.typ, len(c.data))
			}
			if typ, size, err := l.Size(id); err != nil || typ != c.typ || size != int64(len(c.data)) {
				t.Fatalf("Size(%s) = %s, %d, %v", id, typ, size, err)
			}
			var b bytes.Buffer
			if err := l.WriteTo(id, &b); err != nil || !bytes.Equal(b.Bytes(), c.data) {
				t.Fatalf("WriteTo(%s): %v", id, err)
			}
			if len(c.data) > 0 {
				if _, _, err := l.Get(id, int64(len(c.data))-1); !errors.Is(err, ErrTooLarge) {
					t.Fatalf("Get(%s) over its limit: %v", id, err)
				}
			}
		}
		for _, f := range formats {
			if _, _, err := l.Get(idOf(f, object.Blob, []byte("none")), 10); !errors.Is(err, ErrNotFound) {
				t.Errorf("get a missing object: got %v", err)
			}
		}
		if _, _, err := l.Get(object.ID{}, 10); !errors.Is(err, ErrNotFound) {
			t.Errorf("get the zero id: got %v", err)
		}
	})
}

func TestBadLooseObjects(t *testing.T) {
	dir := t.TempDir()
	id := idOf(object.SHA1, object.Blob, []byte("content"))
	path := filepath.Join(dir, id.String()[:2], id.String()[2:])
	if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	good := zlibOf("blob 7\x00content")
	l := NewLoose(dir, object.SHA1)
	for name, file := range map[string][]byte{
		"empty": nil, "cut": good[:len(good)-3], "no zlib": []byte("blob 7\x00content"), "no header": zlibOf(""),
		"endless header": zlibOf(fmt.Sprintf("blob %040d\x00content", 7)), "type": zlibOf("blub 7\x00content"),
		"sign":  zlibOf("blob +7\x00content"),
		"zeros": zlibOf("blob 07\x00content"), "no size": zlibOf("blob \x00content"), "short": zlibOf("blob 8\x00content"),
		"long": zlibOf("blob 6\x00content"), "other": zlibOf("blob 7\x00CONTENT"), "other type": zlibOf("tag 7\x00content"),
		"long tail": zlibOf("blob 7\x00content" + string(make([]byte, 100))), "empty claimed": zlibOf("blob 0\x00content"),
		"checksum": append(bytes.Clone(good[:len(good)-1]), good[len(good)-1]^1),
	} {
		if err := os.WriteFile(path, file, 0o444); err != nil {
			t.Fatal(err)
		}
		if _, _, err := l.Get(id, noLimit); !errors.Is(err, ErrCorrupt) {
			t.Errorf("file %s: Get returned %v", name, err)
		}
		if err := l.WriteTo(id, &bytes.Buffer{}); !errors.Is(err, ErrCorrupt) {
			t.Errorf("file %s: WriteTo returned %v", name, err)
		}
		os.Remove(path)
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, _, err := l.Size(id); err == nil || errors.Is(err, ErrNotFound) || errors.Is(err, ErrCorrupt) {
		t.Errorf("get an object whose file is a directory: got %v", err)
	}
}

func zlibOf(text string) []byte {
	var b bytes.Buffer
	w := zlib.NewWriter(&b)
	w.Write([]byte(text))
	w.Close()
	return b.Bytes()
}

// FuzzLoose reads arbitrary bytes as a loose object.
func FuzzLoose(f *testing.F) {
	for _, text := range []string{"", "blob 0\x00", "blob 7\x00content", "tree 1000000000000\x00",
		"commit 9999999999999999999\x00x"} {
		f.Add(zlibOf(text))
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		r, err := readLoose(bytes.NewReader(file))
		classified(t, err)
		if err != nil {
			return
		}
		data, err := r.whole()
		classified(t, err)
		if err == nil && int64(len(data)) != r.size {
			t.Fatalf("read %d bytes of an object of size %d", len(data), r.size)
		}
		if cap(data) > 2000*(len(file)+firstAlloc) {
			t.Fatalf("allocated %d bytes for a file of %d", cap(data), len(file))
		}
	})
}

// FuzzJoinIndex joins two packs, one of which has an arbitrary index.
func FuzzJoinIndex(f *testing.F) {
	one := newCraft(object.SHA1)
	off, _ := one.plain(object.Blob, []byte("base of a delta"))
	one.ofs(off, insertion([]byte("base of a delta"), "x"))
	two := newCraft(object.SHA1)
	two.plain(object.Blob, []byte("base of a delta"))
	packs := [][]byte{one.pack(), two.pack()}
	dir := f.TempDir()
	s := open(f, dir, object.SHA1)
	var indexes [][]byte
	for _, p := range packs {
		name := ingest(f, s, p).Name
		indexes = append(indexes, must(os.ReadFile(filepath.Join(s.dir, name+".idx"))))
		f.Add(indexes[len(indexes)-1])
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		plan := &joinPlan{format: object.SHA1, table: newTable(object.SHA1), size: packHeaderSize}
		file, err := os.CreateTemp(t.TempDir(), "pack")
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		for i, index := range [][]byte{indexes[1], data} {
			x, err := ParseIndex(index, object.SHA1)
			if err != nil {
				return
			}
			path := filepath.Join(t.TempDir(), "pack")
			if err := os.WriteFile(path, packs[1-i], 0o600); err != nil {
				t.Fatal(err)
			}
			from, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer from.Close()
			end := int64(len(packs[1-i]) - 20)
			p := &pack{path: path, format: object.SHA1}
			p.files.Store(&packFiles{x, from, end})
			if err := plan.add(candidate{p, x, end}); err != nil {
				classified(t, err)
				return
			}
		}
		w := joinWriter{plan: plan, file: file, pace: func() error { return nil }}
		if err := w.copy(); err != nil {
			classified(t, err)
			return
		}
		_, _, err = w.check()
		classified(t, err)
	})
}
