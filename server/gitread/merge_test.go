package gitread

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/git/read"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

func TestConflicts(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	text := func(s string) gittest.File { return gittest.File{Data: []byte(s)} }
	g, err := gittest.New(filepath.Join(t.TempDir(), "r.git"), gittest.RepoOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r := Repo{read.Repo{Dir: g.Path, Git: gitcmd.Confined{Env: gittest.Env(), Memory: 512 << 20}}}
	commit := func(branch, a, b string) {
		t.Helper()
		if _, err := g.Commit(branch, map[string]gittest.File{"a": text(a), "b": text(b)}, branch); err != nil {
			t.Fatal(err)
		}
	}
	commit("main", "1\n2\n3\n4\n5\n6\n", "b\n")
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
	got, err := r.Conflicts(t.Context(), []TreeMerge{{base, tree("top"), tree("end")}, {base, tree("top"), tree("clash")},
		{"", tree("top"), tree("end")}})
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
