package worktree_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/artifactfs/artifactfs/worktree"
)

// A change of a file with very many names is recorded in a few records for all names, so its cost does not grow with
// their number, and a few such changes do not fill the journal.
func TestManyLinks(t *testing.T) {
	const links, changes = 10_000, 30
	w := newWorkspace(t, lazyFiles())
	long := strings.Repeat("d", 200)
	w.mkdir(long)
	w.create(long+"/first", "data")
	for i := 1; i < links; i++ {
		w.ok(w.link(long+"/first", fmt.Sprintf("%s/link%d", long, i)))
	}
	_, token := w.since("")
	before := w.journalSize()
	for i := range changes {
		w.set(long+"/first", Change{Set: SetMode, Mode: uint32(0o600 | i&1)})
		var paths string
		if paths, token = w.since(token); paths != long+"/ "+long+"/*" {
			t.Fatalf("paths after change %d of a file with %d names: got %.80q..., want the directory alone", i, links, paths)
		}
	}
	if grown := w.journalSize() - before; grown > 1<<20 {
		t.Errorf("journal after %d changes of a file with %d names: got %d bytes more, want at most 1 MiB",
			changes, links, grown)
	}
}

func (w *workspace) journalSize() int64 {
	w.t.Helper()
	st, err := os.Stat(filepath.Join(w.dir, "journal"))
	w.ok(err)
	return st.Size()
}

// All names of a changed file are among the reported paths, for any number of names in any directories.
func TestNamesOnRecord(t *testing.T) {
	for _, c := range []struct{ links, dirs int }{{2, 1}, {64, 3}, {65, 3}, {130, 64}, {200, 90}} {
		t.Run(fmt.Sprintf("%d in %d", c.links, c.dirs), func(t *testing.T) {
			w := newWorkspace(t, lazyFiles())
			for i := range c.dirs {
				w.mkdir(fmt.Sprint("n", i))
			}
			w.create("n0/first", "data")
			all := []string{"n0/first"}
			for i := 1; i < c.links; i++ {
				all = append(all, fmt.Sprintf("n%d/link%d", i%c.dirs, i))
				w.ok(w.link("n0/first", all[i]))
			}
			_, token := w.since("")
			w.write(w.node("n0/first"), "x", 0)
			// No further record is written if the directory or the whole tree has one already.
			w.ok(w.rename("n0/first", "n0/moved"))
			w.ok(w.unlink(all[len(all)-1]))
			changes, err := w.Monitor().Changes(token)
			w.ok(err)
			if all = append(all, "n0/moved"); c.dirs > 64 != changes.All {
				t.Errorf("the whole tree is reported as changed: got %v with names in %d directories", changes.All, c.dirs)
			}
			told := make(map[string]bool)
			for _, path := range changes.Paths {
				told[path] = true
			}
			for _, path := range all {
				if dir, _, _ := strings.Cut(path, "/"); !changes.All && !told[path] && !told[dir+"/"] {
					t.Errorf("%s is not among %d paths that changed", path, len(changes.Paths))
				}
			}
			_, token = w.since(changes.Token)
			if paths, _ := w.since(token); paths != "" {
				t.Errorf("paths without another change: got %.80q, want none", paths)
			}
		})
	}
}
