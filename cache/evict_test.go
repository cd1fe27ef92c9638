package cache

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestEvictionKeepsTheQuotaAndWhatIsUsed(t *testing.T) {
	const quota, size = 20 << 20, 10_000
	b := openBlobs(t, t.TempDir(), quota)
	put(t, b, 0, size)
	held := map[uint64]*Content{}
	for n := uint64(1); n < 10_000; n++ {
		put(t, b, n, size)
		if n%50 == 0 { // used repeatedly
			mustHave(t, b, 0, size)
		}
		if n <= 3 || n%1000 == 0 {
			id, _ := numbered(n, 0)
			c, ok := b.Get(id)
			if !ok {
				t.Fatalf("content %d was evicted immediately after Put", n)
			}
			held[n] = c
		}
		if u := b.Usage(); u.Bytes > quota+size+headerSize {
			t.Fatalf("usage is %d bytes, but the quota is %d", u.Bytes, quota)
		}
	}
	mustHave(t, b, 9_999, size)
	if check(t, b, 500, size) { // 1 is in the same segment as 0
		t.Error("the least recently used contents were not evicted")
	}
	for n, c := range held {
		_, want := numbered(n, size)
		checkContent(t, c, n, want)
		c.Release()
	}
	if u := b.Usage(); u.Bytes < quota/2 || u.Blobs < quota/2/size {
		t.Errorf("eviction removed too much: usage %+v", u)
	}
}

func TestEvictedFilesAreClosed(t *testing.T) {
	b := openBlobs(t, t.TempDir(), 4<<20)
	for n := range uint64(3000) {
		put(t, b, n, 10_000)
		check(t, b, n, 10_000)
	}
	links, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	deleted := 0
	for _, l := range links {
		target, _ := os.Readlink("/proc/self/fd/" + l.Name())
		if filepath.Dir(target) == b.folder.segDir() && filepath.Ext(target) != segmentSuffix { // "... (deleted)"
			deleted++
		}
	}
	if deleted > 0 {
		t.Errorf("descriptors of evicted segments: got %d, want 0", deleted)
	}
}

func TestBigFilesAreEvictedToo(t *testing.T) {
	b := openBlobs(t, t.TempDir(), 12<<20)
	const size = 2 << 20
	for n := range uint64(20) {
		put(t, b, n, size)
		mustHave(t, b, n, size)
		mustHave(t, b, 0, size)
	}
	if u := b.Usage(); u.Bytes > 12<<20 || u.Blobs != 5 {
		t.Errorf("usage: got %+v", u)
	}
	if check(t, b, 1, size) {
		t.Error("the oldest contents were not evicted")
	}
	put(t, b, 100, 30<<20) // larger than the quota: the reader that waits for the contents must get them
	mustHave(t, b, 100, 30<<20)
}

func TestUseByOthersAndBeforeARestartCounts(t *testing.T) {
	dir := t.TempDir()
	b := openBlobs(t, dir, plenty)
	for n := range uint64(6) {
		put(t, b, n, 2<<20)
	}
	b.Close()
	for n := range uint64(6) { // set the times of the last uses: 3 lately, the others in this order
		id, _ := numbered(n, 0)
		used := time.Now().Add(time.Duration(n)*time.Minute - time.Hour)
		if n == 3 {
			used = time.Now()
		}
		if err := os.Chtimes(b.folder.bigPath(id), used, used); err != nil {
			t.Fatal(err)
		}
	}
	b = openBlobs(t, dir, 7<<20)
	for n, want := range []bool{false, false, false, true, true, true} {
		if got := check(t, b, uint64(n), 2<<20); got != want {
			t.Errorf("content %d exists: got %v, want %v", n, got, want)
		}
	}
	id, _ := numbered(4, 0)
	if info, err := os.Stat(b.folder.bigPath(id)); err != nil || time.Since(info.ModTime()) > stampEvery {
		t.Errorf("the time of the last use of content 4 was not updated: %v, %v", info.ModTime(), err)
	}
}

func TestSetQuotaAndCollect(t *testing.T) {
	b := openBlobs(t, t.TempDir(), 64<<20)
	for n := range uint64(3000) {
		put(t, b, n, 10_000)
	}
	b.SetQuota(10 << 20)
	if u := b.Usage(); u.Bytes > 10<<20 || u.Quota != 10<<20 || u.Bytes < 4<<20 {
		t.Errorf("usage after SetQuota: got %+v", u)
	}
	before := b.Usage().Bytes
	freed, err := b.Collect(0)
	if u := b.Usage(); err != nil || freed != before || u.Bytes != 0 || u.Blobs != 0 {
		t.Errorf("Collect(0) freed %d of %d bytes, usage %+v, %v", freed, before, u, err)
	}
	put(t, b, 1, 10)
	mustHave(t, b, 1, 10)
}

// smallDisk mounts a file system of size bytes.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("cannot mount a small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestAFullDisk(t *testing.T) {
	dir := smallDisk(t, "12m")
	b := openBlobs(t, filepath.Join(dir, "blobs"), plenty)
	// The quota is larger than the disk, so only eviction on ENOSPC frees space.
	for n := range uint64(4000) {
		put(t, b, n, 10_000)
		mustHave(t, b, n, 10_000)
	}
	for n := uint64(5000); n < 5010; n++ {
		put(t, b, n, 3<<20)
		mustHave(t, b, n, 3<<20)
	}
	put(t, b, 6000, 10_000)
	mustHave(t, b, 6000, 10_000)

	// Another program fills the disk, and no contents can be evicted.
	if _, err := b.Collect(0); err != nil {
		t.Fatal(err)
	}
	filler := filepath.Join(dir, "filler")
	f, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 64<<10)
	for err == nil {
		_, err = f.Write(block)
	}
	if !isFull(err) {
		t.Fatal(err)
	}
	for _, size := range []int{10_000, maxSmall, 3 << 20} {
		id, data := numbered(7000, size)
		if err := b.Put(id, data); !isFull(err) {
			t.Fatalf("Put of %d bytes on a full disk: got %v", size, err)
		}
		if check(t, b, 7000, size) {
			t.Fatalf("contents of %d bytes exist although Put failed", size)
		}
	}
	if err := os.Truncate(filler, 5<<20); err != nil {
		t.Fatal(err)
	}
	for n := uint64(7000); n < 7100; n++ {
		put(t, b, n, 10_000)
	}
	b.Close()
	b = openBlobs(t, filepath.Join(dir, "blobs"), plenty)
	for n := uint64(7000); n < 7100; n++ {
		mustHave(t, b, n, 10_000)
	}
	if got := len(segmentFiles(t, filepath.Join(dir, "blobs"))); got > 2 {
		t.Errorf("refused contents left %d segments", got)
	}
}

// TestARecordCutByAFullDisk: the disk becomes full in the middle of records of all sizes.
func TestARecordCutByAFullDisk(t *testing.T) {
	dir := smallDisk(t, "3m")
	b := openBlobs(t, dir, plenty)
	size := func(n uint64) int { return int(n*7919) % 300_000 }
	for n := range uint64(300) {
		put(t, b, n, size(n))
		mustHave(t, b, n, size(n))
	}
	b.Close()
	b = openBlobs(t, dir, plenty)
	for n := range uint64(300) {
		check(t, b, n, size(n))
	}
	if d := b.Usage().Damaged; d != 0 {
		t.Errorf("damaged contents: got %d", d)
	}
}
