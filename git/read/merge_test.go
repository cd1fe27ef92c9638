package read

import (
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

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

// TestPathsWithoutRenames checks that a renamed file counts as two paths, and that trees can be compared by their ids.
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
	if err != nil || len(d.Changes) != 2 || d.Changes[0].Status != "added" || d.Changes[1].Status != "deleted" ||
		d.Changes[0].Additions != 20 {
		t.Errorf("difference of a renamed file: got %+v, %v", d.Changes, err)
	}
	if d, err := r.Changes(t.Context(), base, head, 10); err != nil || len(d.Changes) != 1 ||
		d.Changes[0].OldPath != "old" {
		t.Errorf("difference with renames: got %+v, %v", d.Changes, err)
	}
}
