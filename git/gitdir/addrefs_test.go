package gitdir

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// TestAddTracking checks that stock git reads the remote-tracking branches that were added, that existing ones keep
// their values, and that no names conflict.
func TestAddTracking(t *testing.T) {
	asGittest(t)
	forFormats(t, func(t *testing.T, f object.Format) {
		repo, commits := source(t, f)
		first, tip := commits[0], commits[len(commits)-1]
		git(t, repo.Path, "update-ref", "refs/remotes/origin/kept", first.String())
		git(t, repo.Path, "update-ref", "refs/remotes/origin/dir/kept", first.String())
		git(t, repo.Path, "pack-refs", "--all")
		git(t, repo.Path, "update-ref", "refs/remotes/origin/loose", first.String())
		git(t, repo.Path, "update-ref", "refs/remotes/origin/file", first.String())
		before := git(t, repo.Path, "for-each-ref")
		var refs []packedrefs.Ref
		for _, name := range []string{"origin/HEAD", "origin/kept", "origin/loose", "origin/new", "origin/dir",
			"origin/file/below", "origin/dir/new", "own/main", "other/a/b"} {
			refs = append(refs, packedrefs.Ref{Name: "refs/remotes/" + name, ID: tip})
		}
		refs = append(refs, packedrefs.Ref{Name: "refs/heads/other", ID: tip})
		if err := os.WriteFile(filepath.Join(repo.Path, "artifactfs-remote"), []byte("own"), 0o644); err != nil {
			t.Fatal(err)
		}
		d := &Dir{path: repo.Path, git: commands{path: repo.Path}, format: f}
		symbolic := map[string]string{"refs/remotes/origin/HEAD": "refs/remotes/origin/new"}
		for range 2 { // the second call changes nothing
			if err := d.AddTracking(t.Context(), refs, symbolic); err != nil {
				t.Fatal(err)
			}
			got := strings.Split(git(t, repo.Path, "for-each-ref"), "\n")
			var added []string
			for _, line := range got {
				if !strings.Contains("\n"+before+"\n", "\n"+line+"\n") {
					added = append(added, line)
				}
			}
			want := ""
			for _, name := range []string{"origin/HEAD", "origin/dir/new", "origin/new", "other/a/b"} {
				want += tip.String() + " commit\trefs/remotes/" + name + "\n"
			}
			if strings.Join(added, "\n")+"\n" != want || len(got) != len(added)+strings.Count(before, "\n")+1 {
				t.Errorf("added refs: got\n%s\nwant\n%s", strings.Join(added, "\n"), want)
			}
		}
		if got := git(t, repo.Path, "symbolic-ref", "refs/remotes/origin/HEAD"); got != "refs/remotes/origin/new" {
			t.Errorf("symbolic ref: got %q", got)
		}
	})
}

// TestAddTrackingRespectsLocks checks that a lock of git is respected, and that BreakLocks removes the lock file that a
// killed process of this program has left.
func TestAddTrackingRespectsLocks(t *testing.T) {
	repo, err := gittest.New(filepath.Join(t.TempDir(), "r.git"), gittest.RepoOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d := &Dir{path: repo.Path, git: commands{path: repo.Path}, format: object.SHA1}
	id, err := object.Hash(object.SHA1, object.Commit, nil)
	if err != nil {
		t.Fatal(err)
	}
	refs, lock := []packedrefs.Ref{{Name: "refs/remotes/origin/a", ID: id}}, filepath.Join(repo.Path, "packed-refs.lock")
	write(t, lock, "")
	if err := d.AddTracking(t.Context(), refs, nil); !errors.Is(err, ErrRefsLocked) || !there(lock) {
		t.Errorf("while git holds the lock: got %v", err)
	}
	if err := errors.Join(d.BreakLocks(t.Context()), os.Remove(lock)); err != nil {
		t.Errorf("the lock file of git: %v", err)
	}
	if ok, err := takeLock(d.path, "packed-refs"); !ok || err != nil {
		t.Fatal(err)
	}
	if err := d.BreakLocks(t.Context()); err != nil || there(lock) {
		t.Errorf("BreakLocks: %v, or the lock file still exists", err)
	}
	if err := d.AddTracking(t.Context(), refs, nil); err != nil || there(lock) {
		t.Errorf("after that: %v, or the lock file still exists", err)
	}
}
