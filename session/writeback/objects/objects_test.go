package objects

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/session"
)

// TestSelect checks that a push sends the objects of its commits down to the commits of the mounted remote, and none
// that the session remote must have because it has a commit that contains them.
func TestSelect(t *testing.T) {
	repo, err := session.OpenRepo(filepath.Join(t.TempDir(), "session.git"),
		session.RepoOptions{Format: object.SHA1, Session: "s"})
	if err != nil {
		t.Fatal(err)
	}
	defer repo.Close()
	put := func(kind object.Type, content []byte) object.ID {
		o, err := session.Outgoing(object.SHA1, kind, content)
		if err == nil {
			err = repo.Write(t.Context(), []odb.Outgoing{o})
		}
		if err != nil {
			t.Fatal(err)
		}
		return o.ID
	}
	commit := func(parent object.ID, files ...object.TreeEntry) (commit, tree object.ID) {
		tree = put(object.Tree, session.EncodeTree(files))
		const who = "a <a@b> 1000000000 +0000"
		text := fmt.Sprintf("tree %v\nparent %v\nauthor %s\ncommitter %s\n\nm\n", tree, parent, who, who)
		return put(object.Commit, []byte(text)), tree
	}
	file := func(name string) object.TreeEntry {
		return object.TreeEntry{Mode: object.ModeFile, Name: name, ID: put(object.Blob, []byte(name))}
	}
	base := object.MustID("1111111111111111111111111111111111111111") // not on this host
	a, b := file("a"), file("b")
	one, oneTree := commit(base, a)
	two, twoTree := commit(one, a, b)
	all, err := Select(t.Context(), repo, []object.ID{two}, Set{})
	if err != nil {
		t.Fatal(err)
	}
	same := func(got []object.ID, want ...object.ID) bool {
		slices.SortFunc(got, object.ID.Compare)
		slices.SortFunc(want, object.ID.Compare)
		return slices.Equal(got, want)
	}
	if !same(all.IDs, one, oneTree, a.ID, two, twoTree, b.ID) || len(all.BaseCommits) != 1 || !all.BaseCommits[base] {
		t.Errorf("objects of two commits: got %v above %v", all.IDs, all.BaseCommits)
	}
	had, err := Reached(t.Context(), repo, []object.ID{one})
	if err != nil {
		t.Fatal(err)
	}
	rest, err := Select(t.Context(), repo, []object.ID{two}, had)
	if err != nil {
		t.Fatal(err)
	}
	if !same(rest.IDs, two, twoTree, b.ID) || len(rest.BaseCommits) != 0 || rest.Has(one) || !rest.Has(two) {
		t.Errorf("objects of the second commit: got %v above %v", rest.IDs, rest.BaseCommits)
	}
}
