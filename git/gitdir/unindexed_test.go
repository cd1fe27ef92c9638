package gitdir

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/index"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// TestNoRepositoryWithoutIndex checks that git does not accept the directory as a repository until the index is
// written. With an empty index, a commit of one file would remove all others.
func TestNoRepositoryWithoutIndex(t *testing.T) {
	asGittest(t)
	repo, commits := source(t, object.SHA1)
	tip := commits[len(commits)-1]
	errWalk := errors.New("no trees")
	for name, inside := range map[string]bool{"outside": false, "inside": true} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "git")
			o := Options{WorkTree: t.TempDir(), Remote: "/r", Objects: filepath.Join(repo.Path, "objects"),
				Ref: "refs/heads/main", Commit: tip,
				Git: installed(t), Inside: inside}
			tree, err := gittest.Git(context.Background(), t.TempDir(), "--git-dir", repo.Path, "rev-parse",
				tip.String()+"^{tree}")
			if err != nil {
				t.Fatal(err)
			}
			refused := func(when string) {
				t.Helper()
				for _, command := range []string{"status", "log -1", "read-tree HEAD", "rev-parse --git-dir"} {
					args := append([]string{"--git-dir", path, "--work-tree", o.WorkTree}, strings.Fields(command)...)
					if out, err := gittest.Git(context.Background(), o.WorkTree, args...); err == nil {
						t.Errorf("%s, git %s printed %q, want an error", when, command, out)
					}
				}
			}
			write := func(walk Walk) func(*Dir) error {
				return func(d *Dir) error { return d.WriteIndex(context.Background(), IndexOptions{}, walk) }
			}
			failing := func(ctx context.Context, emit func(index.Entry) error) error {
				refused("while the index is written")
				return errWalk
			}
			// open opens the directory or creates it, as a mount does.
			open := func(walk Walk) error {
				o.Index = write(walk)
				d, ok, err := Open(path, o)
				if err == nil && !ok {
					d, err = Create(path, o)
				}
				if err == nil && d == nil {
					t.Fatal("no directory")
				}
				return err
			}
			good := walkOf(t, repo.Path, object.MustID(tree))
			for range 2 { // the second time, the directory is incomplete
				if err := open(failing); !errors.Is(err, errWalk) {
					t.Fatalf("open without trees: got %v, want %v", err, errWalk)
				}
				refused("after the index could not be written")
			}
			if err := open(good); err != nil {
				t.Fatal(err)
			}
			git(t, path, "symbolic-ref", "HEAD", "refs/heads/mine")
			// The index is lost, for example in a power loss.
			if err := os.Remove(filepath.Join(path, "index")); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := open(failing); !errors.Is(err, errWalk) {
					t.Fatalf("open without index: got %v, want %v", err, errWalk)
				}
				refused("after the lost index could not be written")
			}
			if err := open(good); err != nil {
				t.Fatal(err)
			}
			if got := git(t, path, "symbolic-ref", "HEAD"); got != "refs/heads/mine" {
				t.Errorf("HEAD after the index was written again: got %q, want refs/heads/mine", got)
			}
			if got := git(t, path, "ls-files"); got == "" {
				t.Error("the index is empty")
			}
			if err := open(failing); err != nil { // the index exists, so it is not written
				t.Errorf("open with index: got %v", err)
			}
		})
	}
}
