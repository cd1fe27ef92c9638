package treediff

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

// walked are trees for tests of Walk: those of the compared tree, and those of its bases. Contents and trees are named
// by their ids. Trees that are not in a map must not be read.
type walked struct {
	tree, bases trees
	names       map[object.ID]string
}

func newWalked(t *testing.T) *walked {
	w := &walked{names: map[object.ID]string{}}
	entry := func(mode object.Mode, name, content string) object.TreeEntry {
		w.names[id(t, content)] = content
		return object.TreeEntry{Name: name, Mode: mode, ID: id(t, content)}
	}
	file := func(name, content string) object.TreeEntry { return entry(object.ModeFile, name, content) }
	dir := func(name, tree string) object.TreeEntry { return entry(object.ModeDir, name, tree) }
	w.tree = trees{
		id(t, "tree"): {file("a", "2"), dir("d", "tree d"), file("equal", "1"), entry(object.ModeExec, "mode", "1"),
			dir("new", "new d"),
			dir("same", "same d"), file("swap", "1")},
		id(t, "tree d"): {file("x", "1"), file("y", "2")},
	}
	w.bases = trees{
		id(t, "first"): {file("a", "1"), dir("d", "first d"), file("equal", "1"), file("gone", "1"), file("mode", "1"),
			dir("same", "other d"),
			dir("swap", "swap d")},
		id(t, "second"): {file("a", "3"), file("equal", "2"), dir("gone", "gone d"), file("only", "1"),
			dir("same", "same d")},
		id(t, "first d"): {file("x", "1"), file("y", "1")},
		id(t, "swap d"):  {file("s", "1")},
		id(t, "gone d"):  {file("g", "1")},
	}
	return w
}

// read returns a function that reads trees.
func (w *walked) read(t *testing.T, all trees) func(object.ID) ([]object.TreeEntry, error) {
	return func(id object.ID) ([]object.TreeEntry, error) { return all.read(t.Context(), id) }
}

// visits returns a function that adds a line for each visited path, and goes on below all directories except "new".
func (w *walked) visits(lines *[]string) func(string, object.TreeEntry, []object.TreeEntry) (bool, error) {
	return func(path string, entry object.TreeEntry, bases []object.TreeEntry) (bool, error) {
		line := path
		for _, e := range append([]object.TreeEntry{entry}, bases...) {
			line += fmt.Sprintf(" %o:%s", e.Mode, w.names[e.ID])
		}
		*lines = append(*lines, line)
		return path != "new", nil
	}
}

func TestWalkVisitsWhatAllBasesLack(t *testing.T) {
	w := newWalked(t)
	want := []string{
		"a 100644:2 100644:1 100644:3", "d 40000:tree d 40000:first d 0:", "d/y 100644:2 100644:1 0:",
		"mode 100755:1 100644:1 0:",
		"new 40000:new d 0: 0:", "swap 100644:1 40000:swap d 0:", "gone 0: 100644:1 40000:gone d",
	}
	var got []string
	walk := Walk{Read: w.read(t, w.tree), Base: w.read(t, w.bases), Visit: w.visits(&got)}
	if err := walk.Run(id(t, "tree"), id(t, "first"), id(t, "second")); err != nil || !slices.Equal(got, want) {
		t.Errorf("walk with two bases: got %v and\n%s\nwant\n%s", err, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// Without the second base, paths that are in no tree any more are visited, too. One function can read all trees.
	both := maps.Clone(w.tree)
	maps.Copy(both, w.bases)
	both[id(t, "other d")], both[id(t, "same d")] = nil, nil
	want = []string{
		"a 100644:2 100644:1", "d 40000:tree d 40000:first d", "d/y 100644:2 100644:1", "mode 100755:1 100644:1",
		"new 40000:new d 0:",
		"same 40000:same d 40000:other d", "swap 100644:1 40000:swap d", "swap/s 0: 100644:1", "gone 0: 100644:1",
	}
	got = nil
	if err := (Walk{Read: w.read(t, both), Visit: w.visits(&got)}).Run(id(t, "tree"), id(t, "first")); err != nil ||
		!slices.Equal(got, want) {
		t.Errorf("walk with one base: got %v and\n%s\nwant\n%s", err, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	got = nil
	if err := (Walk{Read: w.read(t, w.tree), Visit: w.visits(&got)}).Run(id(t, "tree d")); err != nil || len(got) != 2 {
		t.Errorf("walk without a base: got %v and %q, want both files", err, got)
	}
	got = nil
	if err := (Walk{Read: w.read(t, nil), Visit: w.visits(&got)}).Run(id(t, "tree"), id(t, "first"),
		id(t, "tree")); err != nil || got != nil {
		t.Errorf("walk with the tree as base: got %v and %q, want no visits", err, got)
	}
}

func TestWalkEndsWithFirstError(t *testing.T) {
	w, stop := newWalked(t), errors.New("stop")
	var visited []string
	visits := w.visits(&visited)
	walk := Walk{Read: w.read(t, w.tree), Base: w.read(t, w.bases),
		Visit: func(path string, entry object.TreeEntry, bases []object.TreeEntry) (bool, error) {
			if path == "d/y" {
				return false, stop
			}
			return visits(path, entry, bases)
		}}
	if err := walk.Run(id(t, "tree"), id(t, "first")); err != stop || len(visited) != 2 {
		t.Errorf("walk whose visit fails: got %v after %q, want %v after two visits", err, visited, stop)
	}
	walk.Visit = visits
	for name, all := range map[string]trees{"tree d": w.tree, "first d": w.bases} {
		entries := all[id(t, name)]
		delete(all, id(t, name))
		visited = nil
		if err := walk.Run(id(t, "tree"), id(t, "first")); err == nil || len(visited) != 2 {
			t.Errorf("walk without tree %q: got %v after %q, want an error after two visits", name, err, visited)
		}
		all[id(t, name)] = entries
	}
}
