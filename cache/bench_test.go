package cache

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
)

// BenchmarkBlobs stores and reads 100,000 contents of 4 KiB, and reports the cost of an operation, of an entry and of
// opening.
func BenchmarkBlobs(b *testing.B) {
	const count, size = 100_000, 4 << 10
	ids := make([]object.ID, count)
	var data []byte
	for n := range ids {
		ids[n], data = numbered(uint64(n), size)
	}
	buf := make([]byte, size)
	for i := range b.N {
		dir := filepath.Join(b.TempDir(), strconv.Itoa(i))
		heap := heapInUse()
		c := openBlobs(b, dir, plenty)
		each := func(what string, do func(object.ID)) {
			start := time.Now()
			for _, id := range ids {
				do(id)
			}
			b.ReportMetric(float64(time.Since(start).Nanoseconds())/count, "ns/"+what)
		}
		read := func(id object.ID) {
			got, ok := c.Get(id)
			if !ok {
				b.Fatal("stored contents are missing")
			}
			if _, err := got.ReadAt(buf, 0); err != nil {
				b.Fatal(err)
			}
			got.Release()
		}
		each("put", func(id object.ID) {
			if err := c.Put(id, data); err != nil {
				b.Fatal(err)
			}
		})
		b.ReportMetric(float64(heapInUse()-heap)/count, "heap-B/entry")
		each("first-get", read)
		each("warm-get", read)
		each("size", func(id object.ID) { c.Size(id) })
		unknown := 0
		each("miss", func(id object.ID) {
			id = object.MustID(id.String()[:38] + "ff")
			if _, ok := c.Get(id); !ok {
				unknown++
			}
		})
		start := time.Now()
		c.Close()
		b.ReportMetric(float64(time.Since(start).Microseconds())/1000, "ms/close")
		open := func(what string) {
			start := time.Now()
			c = openBlobs(b, dir, plenty)
			b.ReportMetric(float64(time.Since(start).Microseconds())/1000, "ms/"+what)
			if got := c.Usage().Blobs; got != count {
				b.Fatalf("contents after opening: got %d, want %d", got, count)
			}
		}
		heap = heapInUse()
		open("open")
		b.ReportMetric(float64(heapInUse()-heap)/count, "heap-B/entry-reopened")
		c.Close()
		sidecars, _ := filepath.Glob(filepath.Join(dir, "seg", "*"+sidecarSuffix))
		for _, s := range sidecars {
			os.Remove(s)
		}
		open("open-without-sidecars")
		c.Close()
	}
}

// TestHeapOfAnEntry checks the heap memory per entry, because caches with hundreds of thousands of entries are usual.
func TestHeapOfAnEntry(t *testing.T) {
	const count = 100_000
	ids := make([]object.ID, count)
	for n := range ids {
		ids[n], _ = numbered(uint64(n), 0)
	}
	blobs := openBlobs(t, t.TempDir(), plenty)
	sizes := openSizes(t, filepath.Join(t.TempDir(), "sizes"), object.SHA1)
	start := heapInUse()
	for _, id := range ids {
		if err := blobs.Put(id, nil); err != nil {
			t.Fatal(err)
		}
	}
	after := heapInUse()
	if each := float64(after-start) / count; each > 60 {
		t.Errorf("heap per contents entry: got %.1f bytes", each)
	}
	start = after
	for _, id := range ids {
		sizes.Put(id, 1)
	}
	if err := sizes.flush(); err != nil {
		t.Fatal(err)
	}
	if each := float64(heapInUse()-start) / count; each > 40 {
		t.Errorf("heap per size: got %.1f bytes", each)
	}
}

func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
