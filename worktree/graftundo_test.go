package worktree_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	. "github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// all lists the mount with numbers, attributes and times.
func (g *grafter) all() string {
	g.t.Helper()
	var lines []string
	g.each(Root, "", func(path string, a Attr) { lines = append(lines, fmt.Sprintf("%s: %+v", path, a)) })
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// A graft that needs a tree that cannot be read changes nothing, although other paths must be removed.
func TestGraftWithoutATreeChangesNothing(t *testing.T) {
	one := worktreetest.File{Data: "1\n"}
	from := files{"a/one": one, "a/gone": one, "d/old": one}
	to := files{"a/one": one, "d/new/deep": {Data: "2\n"}}
	for _, missing := range []string{"d", "d/new"} {
		g := newGrafter(t, from, to)
		before := g.all()
		g.src.RuleIn(g.roots[1], missing, worktreetest.Rule{Err: errors.New("no such object")})
		list := g.plan(1)
		if _, err := g.Graft(t.Context(), g.roots[1], list, ""); err == nil {
			t.Errorf("graft without the tree %q: got no error", missing)
		}
		if after := g.all(); after != before {
			t.Errorf("after the graft without the tree %q:\n%s\nwant:\n%s", missing, after, before)
		}
	}
}

// A graft that fails in the middle, or that is taken back, leaves each path with its previous number, attributes and
// contents. This includes paths that a program has changed, and removed nodes are not dropped in the meantime. The next
// graft succeeds.
func TestGraftIsTakenBack(t *testing.T) {
	trees := []files{{}, {}}
	for i := range 600 { // more than one update of the overlay
		trees[0][fmt.Sprintf("gone%d/file%d", i%7, i)] = worktreetest.File{Data: "1\n"}
		trees[0][fmt.Sprintf("stays/file%d", i)] = worktreetest.File{Data: "1\n"}
		trees[1][fmt.Sprintf("stays/file%d", i)] = worktreetest.File{Data: fmt.Sprintf("%d\n", i%2)}
		trees[1][fmt.Sprintf("new%d/file%d", i%7, i)] = worktreetest.File{Data: "2\n"}
	}
	trees[0]["place"], trees[1]["place/below"] = worktreetest.File{Data: "1\n"}, worktreetest.File{Data: "2\n"}
	trees[0]["dir/deep/file"], trees[1]["dir"] = worktreetest.File{Data: "1\n"},
		worktreetest.File{Mode: object.ModeSymlink, Data: "2"}
	g := newGrafter(t, trees...)
	g.write(g.node("stays/file1"), "changed\n", 0)
	g.create("gone1/mine", "untracked\n")
	g.ok(g.Overlay().SetTimes(t.Context(), Times{Unchanged: commitTime,
		Paths: []PathTimes{{"stays/file2", 1, 2, 3}, {"gone3/file3", 4, 5, 6}, {"gone4", 7, 8, 9}}}))
	g.ok(g.link("gone2/file2", "gone2/other"))
	before, list := g.all(), g.plan(1)
	same := func(when string) {
		t.Helper()
		if after := g.all(); after != before {
			t.Fatalf("%s:\n%s\nwant:\n%s", when, after, before)
		}
		if text := g.read(g.node("stays/file1")); text != "changed\n" {
			t.Fatalf("%s: contents of the changed file: got %q", when, text)
		}
	}
	below := Graft{Path: "gone1/mine/below", Mode: object.ModeGitlink} // fails after the removals
	for range 2 {
		if _, err := g.Graft(t.Context(), g.roots[1], append(slices.Clone(list), below), ""); err == nil ||
			errors.Is(err, ErrPartial) {
			t.Fatalf("graft of a path below a file: got %v", err)
		}
		same("after the failed graft")
		r, err := g.Graft(t.Context(), g.roots[1], list, "")
		if err == nil {
			err = r.TakeBack()
		}
		if err != nil {
			t.Fatal(err)
		}
		same("after the graft was taken back")
	}
	g.reopen()
	same("after a restart")
	g.graft(1)
	g.ok(g.unlink("gone1/mine"))
	g.ok(g.unlink("gone2/other"))
	g.want("graft", expected(trees[1]))
}
