package fuse

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/await"
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

// TestMemoryPerPath checks that the daemon's memory grows by at most 300 bytes per path in a walk, and that a second
// walk sends no request.
func TestMemoryPerPath(t *testing.T) {
	n := 100_000
	if testing.Short() || await.Race {
		n = 10_000
	}
	m := mount(t, manyFiles(n))
	m.src.KnowsSizes.Store(true)
	before := residentBytes(t)
	requests, cold := m.timed(m.dir, "find", ".", "-size", "+100k")
	perPath := float64(residentBytes(t)-before) / float64(m.tree.Base().Counts().Nodes)
	t.Logf("%d paths: %.0f bytes of resident memory each, cold walk with stat %v, %v", m.tree.Base().Counts().Nodes,
		perPath, cold, requests)
	if perPath > 300 && !await.Race {
		t.Errorf("resident memory per path: got %.0f bytes, want at most 300", perPath)
	}
	if total(requests) > uint64(n)/4 {
		t.Errorf("cold walk of %d paths made %v requests", n, requests)
	}
	undisturbed(t, func() (errs []error) {
		if requests, warm := m.timed(m.dir, "find", ".", "-size", "+100k"); total(requests) != 0 {
			errs = append(errs, fmt.Errorf("warm walk made requests: %v in %v", requests, warm))
		}
		return errs
	})
}

// BenchmarkWarm compares walks and reads that the kernel answers from its caches with the same on a native file system.
func BenchmarkWarm(b *testing.B) {
	files := manyFiles(20_000)
	dirs := map[string]string{"mount": mount(b, files).dir, "native": b.TempDir()}
	for path, f := range files {
		path = filepath.Join(dirs["native"], path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, []byte(f.Data), 0o666)); err != nil {
			b.Fatal(err)
		}
	}
	for _, command := range [][]string{{"find", ".", "-size", "+100k"}, {"grep", "-rc", "nothing like it"}} {
		for _, where := range []string{"native", "mount"} {
			run := func() {
				cmd := exec.Command(command[0], command[1:]...)
				cmd.Dir = dirs[where]
				if out, err := cmd.CombinedOutput(); err != nil && cmd.ProcessState.ExitCode() != 1 {
					b.Fatalf("run %q: %v\n%s", command, err, out)
				}
			}
			run()
			b.Run(command[0]+"/"+where, func(b *testing.B) {
				for b.Loop() {
					run()
				}
			})
		}
	}
}

// BenchmarkCold walks and reads with the kernel's caches dropped before.
func BenchmarkCold(b *testing.B) {
	m := mount(b, manyFiles(20_000))
	m.src.KnowsSizes.Store(true)
	for _, command := range [][]string{{"ls", "-R"}, {"find", ".", "-size", "+100k"}, {"grep", "-rc", "nothing like it"}} {
		b.Run(command[0], func(b *testing.B) {
			var spent time.Duration
			var made uint64
			for b.Loop() {
				b.StopTimer()
				dropCaches(b)
				b.StartTimer()
				requests, took := m.timed(m.dir, command[0], command[1:]...)
				spent, made = spent+took, made+total(requests)
			}
			b.ReportMetric(float64(made)/float64(b.N), "requests/op")
			b.ReportMetric(float64(spent.Microseconds())/float64(made), "us/request")
		})
	}
}

// timed runs a command in dir and returns its requests and its duration. The command may exit with 1, as grep does
// without a match.
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
			m.Fatalf("run benchmark %s: %v\n%s", name, err, out)
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

// residentBytes returns the resident memory of this process after a garbage collection.
func residentBytes(t testing.TB) int64 {
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
