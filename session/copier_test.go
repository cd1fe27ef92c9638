package session_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session"
)

// A ref or a tag can refer to any object, also to contents that are larger than any commit.
func TestCopierTakesWhatTagsReferTo(t *testing.T) {
	dir := t.TempDir()
	git(t, dir, "init", "-q", "--bare", ".")
	file := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, object.MaxCommitSize+1); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{"small": filepath.Join(dir, "HEAD"), "large": file} {
		blob := git(t, dir, "hash-object", "-w", path)
		git(t, dir, "tag", "-a", "-m", "tag", name, blob)
		tag := object.MustID(git(t, dir, "rev-parse", name))
		copies := session.NewCopier(open(t, filepath.Join(t.TempDir(), "session.git"),
			session.RepoOptions{Format: object.SHA1,
				Session: "s", Fresh: []string{filepath.Join(dir, "objects")}}))
		if err := copies.Commits(t.Context(), []object.ID{tag}); err != nil {
			t.Fatal(err)
		}
		all := copies.Objects()
		if len(all) != 2 || all[0].ID != tag || all[1].ID.String() != blob || all[1].Type != object.Blob {
			t.Errorf("objects of a tag of %s contents: got %+v, want the tag and blob %s", name, all, blob)
		}
	}
}
