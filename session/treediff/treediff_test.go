package treediff

import (
	"context"
	"fmt"
	"slices"
	"strings"
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

// mergeOutput is what git 2.39 prints for a merge with one conflict.
func mergeOutput(tree, a, b string) string {
	return strings.Join([]string{tree, "100644 " + a + " 2\tfile", "100644 " + b + " 3\tfile", "",
		"1", "file", "Auto-merging", "Auto-merging file\n",
		"1", "file", "CONFLICT (contents)", "CONFLICT (content): Merge conflict in file\n", ""}, "\x00")
}

func TestParseMerged(t *testing.T) {
	tree, a, b := id(t, "tree"), id(t, "a"), id(t, "b")
	m, err := ParseMerged([]byte(mergeOutput(tree.String(), a.String(), b.String())))
	if err != nil {
		t.Fatal(err)
	}
	if m.Result != tree || len(m.Conflicts) != 2 || m.Conflicts[0].ID != a || m.Conflicts[0].Stage != 2 || m.Conflicts[1].Stage != 3 {
		t.Errorf("merge with a conflict: got tree %s and conflicts %+v", m.Result, m.Conflicts)
	}
	if got := m.Conflicted(); !slices.Equal(got, []string{"file"}) {
		t.Errorf("conflicted paths: got %q, want each path once", got)
	}
	if len(m.Messages) != 2 || !strings.HasPrefix(m.Messages[1], "CONFLICT (content)") {
		t.Errorf("messages of a merge with a conflict: got %q", m.Messages)
	}
	for _, bad := range []string{"", "no id", tree.String() + "\x00100644 no-id 2\tfile", tree.String() + "\x00no tab"} {
		if _, err := ParseMerged([]byte(bad)); err == nil {
			t.Errorf("ParseMerged accepts %q", bad)
		}
	}
}

func FuzzParseMerged(f *testing.F) {
	hex := strings.Repeat("1", 40)
	f.Add([]byte(mergeOutput(hex, hex, hex)))
	f.Add([]byte(hex + "\x00"))
	f.Fuzz(func(t *testing.T, out []byte) {
		m, err := ParseMerged(out)
		if err == nil && len(m.Conflicted()) > len(m.Conflicts) {
			t.Errorf("got %d conflicted paths of %d conflicts", len(m.Conflicted()), len(m.Conflicts))
		}
	})
}
