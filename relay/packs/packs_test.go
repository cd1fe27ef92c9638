package packs

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// contents returns blobs of several sizes, of which some cannot be compressed.
func contents(t *testing.T, f object.Format) map[object.ID][]byte {
	all := map[object.ID][]byte{}
	rnd := rand.NewChaCha8([32]byte{})
	for _, n := range []int{0, 1, 15, 16, 2047, 2048, 100_000, maxBuffered, maxBuffered + 1, 3 << 20} {
		noise := make([]byte, n)
		rnd.Read(noise)
		for _, data := range [][]byte{noise, bytes.Repeat([]byte("a"), n)} {
			id, err := object.Hash(f, object.Blob, data)
			if err != nil {
				t.Fatal(err)
			}
			all[id] = data
		}
	}
	return all
}

// write writes a file of the kind blob.
func write(t *testing.T, f object.Format, all map[object.ID][]byte) string {
	path := filepath.Join(t.TempDir(), "file")
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	w, err := NewWriter(out, f, len(all))
	if err != nil {
		t.Fatal(err)
	}
	for id, data := range all {
		if _, err := w.Add(id, object.Blob, int64(len(data)), bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// The pack in a file, and one that is made of its entries, are packs of stock git.
func TestPacks(t *testing.T) {
	for _, f := range []object.Format{object.SHA1, object.SHA256} {
		all := contents(t, f)
		file, err := Open(write(t, f, all), true)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		places, err := Places(file.Table, file.Body)
		if err != nil || len(places) != len(all) {
			t.Fatalf("table: got %d places, %v, want %d", len(places), err, len(all))
		}
		var some bytes.Buffer
		s, err := NewStream(&some, f, 3)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for id, at := range places {
			data, err := Contents(file, at, 1<<30)
			if err != nil || !bytes.Equal(data, all[id]) {
				t.Errorf("contents of %s: got %d bytes, %v, want %d", id, len(data), err, len(all[id]))
			}
			entry := make([]byte, at.Length)
			if _, err := file.ReadAt(entry, at.Offset); err != nil {
				t.Fatal(err)
			}
			if err := VerifyEntry(entry, f, id, object.Blob); err != nil {
				t.Error(err)
			}
			if VerifyEntry(entry, f, id, object.Tree) == nil || VerifyEntry(entry[:len(entry)-1], f, id, object.Blob) == nil {
				t.Errorf("entry of %s was accepted with another type or without its end", id)
			}
			switch n++; {
			case n == 1:
				err = s.Entry(entry)
			case n <= 3:
				err = s.Copy(file, []Place{at})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		repo := filepath.Join(t.TempDir(), "repo")
		gittest.Must(t, "", "init", "-q", "--bare", "--object-format="+f.String(), repo)
		for name, pack := range map[string]io.Reader{"whole": io.NewSectionReader(file, 0, file.Body), "some": &some} {
			path := filepath.Join(repo, name+".pack")
			data, err := io.ReadAll(pack)
			if err == nil {
				err = os.WriteFile(path, data, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			gittest.Must(t, repo, "index-pack", "--strict", path)
		}
	}
}

// Every change of a byte is noticed.
func TestDamage(t *testing.T) {
	path := write(t, object.SHA1,
		map[object.ID][]byte{object.MustID("8baef1b4abc478178b004d62031cf7fe6db6f903"): []byte("abc")})
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 1
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(path, true); !errors.Is(err, ErrDamaged) {
			t.Errorf("file with a changed byte %d: got %v", i, err)
		}
	}
	for n := range good {
		if err := os.WriteFile(path, good[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(path, true); !errors.Is(err, ErrDamaged) {
			t.Errorf("first %d bytes of a file: got %v", n, err)
		}
	}
}

func FuzzTables(f *testing.F) {
	id := object.MustID("8baef1b4abc478178b004d62031cf7fe6db6f903")
	f.Add(AppendSize(nil, id, 7))
	f.Add(AppendID(nil, id))
	f.Add(append(AppendSize(nil, id, 12), 30))
	f.Fuzz(func(t *testing.T, b []byte) {
		if places, err := Places(b, 100); err == nil {
			for id, p := range places {
				if p.Offset < 0 || p.Length < 0 || p.end() > 100 {
					t.Errorf("object %s has the place %v in 100 bytes", id, p)
				}
			}
		}
		Sizes(b)
		IDs(b)
		VerifyEntry(b, object.SHA1, id, object.Blob)
		if len(b) >= FooterSize {
			if start, n, err := ParseFooter(b[len(b)-FooterSize:], int64(len(b))); err == nil &&
				(start < 0 || n < 0 || start+n+FooterSize != int64(len(b))) {
				t.Errorf("table at %d, %d bytes, in %d", start, n, len(b))
			}
		}
		file := append(b, Finish(nil, sha256.New())...)
		ParseFooter(file[len(file)-FooterSize:], int64(len(file)))
	})
}
