package githttp

import (
	"crypto/rand"
	"net/http/httptest"
	"testing"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/server/access"
	"github.com/artifactfs/artifactfs/server/quota"
	"github.com/artifactfs/artifactfs/server/records"
)

// TestQuotas checks that a push that would exceed a quota of the namespace is rejected with the reason and changes
// nothing, and that removals make room.
func TestQuotas(t *testing.T) {
	w := newWorld(t, Limits{})
	limits := quota.Limits{Amounts: records.Amounts{Refs: 2, Bytes: 20_000}}
	git, err := New(Options{Records: w.db, Replicas: w.set, Guard: w.guard, Dir: t.TempDir(), Log: zap.NewNop(),
		Quotas: quota.New(w.db, limits)}, 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(git.Close)
	w.http = httptest.NewServer(git)
	t.Cleanup(w.http.Close)
	repo, url := w.repo("r", "sha1")
	work := w.work("sha1")
	w.do(work, "push", "-q", url, "main", "main:one")
	w.refused("(the namespace would exceed its quota of 2 refs)", work, "push", url, "main:two")
	w.do(work, "push", "-q", url, ":one")
	w.do(work, "push", "-q", url, "main:two")
	text := make([]byte, 30_000)
	rand.Read(text)
	w.commit(work, "file", string(text))
	w.refused("(the namespace would exceed its quota of 20000 bytes)", work, "push", url, "main")
	if used, err := w.db.Namespaces.Amounts(t.Context(), "NS"); err != nil || used.Repos != 1 || used.Refs != 2 ||
		used.Bytes > 20_000 ||
		used.Bytes == 0 || len(w.refs(repo)) != 2 {
		t.Errorf("amounts after refusals: got %+v, %v", used, err)
	}
	git, err = New(Options{Records: w.db, Replicas: w.set, Guard: w.guard, Dir: t.TempDir(), Log: zap.NewNop(),
		Quotas: quota.New(w.db, quota.Limits{Requests: 1})}, 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(git.Close)
	w.http = httptest.NewServer(git)
	t.Cleanup(w.http.Close)
	_, token := w.token(records.Token{RepoID: repo.ID})
	for i, want := range []int{200, 429} {
		status, h, text := w.get("GET", "/git/ns/r.git/info/refs?service=git-upload-pack", "Bearer "+token, nil,
			"Git-Protocol", "version=2")
		if status != want || want == 429 && h.Get("Retry-After") != "60" {
			t.Errorf("request %d: got %d %v %q, want %d", i+1, status, h, text, want)
		}
	}
}

// TestRefsOfToken checks that the number of refs that a token for one session can create is limited, that it can create
// others after it has removed some, and that other tokens have no limit.
func TestRefsOfToken(t *testing.T) {
	w := newWorld(t, Limits{Refs: 3})
	repo, url := w.repo("r", "sha1")
	work := w.work("sha1")
	w.do(work, "push", "-q", url, "main", "main:a", "main:b", "main:c")
	rules, err := access.SessionRules("s")
	if err != nil {
		t.Fatal(err)
	}
	_, text := w.token(records.Token{RepoID: repo.ID, Session: "s", Rules: rules})
	mine := w.url("r", text)
	ref := func(name string) string { return "main:refs/heads/afs/s/" + name }
	w.do(work, "push", "-q", mine, ref("1"), ref("2"))
	w.refused("(a token can have created 3 refs: ", work, "push", mine, ref("3"), ref("4"))
	w.do(work, "push", "-q", mine, ref("3"))
	w.refused("(a token can have created 3 refs: ", work, "push", mine, ref("4"))
	w.do(work, "push", "-q", mine, ref("4"), ":refs/heads/afs/s/1")
	w.do(work, "push", "-q", mine, ":refs/heads/afs/s/2", ":refs/heads/afs/s/3")
	w.do(work, "push", "-q", mine, ref("1"), ref("2"))
	if got := len(w.refs(repo)); got != 7 {
		t.Errorf("refs after the refusals: got %d, want 7", got)
	}
}
