package proposals

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

func TestFork(t *testing.T) {
	for _, x := range []struct {
		all  []Origin
		want string
	}{
		{[]Origin{{"a", "base 1"}, {"b", "base 1"}}, "base@1"},
		{[]Origin{{"a", "base 1"}, {"base", ""}}, "base@1"},
		{[]Origin{{"base", ""}, {"a", "base 1"}, {"b", "base 1"}}, "base@1"},
		{[]Origin{{"base", "older 3"}, {"a", "base 1"}}, "base@1"},
		{[]Origin{{"a", "base 1"}, {"base", "older 3"}}, "base@1"},
		{[]Origin{{"a", "base 1"}, {"b", "base 2"}}, ""},
		{[]Origin{{"a", "base 1"}, {"b", ""}}, ""},
		{[]Origin{{"a", ""}, {"b", ""}}, ""},
	} {
		session, id, ok := Fork(x.all)
		if got := strings.Trim(session+"@"+id, "@"); got != x.want || ok != (x.want != "") {
			t.Errorf("fork of %v: got %q, %v, want %q", x.all, got, ok, x.want)
		}
	}
}

func TestClean(t *testing.T) {
	x, y := []control.PathChange{{Path: "x", Status: "A", New: "1"}},
		[]control.PathChange{{Path: "y", Status: "A", New: "1"}}
	side := func(base, tree string, changes []control.PathChange, cut bool) Side[string] {
		return Side[string]{base, tree, changes, cut}
	}
	for name, c := range map[string]struct {
		a, b Side[string]
		want bool
	}{
		"independent changes": {side("base", "a", x, false), side("base", "b", y, false), true},
		"changes that meet": {side("base", "a", x, false),
			side("base", "b", []control.PathChange{{Path: "x", New: "2"}}, false), false},
		"changes of another base":    {side("other", "a", x, false), side("base", "b", y, false), false},
		"incomplete changes":         {side("base", "a", x, false), side("base", "b", y, true), false},
		"the same tree":              {side("other", "a", x, true), side("base", "a", x, true), true},
		"one side has the base tree": {side("other", "base", x, true), side("base", "b", y, true), true},
	} {
		if ab, ba := Clean("base", c.a, c.b), Clean("base", c.b, c.a); ab != c.want || ba != c.want {
			t.Errorf("%s: got %v, and %v for exchanged sides, want %v", name, ab, ba, c.want)
		}
	}
}

// TestIndependent compares independent and Shared with what git merges.
func TestIndependent(t *testing.T) {
	g := newTree(t, map[string]string{"a": "1\n2\n3\n4\n5\n6\n7\n", "b": "b", "dir/x": "x x x", "dir/y": "y y y",
		"dir/sub/z": "z z z", "run": "r"})
	for _, x := range []struct {
		name        string
		one, two    map[string]string // contents of the changed files; "": the file is removed
		independent bool
		conflicts   []string
	}{
		{"other files", map[string]string{"a": "x"}, map[string]string{"b": "y"}, true, nil},
		{"the same change", map[string]string{"a": "x", "b": ""}, map[string]string{"a": "x", "dir/x": "2"}, true, nil},
		{"other lines", map[string]string{"a": "0\n2\n3\n4\n5\n6\n7\n"}, map[string]string{"a": "1\n2\n3\n4\n5\n6\n8\n"},
			false, nil},
		{"same lines", map[string]string{"a": "x"}, map[string]string{"a": "y"}, false, []string{"a"}},
		{"removed and changed", map[string]string{"a": ""}, map[string]string{"a": "y"}, false, []string{"a"}},
		{"file and directory", map[string]string{"new": "x"}, map[string]string{"new/file": "y"}, false, []string{"new"}},
		{"directory and file", map[string]string{"new/file": "x"}, map[string]string{"new": "y"}, false, []string{"new"}},
		{"file replaced by directory", map[string]string{"b": "", "b/c": "x"}, map[string]string{"b": "y"}, false,
			[]string{"b"}},
		{"renamed directory", map[string]string{"dir/x": "", "dir/y": "", "dir/sub/z": "", "moved/x": "x x x",
			"moved/y": "y y y", "moved/sub/z": "z z z"},
			map[string]string{"dir/new": "n"}, false, []string{"moved/new"}},
		{"renamed directory above", map[string]string{"dir/x": "", "dir/y": "", "dir/sub/z": "", "moved/x": "x x x",
			"moved/y": "y y y", "moved/sub/z": "z z z"},
			map[string]string{"dir/sub/new": "n"}, false, []string{"moved/sub/new"}},
		{"removed file elsewhere", map[string]string{"b": ""}, map[string]string{"dir/new": "n", "new": "n"}, true, nil},
	} {
		t.Run(x.name, func(t *testing.T) {
			one, two := g.commit(x.one), g.commit(x.two)
			changes := [][]control.PathChange{g.changes(one), g.changes(two)}
			conflicts := g.merge(one, two)
			if got := independent(changes[0], changes[1]); got != x.independent || independent(changes[1], changes[0]) != got {
				t.Errorf("independent: got %v, want %v", got, x.independent)
			}
			if x.independent && len(conflicts) > 0 {
				t.Errorf("git has conflicts in %q", conflicts)
			}
			var got []string
			for _, p := range Shared(changes, []Pair{{0, 1, conflicts}}) {
				if p.Verdict == control.VerdictConflict {
					got = append(got, p.Path)
				}
			}
			for _, path := range x.conflicts { // git invents names for files that a directory replaces
				if !slices.ContainsFunc(got, func(p string) bool { return strings.HasPrefix(p, path) }) {
					t.Errorf("conflicts: got %q, want %q", got, x.conflicts)
				}
			}
			if len(x.conflicts) == 0 && len(got) > 0 {
				t.Errorf("conflicts: got %q, want none", got)
			}
		})
	}
}

// TestRandomIndependentChanges checks that git merges random changes without a conflict if Independent returns true for
// them.
func TestRandomIndependentChanges(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	base := map[string]string{}
	for _, path := range []string{"a", "b", "d/a", "d/b", "d/e/a", "d/e/b", "f/a", "f/g/h/a"} {
		base[path] = strings.Repeat("contents of "+path+"\n", 5)
	}
	g := newTree(t, base)
	paths := slices.Sorted(maps.Keys(base))
	// change returns a commit that renames, removes, adds and edits files.
	change := func() string {
		files := map[string]string{}
		for range 1 + r.IntN(3) {
			path := paths[r.IntN(len(paths))]
			if _, changed := files[path]; changed {
				continue
			}
			switch r.IntN(4) {
			case 0:
				files[path] = ""
			case 1:
				files[path] = base[path] + "more\n"
			case 2:
				files[path+fmt.Sprint("-new-", r.IntN(4))] = "new\n"
			case 3: // renames a directory
				dir, to := []string{"d", "d/e", "f", "f/g"}[r.IntN(4)], fmt.Sprint("to-", r.IntN(2))
				for p := range base {
					if rest, in := strings.CutPrefix(p, dir+"/"); in {
						files[p], files[to+"/"+rest] = "", base[p]
					}
				}
			}
		}
		return g.commit(files)
	}
	proven := 0
	for range 50 {
		one, two := change(), change()
		conflicts := g.merge(one, two)
		if independent(g.changes(one), g.changes(two)) {
			if proven++; len(conflicts) > 0 {
				t.Errorf("changes are independent, and git has conflicts in %q: %v, %v", conflicts, g.changes(one), g.changes(two))
			}
		}
	}
	if proven < 5 {
		t.Errorf("%d of 100 pairs were independent: they prove nothing", proven)
	}
}

func TestShared(t *testing.T) {
	change := func(path, id string) control.PathChange {
		return control.PathChange{Path: path, Status: "M", NewMode: "100644", New: id}
	}
	got := Shared([][]control.PathChange{
		{change("all", "1"), change("clash", "1"), change("one", "1")},
		{change("all", "1"), change("clash", "2")},
		{change("all", "2"), change("clash", "1")},
	}, []Pair{{0, 1, []string{"clash"}}, {0, 2, nil}, {1, 2, []string{"clash", "clash"}}})
	want :=
		"all [M M M] clean [{0 1 same} {0 2 clean} {1 2 clean}]; clash [M M M] conflict [{0 1 conflict} {0 2 same} {1 2 conflict}]; "
	text := ""
	for _, p := range got {
		text += fmt.Sprintf("%s %v %s %v; ", p.Path, p.Status, p.Verdict, p.Pairs)
	}
	if text != want {
		t.Errorf("shared paths:\ngot  %s\nwant %s", text, want)
	}
}

func TestCount(t *testing.T) {
	s := control.ComparedSide{Changes: []control.PathChange{{Status: "A", Added: 3}, {Status: "D", Removed: 2},
		{Status: "M", Added: 1, Removed: 1},
		{Status: "T"}, {Status: "M", Added: -1, Removed: -1}}}
	s.ChangeCount = Count(s.Changes)
	if s.Added != 1 || s.Removed != 1 || s.Modified != 3 || s.LinesAdded != 4 || s.LinesRemoved != 3 {
		t.Errorf("totals: got +%d ~%d -%d files, +%d -%d lines", s.Added, s.Modified, s.Removed, s.LinesAdded, s.LinesRemoved)
	}
}

// tree is a repository with the branch main.
type tree struct {
	t    *testing.T
	dir  string
	base string
}

func newTree(t *testing.T, files map[string]string) *tree {
	g := &tree{t: t, dir: t.TempDir()}
	gittest.Must(t, g.dir, "init", "-q", "-b", "main", ".")
	g.base = g.commit(files)
	return g
}

// commit returns a commit with changed files, whose parent is the base.
func (g *tree) commit(files map[string]string) string {
	g.t.Helper()
	if g.base != "" {
		gittest.Must(g.t, g.dir, "checkout", "-q", "--detach", g.base)
	}
	for _, remove := range []bool{true, false} { // a removed file may make room for a directory
		for name, text := range files {
			name = filepath.Join(g.dir, name)
			var err error
			switch {
			case remove && text == "":
				err = os.Remove(name)
			case !remove && text != "":
				if err = os.MkdirAll(filepath.Dir(name), 0o755); err == nil {
					err = os.WriteFile(name, []byte(text), 0o644)
				}
			}
			if err != nil {
				g.t.Fatal(err)
			}
		}
	}
	gittest.Must(g.t, g.dir, "add", "-A")
	gittest.Must(g.t, g.dir, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "changes")
	return gittest.Must(g.t, g.dir, "rev-parse", "HEAD")
}

// changes returns the differences of a commit from the base.
func (g *tree) changes(commit string) (all []control.PathChange) {
	out := gittest.Must(g.t, g.dir, "diff-tree", "-r", "--raw", "--no-renames", "--abbrev=40", g.base, commit)
	for line := range strings.SplitSeq(out, "\n") {
		if line == "" {
			continue
		}
		head, path, _ := strings.Cut(line, "\t")
		f := strings.Fields(head)
		c := control.PathChange{Path: path, Status: f[4], Old: f[2], NewMode: f[1], New: f[3]}
		if c.Status == "A" {
			c.Old = ""
		}
		if c.Status == "D" {
			c.New = ""
		}
		all = append(all, c)
	}
	return all
}

// merge returns the paths that have conflicts when git merges two commits.
func (g *tree) merge(one, two string) []string {
	cmd := exec.CommandContext(g.t.Context(), "git", "merge-tree", "--write-tree", "--name-only",
		"--no-messages", one, two)
	cmd.Dir, cmd.Env = g.dir, append(os.Environ(), gittest.Env()...)
	out, err := cmd.Output() // exit status 1 reports conflicts
	if exit := new(exec.ExitError); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		g.t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")[1:]
}
