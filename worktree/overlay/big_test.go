package overlay

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/await"
)

// TestHalfAMillionFiles limits the memory per file of a large overlay, and the time to open it again.
func TestHalfAMillionFiles(t *testing.T) {
	if testing.Short() {
		t.Skip("the test takes long")
	}
	const files, dirs = 500_000, 5_000
	w := newWorld(t, filepath.Join(t.TempDir(), "overlay"), Options{})
	w.mustOpen()
	var parents []Node
	for i := range dirs {
		w.must(w.l.Update(func(tx *Tx) error {
			n, err := tx.NewNode()
			tx.PutInode(Inode{Node: n, Mode: syscall.S_IFDIR | 0o755, Nlink: 2, Parent: root})
			tx.SetEntry(root, fmt.Sprintf("directory-%d", i), n)
			parents = append(parents, n)
			return err
		}))
	}
	begin := time.Now()
	for i := range files {
		w.must(w.l.Update(func(tx *Tx) error {
			n, err := tx.NewNode()
			now := Now()
			dir := parents[i%dirs]
			tx.PutInode(Inode{Node: n, Mode: syscall.S_IFREG | 0o644, Nlink: 1, UID: 1000, GID: 1000, Atime: now, Mtime: now,
				Ctime: now, Parent: dir})
			tx.SetEntry(dir, fmt.Sprintf("component-%d.test.tsx", i), n)
			return err
		}))
	}
	t.Logf("made: %v each", time.Since(begin)/files)
	begin = time.Now()
	changed := w.l.Changed()
	t.Logf("Changed took %v", time.Since(begin))
	if changed != files+dirs {
		t.Errorf("changed paths: got %d", changed)
	}
	size := w.l.wal.Size()
	for _, end := range []func(){w.kill, w.mustClose} {
		end()
		debug.FreeOSMemory()
		before := resident(t)
		begin := used(t) // processor time, which does not depend on other processes
		rec := w.mustOpen()
		took := used(t) - begin
		debug.FreeOSMemory()
		each := (resident(t) - before) / files
		t.Logf("%d records of %d MB: opened in %v of processor time (%v), %d bytes of memory a file", rec.Records, size>>20,
			took, rec.Start, each)
		if took > 2*time.Second && !await.Race {
			t.Errorf("Open took %v", took)
		}
		if each >= 200 && !await.Race {
			t.Errorf("memory per file: got %d bytes", each)
		}
	}
	begin = time.Now()
	w.must(w.l.janitor.compact())
	t.Logf("compacted from %d to %d MB in %v", size>>20, w.l.wal.Size()>>20, time.Since(begin))
	w.mustClose()
}

// used returns the processor time of this process.
func used(t *testing.T) time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		t.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// resident returns the anonymous memory of this process, without mapped files.
func resident(t *testing.T) int64 {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip(err)
	}
	var kb int64
	_, rest, _ := strings.Cut(string(b), "RssAnon:")
	if _, err := fmt.Sscan(rest, &kb); err != nil {
		t.Skip(err)
	}
	return kb << 10
}
