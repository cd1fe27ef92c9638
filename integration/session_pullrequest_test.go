package integration

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gitea"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// pulls returns the pull requests of a repository of a gitea server, as its API lists them.
func pulls(t *testing.T, s *gitea.Server, name string) (list []struct {
	Number           int64
	Title, Body, URL string
	Head, Base       struct{ Ref, SHA string }
}) {
	t.Helper()
	req := must[*http.Request](t)(http.NewRequest(http.MethodGet,
		s.URL+"/api/v1/repos/"+gitea.User+"/"+name+"/pulls?state=all", nil))
	req.Header.Set("Authorization", "token "+s.Token)
	res := must[*http.Response](t)(http.DefaultClient.Do(req))
	defer res.Body.Close()
	check(t, json.Unmarshal(must[[]byte](t)(io.ReadAll(res.Body)), &list))
	return list
}

// A session is promoted to a gitea server by a pull request, which is changed by the next promotion.
func TestPromotePullRequest(t *testing.T) {
	source := os.Getenv("AFS_GITEA")
	if source == "" {
		gittest.Skip(t, "gitea: set AFS_GITEA to a directory in which scripts/forge.sh has built it")
	}
	t.Parallel()
	w := newWorld(t)
	dir := filepath.Join(w.root, "gitea")
	check(t, os.Mkdir(dir, 0o755))
	s := must[*gitea.Server](t)(gitea.Start(t.Context(), source, dir))
	t.Cleanup(func() {
		if r := w.afs("unmount", "--all"); r.code != 0 {
			t.Errorf("unmount before gitea is stopped: %s", r)
		}
		s.Close()
	})
	check(t, s.Create(t.Context(), "app"))
	r := w.repo("r.git", object.SHA1)
	w.commit(r, sample("pull request"))
	login := strings.Replace(s.Repo(gitea.User, "app"), "://", "://"+gitea.User+":"+s.Token+"@", 1)
	w.git(r.Path, "push", "--quiet", login, "main")

	m := w.bare(login, "--session", "fix-login", "--wait", "git", "--checkpoint", "off")
	m.record(`{"type":"prompt","role":"user","text":"fix the login"}`)
	w.sh(m.Dir, "echo fixed >login && git add login && git commit -qm 'fix login'")
	var reply struct {
		control.SessionPromoteReply
		PullRequest struct {
			URL     string
			Number  int64
			Created bool
		} `json:"pull_request"`
	}
	promote := func(args ...string) {
		t.Helper()
		w.json(&reply, append([]string{"session", "promote", "-C", m.Dir, "--pull-request", "--forge", "gitea"}, args...)...)
	}
	// The kind of the forge cannot be seen in the URL of this server: nothing is pushed.
	refused := w.afs("session", "promote", "-C", m.Dir, "--pull-request")
	if refused.code != control.ExitUsage || !strings.Contains(refused.stderr, "--forge gitea") {
		t.Errorf("pull request on an unknown forge: got %s", refused)
	}
	if out := w.git(s.Path(gitea.User, "app"), "for-each-ref", "refs/heads/afs"); out != "" {
		t.Errorf("a refused pull request has pushed %s", out)
	}

	promote() // with the password of the mount
	list := pulls(t, s, "app")
	if len(list) != 1 || !reply.PullRequest.Created || reply.PullRequest.Number != list[0].Number ||
		reply.Branch != "afs/fix-login" || reply.Base != "main" {
		t.Fatalf("pull request: got %+v and on the server %+v", reply, list)
	}
	pr := list[0]
	if pr.Title != "fix login" || pr.Head.Ref != "afs/fix-login" || pr.Base.Ref != "main" ||
		pr.Head.SHA != w.git(m.Dir, "rev-parse", "HEAD") ||
		!strings.Contains(pr.Body, "## 1 file, +1 -0") || !strings.Contains(pr.Body, "1. fix the login") {
		t.Errorf("pull request on the server: got %+v", pr)
	}
	res := must[*http.Response](t)(http.Get(reply.PullRequest.URL))
	res.Body.Close()
	if res.StatusCode != http.StatusOK || reply.PullRequest.URL != pr.URL &&
		!strings.HasSuffix(reply.PullRequest.URL, "/pulls/1") {
		t.Errorf("page of the pull request %s: got %s", reply.PullRequest.URL, res.Status)
	}

	w.sh(m.Dir, "echo more >>login && git commit -qam 'more'")
	file := filepath.Join(w.root, "token")
	check(t, os.WriteFile(file, []byte(s.Token+"\n"), 0o600))
	promote("--forge-token-file", file, "--title", "Fix the login")
	list = pulls(t, s, "app")
	if len(list) != 1 || reply.PullRequest.Created || list[0].Title != "Fix the login" ||
		list[0].Head.SHA != w.git(m.Dir, "rev-parse", "HEAD") ||
		!strings.Contains(list[0].Body, "## 2 commits") {
		t.Errorf("pull request after the second promotion: got %+v and on the server %+v", reply, list)
	}

	// A wrong token is not printed, and the server's words are.
	wrong := w.command(t.Context(), "session", "promote", "-C", m.Dir, "--pull-request", "--forge", "gitea",
		"--head", "other")
	wrong.Env = append(wrong.Env, "ARTIFACTFS_FORGE_TOKEN=wrong-token")
	out, err := wrong.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "401") || strings.Contains(string(out), "wrong-token") ||
		strings.Contains(string(out), s.Token) {
		t.Errorf("pull request with a wrong token: got %v\n%s", err, out)
	}
	if text := w.ok("session", "promote", "-C", m.Dir, "--pull-request", "--forge",
		"gitea"); strings.TrimSpace(text) != reply.PullRequest.URL {
		t.Errorf("output of promote: got %q, want the URL %s", text, reply.PullRequest.URL)
	}

	clone := w.clone(login, "--branch", "afs/fix-login")
	w.git(clone, "fsck", "--strict", "--no-dangling")
	if refs := w.git(s.Path(gitea.User, "app"), "for-each-ref", "refs/afs"); refs != "" {
		t.Errorf("refs of the session on the server: %s", refs)
	}
}
