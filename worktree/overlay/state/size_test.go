package state

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/await"
)

// resident returns the resident memory of the process, in bytes.
func resident(t testing.TB) (kib int64) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "RssAnon:")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// Half a million files take less than 150 bytes each, in one directory and in many.
func TestMemoryPerFile(t *testing.T) {
	const files = 500_000
	for _, dirs := range []int{1, 5000} {
		table := newTable(t)
		before, start := resident(t), time.Now()
		var applying time.Duration
		var b Batch
		parents := make([]Node, dirs)
		apply := func() {
			from := time.Now()
			if err := table.Apply(b.Bytes()); err != nil {
				t.Fatal(err)
			}
			applying += time.Since(from)
			b.Reset()
		}
		for i := range parents {
			parents[i], _ = table.NewNode()
			b.PutInode(&Inode{Node: parents[i], Mode: 0o40755, Nlink: 2, Parent: 1}, nil)
			b.SetEntry(1, fmt.Sprint("directory", i), parents[i])
			apply()
		}
		now := time.Now().UnixNano()
		for i := range files {
			n, err := table.NewNode()
			if err != nil {
				t.Fatal(err)
			}
			dir := parents[i%dirs]
			b.PutInode(&Inode{Node: n, Mode: 0o100644, Nlink: 1, Size: 1000, Atime: now, Mtime: now, Ctime: now,
				Content: uint64(i + 1), Parent: dir}, nil)
			b.SetEntry(dir, fmt.Sprintf("file%06d.go", i), n)
			apply()
		}
		each := float64(resident(t)-before) / files
		from := time.Now()
		for i := range files {
			if _, p := table.Entry(parents[i%dirs], fmt.Sprintf("file%06d.go", i)); p != Present {
				t.Fatalf("entry %d was not stored", i)
			}
		}
		looking := time.Since(from)
		var c Cursor
		from = time.Now()
		bytes, longest := 0, time.Duration(0)
		for done := false; !done; {
			b.Reset()
			slice := time.Now()
			c, done = table.Dump(c, 1000, &b)
			longest = max(longest, time.Since(slice))
			bytes += len(b.Bytes())
		}
		t.Logf("%d directories: %.1f bytes a file, create %v each (apply %v), look-up %v, dump %d MB in %v, longest slice %v",
			dirs, each,
			time.Since(start)/files, applying/files, looking/files, bytes>>20, time.Since(from), longest)
		if each > 150 && !await.Race {
			t.Errorf("%d directories: got %.1f bytes per file", dirs, each)
		}
	}
}
