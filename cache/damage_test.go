package cache

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// filledDir creates a closed cache of count small contents of size bytes and returns its only segment.
func filledDir(t *testing.T, count uint64, size int) (dir, segment string) {
	t.Helper()
	dir = t.TempDir()
	b := openBlobs(t, dir, plenty)
	for n := range count {
		put(t, b, n, size)
	}
	b.Close()
	return dir, segmentFiles(t, dir)[0]
}

func countGood(t *testing.T, b *Blobs, count uint64, size int) (good int) {
	t.Helper()
	for n := range count {
		if check(t, b, n, size) {
			good++
		}
	}
	return good
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// TestEveryFlippedByteIsNoticed flips each byte of a segment, one at a time, with its sidecar and without.
func TestEveryFlippedByteIsNoticed(t *testing.T) {
	const count, size = 4, 33
	for _, sidecar := range []bool{true, false} {
		dir, seg := filledDir(t, count, size)
		if !sidecar {
			if err := os.Remove(filepath.Join(dir, "seg", sidecarName(filepath.Base(seg)))); err != nil {
				t.Fatal(err)
			}
		}
		whole := read(t, seg)
		for i := range whole {
			bad := append([]byte(nil), whole...)
			bad[i] ^= 1 << (i % 8)
			write(t, seg, bad)
			b := openBlobs(t, dir, plenty)
			good := countGood(t, b, count, size)
			if good == count || sidecar && good != count-1 {
				t.Fatalf("byte %d flipped, sidecar %v: found %d of %d contents", i, sidecar, good, count)
			}
			b.catalog.releaseAll() // without writing a sidecar
		}
	}
}

func TestADamagedSidecarIsIgnored(t *testing.T) {
	const count, size = 3, 33
	dir, seg := filledDir(t, count, size)
	path := filepath.Join(dir, "seg", sidecarName(filepath.Base(seg)))
	whole := read(t, path)
	for i := range whole {
		bad := append([]byte(nil), whole...)
		bad[i] ^= 1 << (i % 8)
		for _, content := range [][]byte{bad, whole[:i]} {
			write(t, path, content)
			b := openBlobs(t, dir, plenty)
			if good := countGood(t, b, count, size); good != count {
				t.Fatalf("sidecar damaged or cut at byte %d: found %d of %d contents", i, good, count)
			}
			b.catalog.releaseAll()
		}
	}
}

// TestASidecarOfAnotherSegmentShowsNothingWrong: a segment has the sidecar of another segment with other contents of
// the same sizes, as may happen after a crash or a copy. No wrong contents are returned.
func TestASidecarOfAnotherSegmentShowsNothingWrong(t *testing.T) {
	dir, seg := filledDir(t, 3, 33)
	other := t.TempDir()
	b := openBlobs(t, other, plenty)
	for n := range uint64(3) {
		put(t, b, 10+n, 33)
	}
	b.Close()
	foreign := segmentFiles(t, other)[0]
	write(t, filepath.Join(dir, "seg", sidecarName(filepath.Base(seg))),
		read(t, filepath.Join(other, "seg", sidecarName(filepath.Base(foreign)))))
	b = openBlobs(t, dir, plenty)
	for n := range uint64(3) {
		if check(t, b, 10+n, 33) {
			t.Errorf("content %d was read from a segment that does not contain it", 10+n)
		}
	}
	for n := range uint64(3) {
		put(t, b, n, 33)
		mustHave(t, b, n, 33)
	}
}

// TestEveryCutIsMended cuts a segment at each length: complete records can be read, and new contents are stored in the
// segment.
func TestEveryCutIsMended(t *testing.T) {
	const count, size = 3, 33
	dir, seg := filledDir(t, count, size)
	whole := read(t, seg)
	sidecar := filepath.Join(dir, "seg", sidecarName(filepath.Base(seg)))
	index := read(t, sidecar)
	for cut := range whole {
		write(t, seg, whole[:cut])
		write(t, sidecar, index)
		b := openBlobs(t, dir, plenty)
		if good, want := countGood(t, b, count, size), cut/(headerSize+size); good != want {
			t.Fatalf("cut at %d: found %d contents, want %d", cut, good, want)
		}
		for n := range uint64(count) {
			put(t, b, n, size)
		}
		b.Close()
		if got := segmentFiles(t, dir); len(got) != 1 {
			t.Fatalf("cut at %d: new contents were not stored in the segment: %v", cut, got)
		}
		b = openBlobs(t, dir, plenty)
		if good := countGood(t, b, count, size); good != count {
			t.Fatalf("cut at %d and repaired: found %d of %d contents", cut, good, count)
		}
		b.catalog.releaseAll()
	}
}

func TestADamagedContentHeals(t *testing.T) {
	const count = 60
	dir := t.TempDir()
	b := openBlobs(t, dir, plenty)
	size := func(n uint64) int {
		if n == count-1 {
			return 2 << 20
		}
		return 100 + sizeOf(n)
	}
	for n := range uint64(count) {
		put(t, b, n, size(n))
	}
	b.Close()
	rng := rand.New(rand.NewPCG(5, 5))
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) == sidecarSuffix {
			return err
		}
		content := read(t, path)
		for range 20 {
			content[rng.IntN(len(content))] ^= 0xff
		}
		write(t, path, content)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	b = openBlobs(t, dir, plenty)
	lost := 0
	for n := range uint64(count) {
		if !check(t, b, n, size(n)) {
			lost++
			put(t, b, n, size(n))
			mustHave(t, b, n, size(n))
		}
	}
	if u := b.Usage(); lost < 2 || u.Damaged != int64(lost) || u.Blobs != count {
		t.Errorf("lost %d contents, usage %+v", lost, u)
	}
	b.Close()
	b = openBlobs(t, dir, plenty)
	for n := range uint64(count) {
		mustHave(t, b, n, size(n))
	}
}

// TestNothingIsWrittenBehindDamage: one cache knows records behind a damaged header, and another opens the same segment
// and stores contents. If it appended where its scan ended, the first would read the new bytes in place of the old
// ones.
func TestNothingIsWrittenBehindDamage(t *testing.T) {
	const count, size = 10, 500
	dir, seg := filledDir(t, count, size)
	first := openBlobs(t, dir, plenty)
	if good := countGood(t, first, count, size); good != count {
		t.Fatalf("contents after the damage: got %d", good)
	}
	f, err := os.OpenFile(seg, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("damage"), 3*(headerSize+size)); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "seg", sidecarName(filepath.Base(seg)))); err != nil {
		t.Fatal(err)
	}
	second := openBlobs(t, dir, plenty)
	for n := range uint64(2 * count) {
		put(t, second, 100+n, size)
	}
	for n := range uint64(count) {
		mustHave(t, first, n, size) // this cache had verified the damaged header before
	}
	if got := len(segmentFiles(t, dir)); got != 2 {
		t.Errorf("got %d segments, want a new one beside the damaged one", got)
	}
}
