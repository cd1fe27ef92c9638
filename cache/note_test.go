package cache

import (
	"os"
	"path/filepath"
	"testing"
)

// A killed process leaves a sidecar for most of its contents, and a scan finds the rest.
func TestActiveSegmentIsNoted(t *testing.T) {
	dir := t.TempDir()
	b := openBlobs(t, dir, plenty)
	put := func(from, to uint64) {
		for n := from; n < to; n++ {
			id, data := numbered(n, 100)
			if err := b.Put(id, data); err != nil {
				t.Fatal(err)
			}
		}
		b.append.noteActive()
	}
	covered := func() (n int) {
		sidecars, _ := filepath.Glob(filepath.Join(dir, "seg", "*"+sidecarSuffix))
		for _, path := range sidecars {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			_, entries, ok := parseSidecar(text, maxSegment)
			if !ok {
				t.Errorf("sidecar %s is damaged", path)
			}
			n += len(entries)
		}
		return n
	}
	for _, step := range []struct{ until, noted uint64 }{
		{leastNoted - 1, 0}, {leastNoted, leastNoted}, {leastNoted + 10, leastNoted}, {3 * leastNoted, 3 * leastNoted},
		{20 * leastNoted, 20 * leastNoted}, {22 * leastNoted, 20 * leastNoted},
	} {
		put(uint64(b.Usage().Blobs), step.until)
		if got := covered(); got != int(step.noted) {
			t.Errorf("sidecar: got %d of %d contents, want %d", got, step.until, step.noted)
		}
	}
	b.append.file.Close() // as after a kill: the lock is released, and nothing more is written
	b.catalog.releaseAll()
	b = openBlobs(t, dir, plenty)
	if got := b.Usage().Blobs; got != 22*leastNoted {
		t.Errorf("contents after a kill: got %d, want %d", got, 22*leastNoted)
	}
	put(22*leastNoted, 23*leastNoted) // appended to the same segment, whose sidecar is written again
	if got := covered(); got != 23*leastNoted {
		t.Errorf("contents in the sidecar: got %d, want %d", got, 23*leastNoted)
	}
	b.Close()
}
