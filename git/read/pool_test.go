package read

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// read returns the contents of the file path in the commit name.
func (r Repo) read(t *testing.T, name, path string) string {
	t.Helper()
	b, err := r.File(t.Context(), name, path)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	text, err := io.ReadAll(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// pids returns the ids of the processes in a pool.
func (p *Pool) pids() (list []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.idle {
		list = append(list, b.cmd.Process.Pid)
	}
	return list
}

func TestPoolUsesOneProcess(t *testing.T) {
	r, src := repo(t, map[string]gittest.File{"f": text("one"), "d/g": text("two")})
	r.Pool = &Pool{}
	t.Cleanup(func() { r.Pool.Close() })
	if got := r.read(t, "main", "f"); got != "one" {
		t.Errorf("got %q", got)
	}
	first := r.Pool.pids()
	r.read(t, "main", "d/g")
	if err := r.Entries(t.Context(), gittest.Must(t, src.Path, "rev-parse", "main^{tree}"),
		func(Entry) bool { return true }); err != nil {
		t.Error(err)
	}
	if _, err := r.File(t.Context(), "main", "none"); !errors.Is(err, ErrNotFound) {
		t.Errorf("missing file: %v", err)
	}
	if _, err := r.File(t.Context(), "main", "d"); !errors.Is(err, ErrNotFound) {
		t.Errorf("directory: %v", err)
	}
	if now := r.Pool.pids(); len(first) != 1 || len(now) != 1 || now[0] != first[0] {
		t.Errorf("processes %v, then %v, want the same one", first, now)
	}
	// A blob that was not read to its end leaves bytes in the pipe.
	b, err := r.File(t.Context(), "main", "f")
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
	if now := r.Pool.pids(); len(now) != 0 {
		t.Errorf("process %v is used again after a blob was not read to its end", now)
	}
}

// TestPoolSeesChanges checks that a waiting process finds the new packs and refs of a replica, after old ones were
// removed.
func TestPoolSeesChanges(t *testing.T) {
	r, src := repo(t, map[string]gittest.File{"f": text("one")})
	r.Pool = &Pool{}
	t.Cleanup(func() { r.Pool.Close() })
	gittest.Must(t, src.Path, "pack-refs", "--all")
	r.read(t, "main", "f")
	first := r.Pool.pids()
	for _, content := range []string{"two", "three", "four"} {
		if _, err := src.Commit("main", map[string]gittest.File{"f": text(content)}, content); err != nil {
			t.Fatal(err)
		}
		gittest.Must(t, src.Path, "repack", "-a", "-d", "-q")
		gittest.Must(t, src.Path, "pack-refs", "--all")
		if got := r.read(t, "main", "f"); got != content {
			t.Errorf("got %q, want %q", got, content)
		}
	}
	gittest.Must(t, src.Path, "update-ref", "refs/heads/other", "main~1")
	gittest.Must(t, src.Path, "symbolic-ref", "HEAD", "refs/heads/other")
	if got := r.read(t, "HEAD", "f"); got != "three" {
		t.Errorf("HEAD: got %q, want three", got)
	}
	if now := r.Pool.pids(); len(now) != 1 || now[0] != first[0] {
		t.Errorf("processes %v, then %v, want the same one", first, now)
	}
	for old := range strings.Lines(gittest.Must(t, src.Path, "rev-list", "--objects", "--no-object-names", "--all")) {
		if _, err := r.info(t.Context(), strings.TrimSpace(old)); err != nil {
			t.Error(err)
		}
	}
}

func TestPoolReplacesDeadProcesses(t *testing.T) {
	r, _ := repo(t, map[string]gittest.File{"f": text("one")})
	r.Pool = &Pool{}
	t.Cleanup(func() { r.Pool.Close() })
	r.read(t, "main", "f")
	dead := r.Pool.pids()
	process, err := os.FindProcess(dead[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Kill(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if got := r.read(t, "main", "f"); got != "one" {
			t.Errorf("got %q", got)
		}
	}
	if now := r.Pool.pids(); len(now) != 1 || now[0] == dead[0] {
		t.Errorf("processes %v after the death of %v", now, dead)
	}
}

func TestPoolIsLimited(t *testing.T) {
	r, _ := repo(t, map[string]gittest.File{"f": text("one")})
	pool := &Pool{}
	r.Pool = pool
	var open []*Blob
	for range maxIdle + 3 {
		b, err := r.File(t.Context(), "main", "f")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(b); err != nil {
			t.Fatal(err)
		}
		open = append(open, b)
	}
	for _, b := range open {
		b.Close()
	}
	await.Until(t, "processes beyond the limit are ended", func() bool { return len(pool.pids()) <= maxIdle })
	if err := pool.Close(); err != nil || len(pool.pids()) != 0 {
		t.Errorf("processes %v after Close, %v", pool.pids(), err)
	}
	r.read(t, "main", "f")
	if now := pool.pids(); len(now) != 0 {
		t.Errorf("process %v is kept after Close", now)
	}
	missing := Repo{Dir: filepath.Join(t.TempDir(), "none"), Git: confined, Pool: &Pool{}}
	if _, err := missing.Resolve(t.Context(), "main"); err == nil || errors.Is(err, ErrNotFound) {
		t.Errorf("missing repository: %v", err)
	}
	if now := missing.Pool.pids(); len(now) != 0 {
		t.Errorf("process %v of a missing repository is kept", now)
	}
}
