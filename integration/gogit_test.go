package integration

import (
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	gogit "github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/storage/filesystem"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// goGit opens a git directory with go-git, an independent implementation that reads objects and refs from the files and
// cannot request missing objects. It takes a relative alternate for one below root.
func goGit(gitDir, root string) *filesystem.Storage {
	return filesystem.NewStorageWithOptions(osfs.New(gitDir), cache.NewObjectLRUDefault(),
		filesystem.Options{AlternatesFS: osfs.New(root)})
}

// versionOf returns what go-git finds at a path of a commit.
func versionOf(s *filesystem.Storage, commit plumbing.Hash, path string) (string, error) {
	c, err := gogit.GetCommit(s, commit)
	if err != nil {
		return "", err
	}
	f, err := c.File(path)
	if err != nil {
		return "", err
	}
	return f.Contents()
}

// Programs that read git's object store themselves find all objects in it, and git reads the objects and refs that they
// write.
func TestOtherGitsReadAndWrite(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const versions = 12
	r := w.repo("r.git", object.SHA1)
	files := sample("other gits")
	for i := range versions {
		files["a/changing"] = gittest.File{Data: fmt.Appendf(nil, "version %d\n", i)}
		w.commit(r, files)
	}
	s := w.serve(gittest.ServerOptions{})
	for _, inside := range []bool{false, true} {
		args := []string{"--history", "full", "--prefetch", "none", "--wait", "git"}
		if inside {
			args = append(args, "--git-dir", "inside")
		}
		t.Run(fmt.Sprintf("inside=%v", inside), func(t *testing.T) {
			w := newWorld(t)
			m := w.mount(s.URL("r.git"), args...)
			gitDir, root := m.gitDir(), "/"
			if inside {
				gitDir = m.path(".git")
				root = gitDir
			}
			foreign := func() *filesystem.Storage { return goGit(gitDir, root) }
			tip := plumbing.NewHash(w.git(m.Dir, "rev-parse", "HEAD"))
			commits := []plumbing.Hash{tip}
			for c := tip; ; {
				commit, err := gogit.GetCommit(foreign(), c)
				check(t, err)
				if len(commit.ParentHashes) == 0 {
					break
				}
				c = commit.ParentHashes[0]
				commits = append(commits, c)
			}
			if len(commits) != versions {
				t.Fatalf("commits that go-git walks: got %d, want %d", len(commits), versions)
			}
			// go-git does not leave the git directory, so with --git-dir inside it does not reach the directory that supplies
			// contents.
			missing := func(i int) {
				t.Helper()
				got, err := versionOf(foreign(), commits[i], "a/changing")
				if want := fmt.Sprintf("version %d\n", versions-1-i); inside && !errors.Is(err, gogit.ErrFileNotFound) ||
					!inside && got != want {
					t.Errorf("version of HEAD~%d, which is not prefetched: got %q, %v", i, got, err)
				}
			}
			missing(0)
			missing(3)

			w.ok("prefetch", m.Dir, "--commit", "HEAD")
			s.Log().Reset()
			for path, f := range files {
				if f.Mode == "120000" || f.Mode == "160000" {
					continue
				}
				if got, err := versionOf(foreign(), tip, path); err != nil || got != string(f.Data) {
					t.Errorf("go-git reads %s of HEAD: %v", path, err)
				}
			}
			w.ok("prefetch", m.Dir, "--commit", "HEAD")
			if n := len(s.Log().Requests()); n > 0 {
				t.Errorf("requests for a commit that was fetched before: got %d, want 0", n)
			}
			if out := w.ok("prefetch", m.Dir, "a", "--commit", tip.String()+"~4..main"); out == "" {
				t.Error("prefetch of a range prints nothing")
			}
			for i, c := range commits {
				if i > 4 {
					missing(i)
					continue
				}
				want := fmt.Sprintf("version %d\n", versions-1-i)
				if got, err := versionOf(foreign(), c, "a/changing"); err != nil || got != want {
					t.Errorf("version of HEAD~%d: got %q, %v; want %q", i, got, err, want)
				}
			}
			w.refusal(w.afs("prefetch", m.Dir, "--commit", "nowhere"), 2, "no such commit or range of commits", "git log --all")
			w.refusal(w.afs("prefetch", m.Dir, "--commit", "--all..main"), 2, "no such commit or range of commits", "")

			// A blob, a tree, a commit and a branch.
			blob := foreign().NewEncodedObject()
			blob.SetType(plumbing.BlobObject)
			writer := must[io.WriteCloser](t)(blob.Writer())
			_, err := writer.Write([]byte("by go-git\n"))
			check(t, errors.Join(err, writer.Close()))
			store := foreign()
			id, err := store.SetEncodedObject(blob)
			check(t, err)
			put := func(o interface {
				Encode(plumbing.EncodedObject) error
			}) plumbing.Hash {
				e := store.NewEncodedObject()
				check(t, o.Encode(e))
				id, err := store.SetEncodedObject(e)
				check(t, err)
				return id
			}
			tree := put(&gogit.Tree{Entries: []gogit.TreeEntry{{Name: "new", Mode: 0o100644, Hash: id}}})
			who := gogit.Signature{Name: "Go", Email: "go@example.com", When: time.Unix(1700000000, 0)}
			commit := put(&gogit.Commit{Author: who, Committer: who, Message: "by go-git\n", TreeHash: tree,
				ParentHashes: []plumbing.Hash{tip}})
			check(t, store.SetReference(plumbing.NewHashReference("refs/heads/foreign", commit)))
			if got := w.git(m.Dir, "log", "-2", "--format=%s:%H", "foreign"); got != fmt.Sprintf("by go-git:%s\nChange:%s",
				commit, tip) {
				t.Errorf("git log of the branch of go-git: got %q", got)
			}
			w.git(m.Dir, "repack", "-adq")
			if got, err := versionOf(foreign(), commit, "new"); err != nil || got != "by go-git\n" {
				t.Errorf("go-git reads its file after git repack: got %q, %v", got, err)
			}
			if got, err := versionOf(foreign(), tip, "a/changing"); err != nil ||
				got != fmt.Sprintf("version %d\n", versions-1) {
				t.Errorf("go-git reads a fetched version after git repack: got %q, %v", got, err)
			}
			w.git(m.Dir, "switch", "-q", "foreign")
			if got, err := os.ReadFile(m.path("new")); err != nil || string(got) != "by go-git\n" {
				t.Errorf("file of the branch in the mount: got %q, %v", got, err)
			}
		})
	}
}
