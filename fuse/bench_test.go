package fuse

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// manyFiles makes n small files, 25 a directory, three levels deep.
func manyFiles(n int) map[string]worktreetest.File {
	files := make(map[string]worktreetest.File, n)
	for i := range n {
		path := fmt.Sprintf("area%02d/package%04d/module%d/source_file_%06d.go", i/5000, i/500, i/25, i)
		files[path] = worktreetest.File{Data: fmt.Sprintf("package module%d // file %d\n", i/25, i)}
	}
	return files
}

// TestMemoryPerPath holds the daemon's memory after a walk to what a path may cost, and shows the walk's times
// beside those of the same files in a native file system.
func TestMemoryPerPath(t *testing.T) {
	n := 100_000
	if testing.Short() || raceEnabled {
		n = 10_000
	}
	files := manyFiles(n)
	m := mount(t, files)
	m.src.KnowsSizes.Store(true)
	before := residentBytes(t)
	requests, cold := m.timed(m.dir, "find", ".", "-size", "+100k")
	perPath := float64(residentBytes(t)-before) / float64(m.tree.Counts().Nodes)
	t.Logf("%d paths, %.0f bytes of resident memory each", m.tree.Counts().Nodes, perPath)
	if perPath > 300 && !raceEnabled {
		t.Errorf("a path costs %.0f bytes of resident memory, limit is 300", perPath)
	}
	t.Logf("cold walk with stat %v, %v", cold, requests)
	if total(requests) > uint64(n)/4 {
		t.Errorf("cold walk of %d paths made %v requests", n, requests)
	}
	requests, warm := m.timed(m.dir, "find", ".", "-size", "+100k")
	t.Logf("warm walk with stat %v, %v", warm, requests)
	if total(requests) != 0 {
		t.Errorf("warm walk made requests: %v", requests)
	}
	requests, coldGrep := m.timed(m.dir, "grep", "-rc", "nothing like it", "area00")
	t.Logf("cold grep -r of 5,000 files %v, %v", coldGrep, requests)
	requests, warmGrep := m.timed(m.dir, "grep", "-rc", "nothing like it", "area00")
	t.Logf("warm grep -r of 5,000 files %v, %v", warmGrep, requests)
	if total(requests) != 0 {
		t.Errorf("warm grep made requests: %v", requests)
	}
	if testing.Short() {
		return
	}
	native := t.TempDir()
	for path, f := range files {
		path = filepath.Join(native, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(f.Data), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	_, walk := m.timed(native, "find", ".", "-size", "+100k")
	_, grep := m.timed(native, "grep", "-rc", "nothing like it", "area00")
	t.Logf("native, warm: walk %v, grep %v", walk, grep)
}

// timed runs a command in dir, which may find nothing, and gives the requests and the time it took.
func (m *mounted) timed(dir, name string, args ...string) (map[string]uint64, time.Duration) {
	m.Helper()
	var took time.Duration
	requests := m.requests(func() {
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		start := time.Now()
		out, err := cmd.CombinedOutput()
		took = time.Since(start)
		if err != nil && cmd.ProcessState.ExitCode() != 1 {
			m.Fatalf("%s: %v\n%s", name, err, out)
		}
	})
	return requests, took
}

func total(requests map[string]uint64) (n uint64) {
	for _, v := range requests {
		n += v
	}
	return n
}

// residentBytes is this process's resident memory after a collection.
func residentBytes(t *testing.T) int64 {
	t.Helper()
	debug.FreeOSMemory()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := bytes.Cut(status, []byte("VmRSS:"))
	kib, err := strconv.ParseInt(string(bytes.Fields(rest)[0]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}
