package treediff

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// trees is a Reader of the trees in the map. The key of a tree is the result of the function id for its name.
type trees map[object.ID][]object.TreeEntry

func (t trees) read(_ context.Context, id object.ID) ([]object.TreeEntry, error) {
	entries, ok := t[id]
	if !ok {
		return nil, fmt.Errorf("tree %s was read although it does not differ", id)
	}
	return entries, nil
}

// id returns an object id that depends only on name.
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
	// The tree "same" is not in the map, so the test fails if it is read.
	all := trees{
		id(t, "old"): {file("changed", "1"), dir("d", "old d"), file("equal", "1"), dir("file then", "below"),
			file("removed", "1"), dir("same", "same")},
		id(t, "new"): {file("added", "1"), file("changed", "2"), dir("d", "new d"), file("equal", "1"),
			file("file then", "1"), dir("same", "same")},
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
	want := []string{"added 0 100644", "changed 100644 100644", "d/a 100644 100644", "file then 0 100644",
		"file then/x 100644 0", "removed 100644 0"}
	if !slices.Equal(got, want) {
		t.Errorf("differences of two trees:\ngot  %q\nwant %q", got, want)
	}
}

func TestEntryAt(t *testing.T) {
	all := trees{
		id(t, "root"): {{Name: "d", Mode: object.ModeDir, ID: id(t, "d")}, {Name: "f", Mode: object.ModeFile, ID: id(t, "1")},
			{Name: "lost", Mode: object.ModeDir, ID: id(t, "lost")}},
		id(t, "d"): {{Name: "f", Mode: object.ModeExec, ID: id(t, "2")}},
	}
	for path, want := range map[string]object.TreeEntry{
		"f": all[id(t, "root")][1], "d": all[id(t, "root")][0], "d/f": all[id(t, "d")][0], "f/f": {}, "d/none": {},
		"none": {}, "none/f": {},
	} {
		if got, err := EntryAt(t.Context(), all.read, id(t, "root"), path); err != nil || got != want {
			t.Errorf("entry at %s: got %+v, %v, want %+v", path, got, err, want)
		}
	}
	if got, err := EntryAt(t.Context(), all.read, id(t, "root"), "lost/f"); err == nil || got.Mode != 0 {
		t.Errorf("entry in a tree that cannot be read: got %+v, %v", got, err)
	}
}

// The differences of two trees, also removed files, have the order of git diff.
func TestOrderIsThatOfGit(t *testing.T) {
	dir, random := t.TempDir(), rand.New(rand.NewPCG(1, 2))
	gittest.Must(t, dir, "init", "-q", ".")
	read := func(_ context.Context, id object.ID) (entries []object.TreeEntry, err error) {
		for line := range strings.SplitSeq(strings.TrimSuffix(gittest.Must(t, dir, "ls-tree", "-z", id.String()), "\x00"),
			"\x00") {
			info, name, some := strings.Cut(line, "\t")
			if !some { // the tree is empty
				continue
			}
			fields := strings.Fields(info)
			mode, err := strconv.ParseUint(fields[0], 8, 32)
			if err != nil {
				return nil, err
			}
			entries = append(entries, object.TreeEntry{Name: name, Mode: object.Mode(mode), ID: object.MustID(fields[2])})
		}
		return entries, nil
	}
	names := []string{"a", "a-b", "a.txt", "a0", "b"} // the directory a precedes a0 and follows a.txt
	tree := func() object.ID {
		gittest.Must(t, dir, "rm", "-rqf", "--cached", "--ignore-unmatch", ".")
		clean, err := filepath.Glob(filepath.Join(dir, "[ab]*"))
		for _, path := range clean {
			if err == nil {
				err = os.RemoveAll(path)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			path := filepath.Join(dir, name)
			if below := random.IntN(3); below > 0 {
				if err := os.Mkdir(path, 0o700); err != nil {
					t.Fatal(err)
				}
				path = filepath.Join(path, names[random.IntN(len(names))])
			}
			if random.IntN(4) == 0 {
				continue
			}
			if err := os.WriteFile(path, []byte{byte(random.IntN(2))}, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		gittest.Must(t, dir, "add", "-A")
		return object.MustID(strings.TrimSpace(gittest.Must(t, dir, "write-tree")))
	}
	before := tree()
	for range 30 {
		after := tree()
		var got []string
		err := Trees(t.Context(), read, before, after, func(path string, _, _ object.TreeEntry) error {
			got = append(got, path)
			return nil
		})
		want := strings.Fields(gittest.Must(t, dir, "diff", "--name-only", "--no-renames", before.String(), after.String()))
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("order of differences: got %v and %v, want that of git: %v", got, err, want)
		}
		before = after
	}
}

// TestAttributesToMerge checks that the contents to merge include the .gitattributes files of the side ours above paths
// that both sides have changed, and no others.
func TestAttributesToMerge(t *testing.T) {
	file := func(name, content string) object.TreeEntry {
		return object.TreeEntry{Name: name, Mode: object.ModeFile, ID: id(t, content)}
	}
	side := func(all trees, name string) object.ID {
		all[id(t, name)] = []object.TreeEntry{file(".gitattributes", "attributes"),
			{Name: "both", Mode: object.ModeDir, ID: id(t, name+" both")}, {Name: "one", Mode: object.ModeDir,
				ID: id(t, name+" one")}}
		all[id(t, name+" both")] = []object.TreeEntry{file(".gitattributes", "both attributes"), file("f", name)}
		all[id(t, name+" one")] = []object.TreeEntry{file(".gitattributes", "one attributes"), file("g "+name, name)}
		return id(t, name)
	}
	all := trees{}
	base, ours, theirs := side(all, "base"), side(all, "ours"), side(all, "theirs")
	ids, complete, err := ContentsToMerge(t.Context(), all.read, base, ours, theirs)
	if err != nil || !complete {
		t.Fatal(err)
	}
	for content, want := range map[string]bool{"attributes": true, "both attributes": true, "one attributes": false,
		"ours": true, "theirs": true, "base": true} {
		if got := slices.Contains(ids, id(t, content)); got != want {
			t.Errorf("contents to merge include %q: %t, want %t", content, got, want)
		}
	}
}
