package treediff

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

// trees is a Reader of the trees in the map, by the id that id returns for their name.
type trees map[object.ID][]object.TreeEntry

func (t trees) read(_ context.Context, id object.ID) ([]object.TreeEntry, error) {
	entries, ok := t[id]
	if !ok {
		return nil, fmt.Errorf("tree %s was read although it does not differ", id)
	}
	return entries, nil
}

// id returns an id that depends on name alone.
func id(t *testing.T, name string) object.ID {
	t.Helper()
	id, err := object.Hash(object.SHA1, object.Blob, []byte(name))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestTreesReportsDifferingPathsAlone(t *testing.T) {
	file := func(name, content string) object.TreeEntry {
		return object.TreeEntry{Name: name, Mode: object.ModeFile, ID: id(t, content)}
	}
	dir := func(name, tree string) object.TreeEntry {
		return object.TreeEntry{Name: name, Mode: object.ModeDir, ID: id(t, tree)}
	}
	// The tree "same" is not in the map: reading it fails the test.
	all := trees{
		id(t, "old"):     {file("changed", "1"), dir("d", "old d"), file("equal", "1"), dir("file then", "below"), file("removed", "1"), dir("same", "same")},
		id(t, "new"):     {file("added", "1"), file("changed", "2"), dir("d", "new d"), file("equal", "1"), file("file then", "1"), dir("same", "same")},
		id(t, "old d"):   {file("a", "1"), file("b", "1")},
		id(t, "new d"):   {file("a", "2"), file("b", "1")},
		id(t, "below"):   {file("x", "1")},
		id(t, "nothing"): {},
	}
	var got []string
	err := Trees(t.Context(), all.read, id(t, "old"), id(t, "new"), func(path string, from, to object.TreeEntry) error {
		got = append(got, fmt.Sprintf("%s %o %o", path, from.Mode, to.Mode))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	want := []string{"added 0 100644", "changed 100644 100644", "d/a 100644 100644", "file then 0 100644", "file then/x 100644 0", "removed 100644 0"}
	if !slices.Equal(got, want) {
		t.Errorf("differences of two trees:\ngot  %q\nwant %q", got, want)
	}
}
