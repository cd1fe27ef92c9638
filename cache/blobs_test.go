package cache

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/await"
)

// numbered returns an id and contents of size bytes that are both derived from n, so that tests need not store the
// expected contents. The ids are not the hashes of the contents, which the cache does not check.
func numbered(n uint64, size int) (object.ID, []byte) {
	sum := make([]byte, 20)
	rng := rand.NewPCG(n, 1)
	for i := 0; i < 16; i += 8 {
		binary.LittleEndian.PutUint64(sum[i:], rng.Uint64())
	}
	binary.BigEndian.PutUint32(sum[16:], uint32(n))
	id, _ := object.FromBytes(sum)
	data := make([]byte, (size+7)&^7)
	for i := 0; i < len(data); i += 8 {
		binary.LittleEndian.PutUint64(data[i:], rng.Uint64())
	}
	return id, data[:size:size]
}

// sizeOf spreads sizes like those of source files, with some empty and some large ones.
func sizeOf(n uint64) int {
	switch {
	case n%97 == 0:
		return 0
	case n%61 == 0:
		return 200_000 + int(n%1000)
	}
	return int(n * 2654435761 % 9000)
}

func openBlobs(t testing.TB, dir string, quota int64) *Blobs {
	t.Helper()
	b, err := OpenBlobs(dir, quota)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func put(t testing.TB, b *Blobs, n uint64, size int) {
	t.Helper()
	id, data := numbered(n, size)
	if err := b.Put(id, data); err != nil {
		t.Fatal(err)
	}
}

// check reads content n completely and reports whether it exists. Wrong bytes end the test.
func check(t testing.TB, b *Blobs, n uint64, size int) bool {
	t.Helper()
	id, want := numbered(n, size)
	c, ok := b.Get(id)
	if !ok {
		return false
	}
	defer c.Release()
	checkContent(t, c, n, want)
	if got, ok := b.Size(id); ok && got != int64(size) {
		t.Fatalf("content %d: got size %d, want %d", n, got, size)
	}
	return true
}

func checkContent(t testing.TB, c *Content, n uint64, want []byte) {
	t.Helper()
	got, err := io.ReadAll(io.NewSectionReader(c, 0, c.Size()))
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("content %d: got %d bytes, want %d; equal %v, error %v", n, len(got), len(want), bytes.Equal(got, want), err)
	}
}

func mustHave(t testing.TB, b *Blobs, n uint64, size int) {
	t.Helper()
	if !check(t, b, n, size) {
		t.Fatalf("content %d of %d bytes is missing", n, size)
	}
}

const plenty = 1 << 40

func TestContentsComeBack(t *testing.T) {
	dir := t.TempDir()
	b := openBlobs(t, dir, plenty)
	sizes := []int{0, 1, 4096, 64<<10 - headerSize, 64 << 10, maxSmall - 1, maxSmall, maxSmall + 1, 5 << 20}
	for round := range 2 {
		for n, size := range sizes {
			if round == 0 {
				put(t, b, uint64(n), size)
				put(t, b, uint64(n), size) // a second time changes nothing
			}
			mustHave(t, b, uint64(n), size)
		}
		if u := b.Usage(); u.Blobs != len(sizes) || u.Bytes < 8<<20 || u.Damaged != 0 {
			t.Fatalf("usage: got %+v", u)
		}
		before := b.Usage()
		b.Close()
		if round == 0 {
			b = openBlobs(t, dir, plenty)
			if after := b.Usage(); after != before {
				t.Fatalf("usage after reopening: got %+v, want %+v", after, before)
			}
		}
	}
	if _, ok := b.Get(object.ID{}); ok {
		t.Error("a closed cache returned contents for the null id")
	}
	id, data := numbered(99, 10)
	if err := b.Put(id, data); !errors.Is(err, ErrClosed) {
		t.Errorf("Put into a closed cache: got %v", err)
	}
}

func TestContentsThatAreStoredTogetherComeBack(t *testing.T) {
	dir := t.TempDir()
	b := openBlobs(t, dir, plenty)
	const files = 1000
	for first := uint64(0); first < files; first += 50 {
		var blobs []Blob
		for n := first; n < min(first+70, files); n++ { // some are here already
			id, data := numbered(n, sizeOf(n))
			blobs = append(blobs, Blob{id, data})
		}
		id, data := numbered(files+first, maxSmall+1) // has a file of its own
		if err := b.PutAll(append(blobs, Blob{id, data})); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.PutAll(nil); err != nil {
		t.Errorf("PutAll of nothing: %v", err)
	}
	before := b.Usage()
	if before.Blobs != files+files/50 {
		t.Errorf("%d blobs, want %d", before.Blobs, files+files/50)
	}
	for range 2 {
		for n := range uint64(files) {
			mustHave(t, b, n, sizeOf(n))
		}
		for first := uint64(0); first < files; first += 50 {
			mustHave(t, b, files+first, maxSmall+1)
		}
		b.Close()
		b = openBlobs(t, dir, plenty)
		if after := b.Usage(); after != before {
			t.Errorf("usage after reopening: %+v, want %+v", after, before)
		}
	}
	if err := b.PutAll([]Blob{{}}); !errors.Is(err, errNoID) {
		t.Errorf("PutAll without an id: %v", err)
	}
}

// TestTogetherOnAFullDisk: what PutAll does not store on a full disk, Put stores.
func TestTogetherOnAFullDisk(t *testing.T) {
	dir := smallDisk(t, "3m")
	b := openBlobs(t, dir, plenty)
	for first := uint64(0); first < 2000; first += 50 {
		putTogether(t, b, first)
		for n := first; n < first+50; n++ {
			mustHave(t, b, n, 4000)
		}
	}
	b.Close()
	b = openBlobs(t, dir, plenty)
	for n := range uint64(2000) {
		check(t, b, n, 4000)
	}
	if d := b.Usage().Damaged; d != 0 {
		t.Errorf("damaged contents: got %d", d)
	}
}

// putTogether stores 50 contents with PutAll, or those that it did not store with Put. It returns false if the disk is
// full.
func putTogether(t *testing.T, b *Blobs, first uint64) bool {
	t.Helper()
	var blobs []Blob
	for n := first; n < first+50; n++ {
		id, data := numbered(n, 4000)
		blobs = append(blobs, Blob{id, data})
	}
	err := b.PutAll(blobs)
	for i := 0; isFull(err) && i < len(blobs); i++ {
		if err := b.Put(blobs[i].ID, blobs[i].Data); isFull(err) {
			return false
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if err != nil && !isFull(err) {
		t.Fatal(err)
	}
	return true
}

// TestOthersReadWhatIsStoredTogether: a process that reads the segments, while the disk becomes full in the middle of
// several records, finds only complete ones.
func TestOthersReadWhatIsStoredTogether(t *testing.T) {
	dir := smallDisk(t, "3m")
	b, other := openBlobs(t, dir, plenty), openBlobs(t, dir, plenty)
	end := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		for n := uint64(0); ; n = (n + 1) % 2000 {
			select {
			case <-end:
				return
			default:
				check(t, other, n, 4000)
			}
		}
	})
	full := 0
	for first := uint64(0); first < 2000; first += 50 {
		if !putTogether(t, b, first) { // the other process holds the files of segments that were evicted
			full++
		}
	}
	close(end)
	reader.Wait()
	if d := other.Usage().Damaged; d != 0 {
		t.Errorf("damaged contents: got %d", d)
	}
	t.Logf("the disk was full %d times", full)
}

func TestSHA256AndSHA1IdsWithEqualBytesDiffer(t *testing.T) {
	b := openBlobs(t, t.TempDir(), plenty)
	long := make([]byte, 32)
	copy(long, "same beginning of it")
	id256, _ := object.FromBytes(long)
	id1, _ := object.FromBytes(long[:20])
	for i, id := range []object.ID{id256, id1} {
		if err := b.Put(id, []byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
	}
	for i, id := range []object.ID{id256, id1} {
		c, ok := b.Get(id)
		if !ok {
			t.Fatalf("no contents of %s", id)
		}
		checkContent(t, c, uint64(i), []byte{byte(i)})
		c.Release()
	}
	if err := b.Put(object.ID{}, nil); err == nil {
		t.Error("Put of the null id succeeded")
	}
}

func TestReadAtKeepsToTheContent(t *testing.T) {
	b := openBlobs(t, t.TempDir(), plenty)
	for n := range uint64(3) {
		put(t, b, n, 100)
	}
	id, want := numbered(1, 100)
	c, _ := b.Get(id)
	defer c.Release()
	p := make([]byte, 60)
	for _, tc := range []struct {
		off int64
		n   int
		err error
	}{{0, 60, nil}, {40, 60, nil}, {41, 59, io.EOF}, {99, 1, io.EOF}, {100, 0, io.EOF}, {1 << 40, 0, io.EOF}} {
		n, err := c.ReadAt(p, tc.off)
		if n != tc.n || err != tc.err || tc.n > 0 && !bytes.Equal(p[:n], want[tc.off:int(tc.off)+n]) {
			t.Errorf("read at offset %d: got %d, %v", tc.off, n, err)
		}
	}
	if _, err := c.ReadAt(p, -1); err == nil {
		t.Error("read at a negative offset succeeded")
	}
	c.Release()
	c.Release()
}

func TestSpoolFilesAreAdoptedOrVanish(t *testing.T) {
	for _, unnamed := range []bool{true, false} {
		t.Run(fmt.Sprintf("unnamed=%v", unnamed), func(t *testing.T) {
			dir := t.TempDir()
			b := openBlobs(t, dir, plenty)
			if unnamed && !b.folder.unnamed {
				t.Skip("the file system does not support O_TMPFILE")
			}
			b.folder.unnamed = unnamed
			id, data := numbered(1, 3<<20)
			f, err := b.Spool(int64(len(data)))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.Write(append(data[:len(data):len(data)], "what a retry left behind"...)); err != nil {
				t.Fatal(err)
			}
			if err := b.PutFile(id, f, int64(len(data))); err != nil {
				t.Fatal(err)
			}
			if _, err := f.Write([]byte{1}); !errors.Is(err, fs.ErrClosed) {
				t.Errorf("PutFile did not close the file: %v", err)
			}
			mustHave(t, b, 1, len(data))

			short, err := b.Spool(10)
			if err != nil {
				t.Fatal(err)
			}
			other, _ := numbered(2, 0)
			if err := b.PutFile(other, short, 10); err == nil {
				t.Error("PutFile of an empty file with size 10 succeeded")
			}
			left, err := b.Spool(10)
			if err != nil {
				t.Fatal(err)
			}
			left.Close() // closed without Put
			if _, err := b.Collect(plenty); err != nil {
				t.Fatal(err)
			}
			if names, _ := os.ReadDir(b.folder.tmpDir()); len(names) != 0 {
				t.Errorf("files in the directory: got %v", names)
			}
		})
	}
}

func TestSpoolRefusesWhatCannotFit(t *testing.T) {
	b := openBlobs(t, t.TempDir(), plenty)
	put(t, b, 1, 1000)
	if _, err := b.Spool(1 << 60); !isFull(err) {
		t.Errorf("Put of an exbibyte: got %v", err)
	}
	mustHave(t, b, 1, 1000) // a wrong size evicts nothing
}

func TestOthersBigFilesAreFoundAtOnce(t *testing.T) {
	dir := t.TempDir()
	a, b := openBlobs(t, dir, plenty), openBlobs(t, dir, plenty)
	put(t, a, 1, 2<<20)
	mustHave(t, b, 1, 2<<20)
	if x, y := a.Usage(), b.Usage(); x != y {
		t.Errorf("usage of both caches: got %+v and %+v", x, y)
	}
	if _, err := a.Collect(0); err != nil {
		t.Fatal(err)
	}
	if check(t, b, 1, 2<<20) || b.Usage().Bytes != 0 {
		t.Errorf("contents that another process evicted are still counted: %+v", b.Usage())
	}
}

func TestTheDirectoryMayBeDeletedAtAnyMoment(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "blobs")
	b := openBlobs(t, dir, plenty)
	put(t, b, 1, 1000)
	put(t, b, 2, 2<<20)
	id, want := numbered(1, 1000)
	held, _ := b.Get(id)
	defer held.Release()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	checkContent(t, held, 1, want)
	await.Until(t, "the cache notices that its files were removed",
		func() bool { return !check(t, b, 1, 1000) && !check(t, b, 2, 2<<20) })
	put(t, b, 3, 2<<20)
	put(t, b, 1, 1000)
	mustHave(t, b, 3, 2<<20)
	mustHave(t, b, 1, 1000)
	b.Close()
	b = openBlobs(t, dir, plenty)
	mustHave(t, b, 1, 1000)
}

func TestManyGoroutines(t *testing.T) {
	b := openBlobs(t, t.TempDir(), 24<<20) // small, so that contents are evicted
	const workers, each = 8, 1500
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 2))
			for range each {
				n := rng.Uint64N(4000)
				if rng.IntN(3) > 0 {
					id, data := numbered(n, sizeOf(n))
					if err := b.Put(id, data); err != nil {
						t.Error(err)
						return
					}
				}
				id, want := numbered(n, sizeOf(n))
				if c, ok := b.Get(id); ok {
					got := make([]byte, len(want))
					if _, err := c.ReadAt(got, 0); err != nil && err != io.EOF || !bytes.Equal(got, want) ||
						c.Size() != int64(len(want)) {
						t.Errorf("content %d has wrong bytes: %v", n, err)
					}
					c.Release()
				}
			}
		})
	}
	wg.Wait()
}
