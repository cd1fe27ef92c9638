package api_test

import (
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/server/records"
)

// TestForkAtACollectedCommit checks that a fork cannot start at a commit that was removed as garbage, although the
// replica keeps its pack for a request that began before.
func TestForkAtACollectedCommit(t *testing.T) {
	w := newWorld(t, nil)
	gitDir := seed(t, w.vars)
	w.run(t, []exchange{createBase})
	w.fill(t, "team", "base", gitDir)
	ctx := t.Context()
	repo, err := w.db.Repos.Get(ctx, "team", "base")
	if err != nil {
		t.Fatal(err)
	}
	change := func(old, new string, pack *records.Pack) {
		now, err := w.db.Repos.ByID(ctx, repo.ID)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = w.db.Repos.Push(ctx, records.Push{RepoID: repo.ID, Version: now.Version, Pack: pack,
			Updates: []records.RefUpdate{{Name: "refs/heads/lost", Old: old, New: new}}}); err != nil {
			t.Fatal(err)
		}
	}
	lost := gittest.Must(t, gitDir, "commit-tree", "-m", "lost", "-p", w.vars["second"], w.vars["tree"])
	gittest.Must(t, gitDir, "update-ref", "refs/heads/lost", lost)
	dir := t.TempDir()
	hash := gittest.Must(t, gitDir, "pack-objects", "-q", "--all", dir+"/pack")
	pack, err := w.set.Store(ctx, dir, hash)
	if err != nil {
		t.Fatal(err)
	}
	zeros := strings.Repeat("0", 40)
	change(zeros, lost, &pack)
	reader, err := w.set.Acquire(ctx, repo.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Release()
	change(lost, zeros, nil)
	now, err := w.db.Repos.ByID(ctx, repo.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.db.Packs.Collect(ctx, repo.ID, now.Version, []string{pack.ID}, nil); err != nil {
		t.Fatal(err)
	}
	for commit, want := range map[string]int{lost: 404, w.vars["second"]: 201} {
		body := `{"name":"fork` + commit[:5] + `","commit":"` + commit + `"}`
		got := w.do(t, w.admin, "POST", "/client/v4/accounts/"+account+"/artifacts/namespaces/team/repos/base/fork", body)
		if got.status != want {
			t.Errorf("fork at %s: got %d %s, want %d", commit, got.status, got.body, want)
		}
	}
}
