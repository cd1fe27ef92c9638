package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// After the end of all forks, "cache gc" frees the disk space of the contents that the parent has replaced.
func TestForkContentsAreReclaimed(t *testing.T) {
	w, _, m := forkRepo(t)
	forked := m.everythingIn()
	f := m.fork("fork")
	w.sh(m.Dir, "rm build/program && head -c 400000 /dev/urandom >build/program && rm -r node_modules")
	want := m.everythingIn()
	w.unmount(m)
	collect := func(what string, bytes int64, flags ...string) {
		t.Helper()
		var freed struct {
			Bytes int64 `json:"shared_bytes"`
			Files int64 `json:"shared_files"`
		}
		text := w.ok(append([]string{"cache", "gc", "--json"}, flags...)...)
		if err := json.Unmarshal([]byte(text), &freed); err != nil || freed.Bytes < bytes || bytes == 0 && freed.Files > 0 {
			t.Errorf("%s: got %+v, %v, want at least %d bytes", what, freed, err, bytes)
		}
	}
	collect("while the fork uses the contents", 0)
	f.wantCarried("fork after gc", forked)
	w.ok("unmount", "--discard", "--yes", f.Dir)
	collect("while the fork is in the trash", 0)
	if err := os.RemoveAll(filepath.Join(w.state, "trash")); err != nil {
		t.Fatal(err)
	}
	collect("dry run", 300_000, "--dry-run")
	collect("after the end of the fork", 300_000)
	collect("again", 0)
	w.ok("mount", m.Remote, m.Dir, "--session", m.Session, "--history", "none", "--prefetch", "none", "--checkpoint", "off")
	m.wantCarried("parent after gc", want)
	g := m.fork("second")
	g.wantCarried("fork after gc", want)
}
