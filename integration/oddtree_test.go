package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// oddTree is a directory that git would not write. If git refuses to check it out, the clone shows less than the mount,
// and the fields state what the mount shows.
type oddTree struct {
	entries func(r oddRepo) []oddEntry
	shown   string   // names that the mount shows, if the clone shows others
	hidden  []string // beginnings of the names that the status must list
	kept    []string // paths of the next commit that the mount does not show, as prefixes below the directory
	removed string   // git's status, if git refuses entries
}

// oddTrees are the odd directories of the table test, by name.
var oddTrees = map[string]oddTree{
	"long name": {entries: func(r oddRepo) []oddEntry {
		return []oddEntry{r.file(strings.Repeat("日本", 45)+".md", "long\n"), r.file("normal", "n\n")}
	}, shown: "normal", hidden: []string{"日本"}, kept: []string{"日本"}},
	"long directory": {entries: func(r oddRepo) []oddEntry {
		return []oddEntry{r.dir(strings.Repeat("n", 300), r.file("in", "in\n"), r.dir("deep", r.file("er", "er\n"))),
			r.file("normal", "n\n")}
	}, shown: "normal", hidden: []string{"nnn"}, kept: []string{"nnn"}},
	"duplicate": {entries: func(r oddRepo) []oddEntry {
		return []oddEntry{r.file("n", "n\n"), r.file("x", "1\n"), r.file("x", "2\n")}
	}, hidden: []string{"x"}},
	"duplicate apart": {entries: func(r oddRepo) []oddEntry {
		return []oddEntry{r.file("a", "1\n"), r.file("b", "b\n"), r.file("a", "2\n")}
	}, hidden: []string{"a"}},
	"file, then directory": {entries: func(r oddRepo) []oddEntry {
		return []oddEntry{r.file("a", "1\n"), r.file("a.b", "b\n"), r.dir("a", r.file("in", "in\n")), r.file("z", "z\n")}
	}, hidden: []string{"a"}},
	"directory, then file": {entries: func(r oddRepo) []oddEntry {
		return []oddEntry{r.dir("a", r.file("in", "in\n")), r.file("a", "1\n"), r.file("z", "z\n")}
	}, hidden: []string{"a"}},
	"two directories": {entries: func(r oddRepo) []oddEntry {
		return []oddEntry{r.dir("a", r.file("in", "in\n")), r.dir("a", r.file("jn", "jn\n")), r.file("z", "z\n")}
	}, shown: "a\na/jn\nz", hidden: []string{"a"}, kept: []string{"a/in"}},
	"out of order": {entries: func(r oddRepo) []oddEntry {
		return []oddEntry{r.file("z", "z\n"), r.file("a", "a\n"), r.dir("m", r.file("in", "in\n")), r.file("b", "b\n")}
	}},
	"modes": {entries: func(r oddRepo) []oddEntry {
		f := r.file("", "f\n").id
		return []oddEntry{{"0", "a", f}, {"010644", "b", f}, {"100664", "c", f}, {"104755", "d", f}, {"120777", "e", f},
			{"0000100644", "f", f}}
	}},
	"dot git": {entries: func(r oddRepo) []oddEntry {
		return []oddEntry{r.dir(".GIT", r.file("config", "c\n")), r.file(".git", "g\n"), r.file("git~1", "s\n"),
			r.file("n", "n\n")}
	}, shown: "n", hidden: []string{".git", ".GIT", "git~1"}, removed: "D  odd/.GIT/config\nD  odd/.git\nD  odd/git~1"},
	"HFS": {entries: func(r oddRepo) []oddEntry { return []oddEntry{r.file(".g\u200cit", "h\n"), r.file("n", "n\n")} }},
	"dots": {entries: func(r oddRepo) []oddEntry {
		return []oddEntry{r.file(".", "d\n"), r.dir("..", r.file("in", "i\n")), r.file("n", "n\n")}
	}, shown: "n", hidden: []string{"."}, removed: "D  odd/.\nD  odd/../in"},
}

// namesBelow returns the paths of the files and directories below a directory, without .git.
func namesBelow(t *testing.T, dir string) string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if name, _ := filepath.Rel(dir, path); err == nil && name != "." && name != ".git" {
			names = append(names, name)
		} else if name == ".git" && e.IsDir() {
			return filepath.SkipDir
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	slices.Sort(names)
	return strings.Join(names, "\n")
}

// TestOddTrees mounts directories that git would not write, beside a clone. The mount must show the same names, or more
// where git refuses all of them, and neither a commit nor a checkpoint may lose the others.
func TestOddTrees(t *testing.T) {
	for name, odd := range oddTrees {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			r := w.oddRepo("r.git", object.SHA1)
			tree := r.tree(r.around(false, odd.entries(r)...)...)
			r.publish("main", tree)
			url := w.serve(gittest.ServerOptions{}).URL("r.git")
			m := w.bare(url, "--wait", "git")
			clone := w.place("c")
			cloned := exec.Command("git", "clone", "--quiet", url, clone).Run() == nil
			if want := odd.shown == ""; cloned != want && name != "two directories" {
				t.Errorf("git can clone the tree: got %v, want %v", cloned, want)
			}
			shown := odd.shown
			if shown == "" {
				shown = namesBelow(t, filepath.Join(clone, "odd"))
			}
			if got := namesBelow(t, m.path("odd")); got != shown {
				t.Errorf("names in the mount: got %q, want %q", got, shown)
			}
			for _, name := range strings.Split(shown, "\n") { // a lookup of a name must find it too
				if _, err := os.Lstat(m.path("odd/" + name)); err != nil {
					t.Errorf("look up: %v", err)
				}
			}
			notes := strings.Join(m.status().Notes, "\n")
			for _, name := range odd.hidden {
				if !strings.Contains(notes, `"odd/`+name) {
					t.Errorf("notes of the status: got %q, want odd/%s", notes, name)
				}
			}
			if len(odd.hidden) == 0 && strings.Contains(notes, "not shown") {
				t.Errorf("notes of the status: got %q, want none", notes)
			}
			want := odd.removed
			if cloned {
				want = w.git(clone, "status", "--porcelain")
			}
			if got := w.git(m.Dir, "status", "--porcelain"); got != want && name != "two directories" {
				t.Errorf("status: got %q, want %q", got, want)
			}
			kept := func(what, tree string) {
				t.Helper()
				paths := strings.Split(w.git(m.Dir, "-c", "core.quotePath=false", "ls-tree", "-r", "--name-only", tree), "\n")
				for _, name := range slices.Concat([]string{"root", "plain/a", "plain/b"}, strings.Split(shown, "\n"), odd.kept) {
					if !slices.ContainsFunc(paths,
						func(p string) bool { return strings.HasPrefix(p, name) || strings.HasPrefix(p, "odd/"+name) }) {
						t.Errorf("%s: got paths %.200q, want %s", what, paths, name)
					}
				}
			}
			for _, dir := range []string{m.Dir, clone} {
				if dir == clone && !cloned {
					continue
				}
				if err := os.WriteFile(filepath.Join(dir, "root"), []byte("changed\n"), 0o644); err != nil {
					t.Fatal(err)
				}
				w.git(dir, "add", "-A")
				w.git(dir, "commit", "-qam", "two")
			}
			kept("commit", "HEAD")
			if cloned {
				if got, want := w.git(m.Dir, "ls-tree", "-r", "HEAD"), w.git(clone, "ls-tree", "-r", "HEAD"); got != want {
					t.Errorf("committed tree: got %s, want %s", got, want)
				}
			}
			if got := w.git(m.Dir, "status", "--porcelain"); got != "" {
				t.Errorf("status after the commit: got %q, want nothing", got)
			}
			if err := os.WriteFile(m.path("root"), []byte("again\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			w.git(m.Dir, "stash")
			w.git(m.Dir, "stash", "pop")
			w.git(m.Dir, "reset", "-q", "--hard")
			if got := namesBelow(t, m.path("odd")); got != shown {
				t.Errorf("names after stash and reset: got %q, want %q", got, shown)
			}
			kept("index", w.git(m.Dir, "write-tree"))
			m.await("there is a session", func(st control.MountStatus) bool { return st.GitReady })
			if err := os.WriteFile(m.path("odd/new"), []byte("new\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			id := strings.TrimSpace(w.ok("checkpoint", m.Dir))
			if err := os.Remove(m.path("odd/new")); err != nil {
				t.Fatal(err)
			}
			w.ok("session", "restore", "-C", m.Dir, id)
			if got := namesBelow(t, m.path("odd")); !strings.Contains("\n"+got+"\n", "\nnew\n") {
				t.Errorf("names after the restore: got %q, want new among them", got)
			}
			kept("index after the restore", w.git(m.Dir, "write-tree"))
			w.unmount(m)
		})
	}
}
