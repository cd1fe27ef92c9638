package cache

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/await"
)

func openSizes(t testing.TB, path string, f object.Format) *Sizes {
	t.Helper()
	s, err := OpenSizes(path, f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// numberedID returns an id of the format that is derived from n.
func numberedID(f object.Format, n uint64) object.ID {
	short, _ := numbered(n, 0)
	sum := make([]byte, f.Size())
	copy(sum, short.Bytes())
	id, _ := object.FromBytes(sum)
	return id
}

func TestSizesComeBack(t *testing.T) {
	for _, f := range []object.Format{object.SHA1, object.SHA256} {
		path := filepath.Join(t.TempDir(), "sizes")
		s := openSizes(t, path, f)
		const count = 10_000
		for n := range uint64(count) {
			s.Put(numberedID(f, n), int64(n*n*n))
			s.Put(numberedID(f, n), int64(n*n*n))
		}
		s.Put(numberedID(f, count), maxSize)
		s.Put(numberedID(f, count+1), maxSize+1)
		s.Put(numberedID(f, count+2), -1)
		s.Put(numberedID(f^1, 1), 77) // an id of the other format
		s.Put(object.ID{}, 1)
		for range 2 {
			for n := range uint64(count) {
				if got, ok := s.Get(numberedID(f, n)); !ok || got != int64(n*n*n) {
					t.Fatalf("%s: size of %d: got %d, %v", f, n, got, ok)
				}
			}
			if got, ok := s.Get(numberedID(f, count)); !ok || got != maxSize {
				t.Errorf("%s: the largest size: got %d, %v", f, got, ok)
			}
			for _, id := range []object.ID{numberedID(f, count+1), numberedID(f, count+2), {}} {
				if got, ok := s.Get(id); ok {
					t.Errorf("%s: size of the unknown id %s: got %d", f, id, got)
				}
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if info, err := os.Stat(path); err != nil || info.Size() != sizesHead+int64(s.recordSize())*(count+1) {
				t.Errorf("%s: size of the file: got %d bytes, %v", f, info.Size(), err)
			}
			s = openSizes(t, path, f)
		}
	}
}

func TestSizesReachTheFileAndOtherProcesses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sizes")
	a, b := openSizes(t, path, object.SHA1), openSizes(t, path, object.SHA1)
	for n := range uint64(100) {
		a.Put(numberedID(object.SHA1, n), int64(n))
		b.Put(numberedID(object.SHA1, 100+n), int64(100+n))
	}
	for n := range uint64(200) {
		await.Until(t, "the second process reads the sizes of the first", func() bool {
			x, okA := a.Get(numberedID(object.SHA1, n))
			y, okB := b.Get(numberedID(object.SHA1, n))
			return okA && okB && x == int64(n) && y == int64(n)
		})
	}
}

func TestSizesSurviveDamageAndTornTails(t *testing.T) {
	const count = 4
	path := filepath.Join(t.TempDir(), "sizes")
	s := openSizes(t, path, object.SHA1)
	for n := range uint64(count) {
		s.Put(numberedID(object.SHA1, n), int64(1000+n))
	}
	s.Close()
	whole := read(t, path)
	good := func(content []byte, what string) (there int) {
		write(t, path, content)
		s := openSizes(t, path, object.SHA1)
		defer s.Close()
		for n := range uint64(count) {
			if got, ok := s.Get(numberedID(object.SHA1, n)); ok {
				there++
				if got != int64(1000+n) {
					t.Fatalf("%s: size of %d: got %d", what, n, got)
				}
			}
		}
		// A size that is added now must be read back, whatever the file contained before.
		s.Put(numberedID(object.SHA1, 99), 99)
		if err := s.Close(); err != nil {
			t.Fatalf("close the size cache, case %s: %v", what, err)
		}
		s = openSizes(t, path, object.SHA1)
		if got, ok := s.Get(numberedID(object.SHA1, 99)); !ok || got != 99 {
			t.Fatalf("%s: a size that was added later: got %d, %v", what, got, ok)
		}
		return there
	}
	for i := range whole {
		bad := bytes.Clone(whole)
		bad[i] ^= 1 << (i % 8)
		want := count - 1
		if i < sizesHead {
			want = 0
		}
		if got := good(bad, fmt.Sprintf("byte %d flipped", i)); got != want {
			t.Errorf("byte %d flipped: got %d sizes, want %d", i, got, want)
		}
		want = max(0, i-sizesHead) / s.recordSize()
		if got := good(whole[:i], fmt.Sprintf("cut at %d", i)); got != want {
			t.Errorf("cut at byte %d: got %d sizes, want %d", i, got, want)
		}
	}
}

func TestSizesOfAnotherFormatAreReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sizes")
	s := openSizes(t, path, object.SHA1)
	s.Put(numberedID(object.SHA1, 1), 1)
	s.Close()
	s = openSizes(t, path, object.SHA256)
	if _, ok := s.Get(numberedID(object.SHA256, 1)); ok {
		t.Error("a size of another format was read")
	}
	if _, err := OpenSizes(t.TempDir(), object.SHA1); err == nil {
		t.Error("a directory was opened as a table of sizes")
	}
}

func TestSizesOnAFullDisk(t *testing.T) {
	dir := smallDisk(t, "64k")
	s := openSizes(t, filepath.Join(dir, "sizes"), object.SHA1)
	const count = 5000 // 150 kB
	for n := range uint64(count) {
		s.Put(numberedID(object.SHA1, n), int64(n))
	}
	if err := s.Close(); !isFull(err) {
		t.Fatalf("close failed: %v", err)
	}
	s = openSizes(t, filepath.Join(dir, "sizes"), object.SHA1)
	for n := range uint64(count) {
		if got, ok := s.Get(numberedID(object.SHA1, n)); ok && got != int64(n) {
			t.Fatalf("size of %d: got %d", n, got)
		}
	}
}

func FuzzSizes(f *testing.F) {
	path := filepath.Join(f.TempDir(), "sizes")
	s := openSizes(f, path, object.SHA1)
	for n := range uint64(3) {
		s.Put(numberedID(object.SHA1, n), int64(n))
	}
	s.Close()
	good, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)-7])
	f.Add(good[:9])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, content []byte) {
		path := filepath.Join(t.TempDir(), "sizes")
		write(t, path, content)
		s := openSizes(t, path, object.SHA1)
		if s.n > len(content)/s.recordSize() {
			t.Fatalf("got %d sizes from %d bytes", s.n, len(content))
		}
		s.Put(numberedID(object.SHA1, 1), 12345)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if got, ok := openSizes(t, path, object.SHA1).Get(numberedID(object.SHA1, 1)); !ok || got != 12345 {
			t.Fatalf("size after Put: got %d, %v", got, ok)
		}
	})
}

// BenchmarkSizes measures 100,000 sizes.
func BenchmarkSizes(b *testing.B) {
	const count = 100_000
	for _, f := range []object.Format{object.SHA1, object.SHA256} {
		b.Run(f.String(), func(b *testing.B) {
			ids := make([]object.ID, count)
			for n := range ids {
				ids[n] = numberedID(f, uint64(n))
			}
			for b.Loop() {
				path := filepath.Join(b.TempDir(), "sizes")
				s := openSizes(b, path, f)
				for n, id := range ids {
					s.Put(id, int64(n))
				}
				s.Close()
				heap := heapInUse()
				s = openSizes(b, path, f)
				b.ReportMetric(float64(heapInUse()-heap)/count, "heap-B/entry")
				for _, id := range ids {
					if _, ok := s.Get(id); !ok {
						b.Fatal("a stored size is missing")
					}
				}
				s.Close()
			}
		})
	}
}
