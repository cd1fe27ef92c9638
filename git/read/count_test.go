package read

import (
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

func TestCountPaths(t *testing.T) {
	r, g := repo(t, map[string]gittest.File{"a": text("1"), "dir/b": text("1"), "c": text("1")})
	if _, err := g.Commit("main", map[string]gittest.File{"a": text("2"), "dir/b": text("2"), "new": text("1")},
		"two"); err != nil {
		t.Fatal(err)
	}
	one, two := gittest.Must(t, r.Dir, "rev-parse", "main~1^{tree}"), gittest.Must(t, r.Dir, "rev-parse", "main^{tree}")
	missing := strings.Repeat("1", 40)
	got, err := r.CountPaths(t.Context(), [][2]string{{one, one}, {one, two}, {missing, two}, {two, one},
		{one, two}, {two, two}})
	if want := []int{0, 3, -1, 3, 3, 0}; err != nil || !slices.Equal(got, want) {
		t.Errorf("numbers of paths: got %v, %v, want %v", got, err, want)
	}
	if got, err := r.CountPaths(t.Context(), nil); err != nil || len(got) != 0 {
		t.Errorf("no pairs: got %v, %v", got, err)
	}
	known := map[string]int{"a b\n": -1, "c d\n": -1}
	countLines([]byte("a b\nx\x00y\x00c d\nz\x00cut o"), known, true)
	if known["a b\n"] != 2 || known["c d\n"] != -1 {
		t.Errorf("output that is cut off: got %v", known)
	}
}

func FuzzCountLines(f *testing.F) {
	f.Add([]byte("a b\nx\x00y\x00c d\n"), true)
	f.Fuzz(func(t *testing.T, out []byte, cut bool) {
		known := map[string]int{"a b\n": -1, "c d\n": -1}
		countLines(out, known, cut)
		for line, n := range known {
			if line != "" && n > len(out) {
				t.Errorf("%q: got %d paths in %d bytes", line, n, len(out))
			}
		}
	})
}
