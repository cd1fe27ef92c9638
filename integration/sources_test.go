package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// If HEAD of the remote names a branch that does not exist, the mount is empty like a clone, and has the other
// branches.
func TestHeadNamesNoBranch(t *testing.T) {
	w := newWorld(t)
	r := w.storied(object.SHA1)
	w.git(r.Path, "symbolic-ref", "HEAD", "refs/heads/gone")
	url := w.serve(gittest.ServerOptions{}).URL("storied.git")
	m, clone := w.mount(url, "--wait", "all"), w.clone(url)
	if m.Commit != "" || m.Ref != "gone" {
		t.Errorf("mounted %q at %q, want gone without a commit", m.Ref, m.Commit)
	}
	if notes := strings.Join(m.status().Notes, "\n"); !strings.Contains(notes, "refs/heads/gone") {
		t.Errorf("notes of the mount: %q, want one that names refs/heads/gone", notes)
	}
	for _, args := range [][]string{{"for-each-ref"}, {"status", "--porcelain=v2", "--branch"},
		{"switch", "--quiet", "main"}, {"log", "--oneline"}} {
		if got, want := w.git(m.Dir, args...), w.git(clone, args...); got != want {
			t.Errorf("git %s: got %q, in a clone %q", strings.Join(args, " "), got, want)
		}
	}
	w.compareTrees(m.Dir, clone)
}

// A server that advertises filters and refuses them is read like one that has none.
func TestRefusedFilters(t *testing.T) {
	w := newWorld(t)
	r := w.storied(object.SHA1)
	w.git(r.Path, "config", "uploadpackfilter.allow", "false")
	url := w.serve(gittest.ServerOptions{}).URL("storied.git")
	m, clone := w.mount(url, "--wait", "all"), w.clone(url)
	w.compareTrees(m.Dir, clone)
	if got, want := w.git(m.Dir, "log", "--oneline", "--stat"), w.git(clone, "log", "--oneline", "--stat"); got != want {
		t.Errorf("git log: got %q, in a clone %q", got, want)
	}
	if notes := strings.Join(m.status().Notes, "\n"); !strings.Contains(notes, "filter") {
		t.Errorf("notes of the mount: %q, want one about filters", notes)
	}
}

// A bundle is a remote, also after it was replaced.
func TestBundleIsARemote(t *testing.T) {
	w := newWorld(t)
	r := w.storied(object.SHA1)
	bundle := filepath.Join(w.place("bundles"), "all.bundle")
	if err := os.MkdirAll(filepath.Dir(bundle), 0o755); err != nil {
		t.Fatal(err)
	}
	w.git(r.Path, "bundle", "create", "--quiet", bundle, "--all")
	m, clone := w.mount(bundle, "--wait", "all"), w.clone(bundle)
	w.compareTrees(m.Dir, clone)
	for _, args := range [][]string{{"for-each-ref"}, {"log", "--oneline"}, {"status", "--porcelain=v2", "--branch"}} {
		if got, want := w.git(m.Dir, args...), w.git(clone, args...); got != want {
			t.Errorf("git %s: got %q, in a clone %q", strings.Join(args, " "), got, want)
		}
	}
	head := w.commit(r, map[string]gittest.File{"added": {Data: []byte("new\n")}})
	w.git(r.Path, "bundle", "create", "--quiet", bundle, "--all")
	w.ok("refresh", m.Dir)
	w.git(m.Dir, "merge", "--quiet", "--ff-only", "origin/main")
	if got := w.git(m.Dir, "rev-parse", "HEAD"); got != head.String() {
		t.Errorf("HEAD after the bundle was replaced: got %s, want %s", got, head)
	}
	if text, err := os.ReadFile(filepath.Join(m.Dir, "added")); err != nil || string(text) != "new\n" {
		t.Errorf("file of the replaced bundle: got %q, %v", text, err)
	}
	w.unmount(m)
	bad := filepath.Join(filepath.Dir(bundle), "bad.bundle")
	if err := os.WriteFile(bad, []byte("# v2 git bundle\nnot a ref\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if res := w.afs("mount", bad, w.place("bad")); res.code == 0 || !strings.Contains(res.stderr, "bad.bundle") {
		t.Errorf("mount of a damaged bundle: got %s, want an error that names it", res)
	}
}
