package annotate

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/diff"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// id returns an object id that consists of one repeated digit.
func id(digit string) object.ID {
	v, err := object.ParseID(strings.Repeat(digit, 40))
	if err != nil {
		panic(err)
	}
	return v
}

// memory implements Files by maps in memory.
type memory struct {
	entries map[string]object.ID // by path, in each tree
	renamed string
	hunks   []diff.Hunk
	binary  bool
}

func (m memory) Entry(_ context.Context, _ object.ID, path string) (object.TreeEntry, error) {
	if blob, ok := m.entries[path]; ok {
		return object.TreeEntry{Name: path, Mode: object.ModeFile, ID: blob}, nil
	}
	return object.TreeEntry{}, nil
}

func (m memory) Renamed(context.Context, object.ID, object.ID, string, object.ID) (string, error) {
	return m.renamed, nil
}

func (m memory) Hunks(context.Context, object.ID, object.ID) ([]diff.Hunk, bool, error) {
	return m.hunks, !m.binary, nil
}

func TestWhere(t *testing.T) {
	one, two, tree := id("1"), id("2"), id("3")
	file := Place{Tree: tree.String(), Path: "a", Blob: one.String()}
	lines := file
	lines.Line, lines.End = 5, 7
	above := []diff.Hunk{{From: 1, Removed: 0, Added: 2}}
	for name, c := range map[string]struct {
		on    Place
		files memory
		want  Now
	}{
		"same": {lines, memory{entries: map[string]object.ID{"a": one}}, Now{Same, "a", one, 5, 7}},
		"lines added above": {lines, memory{entries: map[string]object.ID{"a": two}, hunks: above},
			Now{Moved, "a", two, 7, 9}},
		"renamed": {lines, memory{entries: map[string]object.ID{"b": one}, renamed: "b"},
			Now{Moved, "b", one, 5, 7}},
		"renamed and lines added": {lines, memory{entries: map[string]object.ID{"b": two}, renamed: "b", hunks: above},
			Now{Moved, "b", two, 7, 9}},
		"removed": {lines, memory{}, Now{State: Outdated}},
		"lines removed": {lines, memory{entries: map[string]object.ID{"a": two},
			hunks: []diff.Hunk{{From: 5, Removed: 3}}}, Now{Outdated, "a", two, 0, 0}},
		"one line left": {lines, memory{entries: map[string]object.ID{"a": two},
			hunks: []diff.Hunk{{From: 4, Removed: 2, Added: 1}, {From: 7, Removed: 1, Added: 1}}}, Now{Moved, "a", two, 5, 5}},
		"not a text": {lines, memory{entries: map[string]object.ID{"a": two}, binary: true},
			Now{Outdated, "a", two, 0, 0}},
		"file": {file, memory{entries: map[string]object.ID{"a": two}, binary: true},
			Now{Moved, "a", two, 0, 0}},
	} {
		if got, err := Where(t.Context(), c.files, c.on, id("4")); err != nil || got != c.want {
			t.Errorf("%s: got %+v and %v, want %+v", name, got, err, c.want)
		}
	}
}

func TestLikely(t *testing.T) {
	all := []File{{"a/z.go", id("1")}, {"b/old.c", id("2")}, {"c/old.go", id("1")}, {"d/x.c", id("1")}}
	sorted, same := Likely(all, "src/old.go", id("1"))
	if same != "c/old.go" || sorted[0].Path != same || sorted[1].Path != "a/z.go" || sorted[2].Path != "b/old.c" {
		t.Errorf("files that may be the renamed one: got %v and %q", sorted, same)
	}
	if _, same = Likely(all, "src/old.go", id("3")); same != "" || all[0].Path != "a/z.go" {
		t.Errorf("file with other contents: got %q", same)
	}
}

// TestLinesAreMappedLikeGit checks that lines that two random texts have in common are found where git finds them.
func TestLinesAreMappedLikeGit(t *testing.T) {
	dir := t.TempDir()
	random := rand.New(rand.NewPCG(3, 4))
	for round := range 40 {
		var old, now []string
		for i := range 1 + random.IntN(30) {
			old = append(old, fmt.Sprintf("line %d of %d", i, round))
		}
		for _, line := range old {
			for random.IntN(4) == 0 {
				now = append(now, fmt.Sprintf("new %d", random.Int()))
			}
			if random.IntN(5) > 0 {
				now = append(now, line)
			}
		}
		if slices.Equal(old, now) {
			continue
		}
		write := func(name string, lines []string) {
			text := strings.Join(lines, "\n") + "\n"
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("a", old)
		write("b", now)
		gittest.Must(t, dir, "init", "-q", "r")
		repo := filepath.Join(dir, "r")
		a, b := gittest.Must(t, repo, "hash-object", "-w", "../a"), gittest.Must(t, repo, "hash-object", "-w", "../b")
		hunks, text := diff.Hunks([]byte(gittest.Must(t, repo, "diff", "-U0", a, b)))
		if !text {
			t.Fatal("no hunk")
		}
		for i, line := range old {
			from, to, ok := mapRange(hunks, i+1, i+1)
			if at := slices.Index(now, line); ok != (at >= 0) || ok && (from != at+1 || to != from) {
				t.Errorf("line %d: got %d to %d and %v, want %d; hunks %v", i+1, from, to, ok, at+1, hunks)
			}
		}
	}
}

func FuzzMapRange(f *testing.F) {
	f.Add([]byte("diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1,2 @@ f\n-a\n+b\n@@ -9,0 +11 @@\n+c\n"), 3, 4)
	f.Fuzz(func(t *testing.T, out []byte, first, last int) {
		hunks, _ := diff.Hunks(out)
		for _, h := range hunks {
			if h.From < 0 || h.Removed < 0 || h.Added < 0 {
				t.Errorf("hunk %+v of %q", h, out)
			}
		}
		if first > 0 && last >= first {
			mapRange(hunks, first, last)
		}
	})
}
