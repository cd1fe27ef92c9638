package gitread

import (
	"encoding/hex"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

func TestConflicts(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	r, g := repo(t, map[string]gittest.File{"a": text("1\n2\n3\n4\n5\n6\n"), "b": text("b\n")})
	commit := func(branch, a, b string) {
		t.Helper()
		if _, err := g.Commit(branch, map[string]gittest.File{"a": text(a), "b": text(b)}, branch); err != nil {
			t.Fatal(err)
		}
	}
	base := gittest.Must(t, r.Dir, "rev-parse", "main^{tree}")
	for _, b := range []string{"top", "end", "clash"} {
		gittest.Must(t, r.Dir, "branch", b, "main")
	}
	commit("top", "0\n2\n3\n4\n5\n6\n", "b\n")
	commit("end", "1\n2\n3\n4\n5\n7\n", "b\n")
	commit("clash", "9\n2\n3\n4\n5\n6\n", "c\n")
	tree := func(name string) string { return gittest.Must(t, r.Dir, "rev-parse", name+"^{tree}") }
	objects := func() string { return gittest.Must(t, r.Dir, "count-objects", "-v") }
	before := objects()
	got, err := r.Conflicts(t.Context(), []TreeMerge{{base, tree("top"), tree("end")}, {base, tree("top"), tree("clash")}, {"", tree("top"), tree("end")}})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range [][]string{{}, {"a"}, {"a"}} {
		if !slices.Equal(got[i], want) {
			t.Errorf("merge %d: got conflicts in %q, want %q", i, got[i], want)
		}
	}
	if after := objects(); after != before {
		t.Errorf("the merges have changed the repository: %s, before %s", after, before)
	}
	if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) > 0 {
		t.Errorf("the merges have left %v, %v", left, err)
	}
}

func TestMergeBase(t *testing.T) {
	r, g := repo(t, map[string]gittest.File{"a": text("1\n")})
	base := gittest.Must(t, r.Dir, "rev-parse", "main")
	var tips []string
	for _, branch := range []string{"x", "y", "z"} {
		gittest.Must(t, r.Dir, "branch", branch, base)
		if _, err := g.Commit(branch, map[string]gittest.File{branch: text("1\n")}, branch); err != nil {
			t.Fatal(err)
		}
		tips = append(tips, gittest.Must(t, r.Dir, "rev-parse", branch))
	}
	if got, err := r.MergeBase(t.Context(), tips...); err != nil || got != base {
		t.Errorf("merge base of three branches: got %s, %v, want %s", got, err, base)
	}
	root := gittest.Must(t, r.Dir, "commit-tree", "-m", "root", base+"^{tree}")
	if got, err := r.MergeBase(t.Context(), tips[0], root); err != nil || got != "" {
		t.Errorf("merge base without common history: got %s, %v, want none", got, err)
	}
	for _, missing := range []string{strings.Repeat("1", 40), "main", "--all", ""} {
		if _, err := r.MergeBase(t.Context(), base, missing); !errors.Is(err, ErrNotFound) {
			t.Errorf("merge base with %q: got %v, want ErrNotFound", missing, err)
		}
	}
}

// A renamed file is two paths, and ids of trees can be compared, too.
func TestPathsWithoutRenames(t *testing.T) {
	r, _ := repo(t, map[string]gittest.File{"old": text(strings.Repeat("line\n", 20))})
	base := gittest.Must(t, r.Dir, "rev-parse", "main^{tree}")
	blob := gittest.Must(t, r.Dir, "rev-parse", "main:old")
	id, err := hex.DecodeString(blob)
	if err != nil {
		t.Fatal(err)
	}
	head := gitIn(t, r.Dir, "100644 new\x00"+string(id), "hash-object", "-w", "-t", "tree", "FILE")
	d, err := r.PathChanges(t.Context(), base, head, 10)
	if err != nil || len(d.Changes) != 2 || d.Changes[0].Status != "added" || d.Changes[1].Status != "deleted" || d.Changes[0].Additions != 20 {
		t.Errorf("difference of a renamed file: got %+v, %v", d.Changes, err)
	}
	if d, err := r.Changes(t.Context(), base, head, 10); err != nil || len(d.Changes) != 1 || d.Changes[0].OldPath != "old" {
		t.Errorf("difference with renames: got %+v, %v", d.Changes, err)
	}
}
