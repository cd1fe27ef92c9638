package cache

import (
	"path/filepath"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

// Excess returns the amount that Collect then frees, also while another process appends.
func TestExcessIsWhatIsCollected(t *testing.T) {
	dir := t.TempDir()
	const quota = 1 << 40
	writer := openBlobs(t, dir, 16<<20) // a cache with small segments
	for n := range uint64(1200) {
		put(t, writer, n, 10_000)
	}
	put(t, writer, 5000, 3<<20)
	beside := openBlobs(t, dir, quota)
	all := beside.Usage()
	for _, keep := range []int64{quota, all.Bytes - 1, all.Bytes / 2, 0} {
		before := beside.Usage()
		freed, blobs := beside.Excess(keep)
		if now := beside.Usage(); now != before {
			t.Fatalf("Excess changed the usage from %+v to %+v", before, now)
		}
		did, err := beside.Collect(keep)
		if err != nil {
			t.Fatal(err)
		}
		after := beside.Usage()
		if did != freed || after.Bytes != before.Bytes-freed || int64(before.Blobs-after.Blobs) != blobs {
			t.Errorf("limit %d: Excess returned %d bytes and %d blobs, but Collect freed %d bytes: usage before %+v, after %+v",
				keep, freed, blobs, did, before, after)
		}
	}
	if left := beside.Usage(); left.Bytes == 0 || left.Bytes > 2<<20 {
		t.Errorf("usage of the segment that another process appends to: got %+v", left)
	}
	put(t, writer, 6000, 100)
	mustHave(t, writer, 6000, 100)
}

func TestEachSizeOnce(t *testing.T) {
	s, err := OpenSizes(filepath.Join(t.TempDir(), "sizes"), object.SHA1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for n := range uint64(5000) {
		id, _ := numbered(n, 0)
		s.Put(id, int64(n))
		s.Put(id, int64(n))
	}
	var sum int64
	count := map[object.ID]bool{}
	s.Each(func(id object.ID, size int64) { sum += size; count[id] = true })
	if len(count) != 5000 || sum != 5000*4999/2 {
		t.Errorf("sizes after the survey: %d objects of %d bytes", len(count), sum)
	}
}
