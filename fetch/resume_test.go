package fetch

import (
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/cache"
	"github.com/artifactfs/artifactfs/git/convert"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// openStore opens a store of a remote. It may be called several times for one directory.
func openStore(t testing.TB, dir, url string) *Store {
	t.Helper()
	remote, err := transport.Open(url, transport.Options{Log: zap.NewNop(), Patience: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	memory, err := cache.NewMemory(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(memory.Close)
	blobs, err := cache.OpenBlobs(filepath.Join(dir, "blobs"), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { blobs.Close() })
	s, err := Open(Config{Dir: filepath.Join(dir, "store"), Remote: remote, Blobs: blobs, Memory: memory,
		Deadline: 2 * time.Second, Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestResumeAsksNobody(t *testing.T) {
	for _, f := range []object.Format{object.SHA1, object.SHA256} {
		t.Run(f.String(), func(t *testing.T) {
			root, dir := t.TempDir(), t.TempDir()
			repo, err := gittest.New(filepath.Join(root, "r.git"), gittest.RepoOptions{Format: f})
			if err != nil {
				t.Fatal(err)
			}
			commits, err := repo.History(3)
			if err != nil {
				t.Fatal(err)
			}
			server, err := gittest.Serve(gittest.ServerOptions{Root: root})
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			s := openStore(t, dir, server.URL("r.git"))
			first, err := s.Acquire(t.Context(), "")
			if err == nil {
				err = first.Wait(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			if id, err := s.Resolve(t.Context(), "main"); err != nil || id != first.Commit {
				t.Errorf("ref main: got %s, %v", id, err)
			}
			shallow := first.Shallow()
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			server.Down()
			server.Log().Reset()
			s = openStore(t, dir, server.URL("r.git"))
			base := Base{Ref: first.Ref, Commit: first.Commit, Tree: first.Tree, Time: first.Time, Format: f}
			snap, err := s.Resume(t.Context(), base)
			if err != nil {
				t.Fatal(err)
			}
			if !snap.Local || !snap.Whole() || !snap.Partial || snap.Ref != first.Ref || snap.Commit != first.Commit ||
				snap.Tree != first.Tree ||
				!snap.Time.Equal(first.Time) || snap.Format != f || len(snap.Shallow()) != len(shallow) {
				t.Errorf("resumed snapshot: got %+v", snap)
			}
			if entries, err := s.View(snap, convert.Settings{}, nil).Tree(t.Context(), snap.Tree); err != nil ||
				len(entries) == 0 {
				t.Errorf("entries of the tree: got %d, %v", len(entries), err)
			}
			if n := len(server.Log().Requests()); n > 0 {
				t.Errorf("requests to the remote: got %d", n)
			}
			// Missing commits and refs cannot be resolved without the remote.
			base.Commit = commits[0]
			if _, err := s.Resume(t.Context(), base); err == nil {
				t.Error("a missing commit was resolved without the remote")
			}
			if _, err := s.Resolve(t.Context(), "main"); err == nil {
				t.Error("a ref was resolved without the remote")
			}
		})
	}
}

// An unborn branch is resumed as an unborn branch, also with an empty or missing store.
func TestResumeOfAnUnbornBranch(t *testing.T) {
	s := openStore(t, t.TempDir(), "http://127.0.0.1:1/r.git")
	when := time.Unix(1_700_000_000, 0)
	snap, err := s.Resume(t.Context(), Base{Ref: "refs/heads/trunk", Time: when, Format: object.SHA256})
	if err != nil {
		t.Fatal(err)
	}
	if !snap.Whole() || !snap.Commit.IsZero() || !snap.Tree.IsZero() || snap.Ref != "refs/heads/trunk" ||
		!snap.Time.Equal(when) || snap.Format != object.SHA256 {
		t.Errorf("resumed snapshot: got %+v", snap)
	}
}
