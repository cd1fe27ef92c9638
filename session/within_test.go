package session

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
)

// TestWithin checks that a commit is found in the history of its descendants, including by their second parents, but
// not if a part of the history is missing.
func TestWithin(t *testing.T) {
	repo, err := OpenRepo(filepath.Join(t.TempDir(), "session.git"), RepoOptions{Format: object.SHA1, Session: "s"})
	if err != nil {
		t.Fatal(err)
	}
	defer repo.Close()
	empty, err := Outgoing(object.SHA1, object.Tree, nil)
	if err != nil {
		t.Fatal(err)
	}
	commit := func(at int, parents ...object.ID) object.ID {
		text := fmt.Sprintf("tree %v\n", empty.ID)
		for _, p := range parents {
			text += fmt.Sprintf("parent %v\n", p)
		}
		text += fmt.Sprintf("author a <a@b> %d +0000\ncommitter a <a@b> %[1]d +0000\n\nm\n", at)
		o, err := Outgoing(object.SHA1, object.Commit, []byte(text))
		if err == nil {
			err = repo.Write(t.Context(), []odb.Outgoing{empty, o})
		}
		if err != nil {
			t.Fatal(err)
		}
		return o.ID
	}
	missing := object.MustID("1111111111111111111111111111111111111111")
	root := commit(1e9)
	side := commit(1e9+1, root)
	main := commit(1e9+2, root)
	merge := commit(1e9+3, main, side)
	cut := commit(1e9+4, missing)
	for _, c := range []struct {
		tip, wanted object.ID
		want        bool
	}{
		{merge, merge, true}, {merge, side, true}, {merge, root, true}, {main, side, false}, {root, merge, false},
		{cut, root, false}, {merge, missing, false}, {missing, root, false}, {object.ID{}, root, false},
		{root, object.ID{}, false},
	} {
		if got := Within(repo, c.tip, c.wanted); got != c.want {
			t.Errorf("commit %v within %v: got %v, want %v", c.wanted, c.tip, got, c.want)
		}
	}
}
