package integration

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/server/client"
)

// Acts on the page of the server and those of the commands see each other, and the gate holds for both: a comment, a
// request that the page grants, a merge that is refused before and made after it, a pin, and a session that is closed.
func TestReviewOnThePage(t *testing.T) {
	t.Parallel()
	w, c, api := hosted(t)
	remote := c.proxy.url() + "/git/team/app.git"
	m := w.bare("team/app", "--create", "--session", "work", "--wait", "git")
	policy := filepath.Join(w.root, "policy.json")
	if err := os.WriteFile(policy, []byte(`{"version":1,"branches":[{"match":"main","quorum":1,"reviewers":["alice"]}]}`),
		0o600); err != nil {
		t.Fatal(err)
	}
	w.ok("session", "policy", "--set", policy, "--remote", remote)
	w.sh(m.Dir, "echo one >one.txt && git add -A && git commit -qm 'one file'")
	p := m.checkpoint("--sync", "-m", "one file")
	token := func(actor string) string {
		return must[client.NewToken](t)(api.CreateToken(t.Context(), "team",
			client.CreateToken{Repo: "app", Actor: actor})).Plaintext
	}
	alice, agent := pageOf{t, c.proxy.url(), token("alice")}, pageOf{t, c.proxy.url(), token("agent")}
	const session = "/ui/team/app/s/work"

	alice.send("comment", http.StatusSeeOther, url.Values{"checkpoint": {p.ID}, "path": {"one.txt"}, "line": {"1"},
		"text": {"only one?"}})
	if out := w.ok("session", "annotations", "-C", "work"); !strings.Contains(out, "one.txt:1") ||
		!strings.Contains(out, "only one?") || !strings.Contains(out, "alice") {
		t.Errorf("annotations after a comment on the page: %s", out)
	}
	w.ok("session", "annotate", "-C", "work", "--path", "one.txt:1", "-m", "one is enough")
	alice.wants("/ui/team/app/tree/work@"+p.ID+"/one.txt", "only one?", "one is enough")

	// The page and stock git are refused with the same words.
	const words = "main is protected and needs an approval of this tree and base by 1 user of alice"
	tip := w.sh(m.Dir, "git rev-parse HEAD")
	confirm := agent.wants(session+"/merge?promote=1", "1 approval by alice")
	seen := between(t, confirm, `name="seen" value="`, `"`)
	expect := between(t, confirm, `name="expect" value="`, `"`)
	merge := url.Values{"branch": {"main"}, "how": {"ff"}, "seen": {seen}, "expect": {expect}}
	if page := agent.send("merge", http.StatusForbidden, merge); !strings.Contains(page, words) {
		t.Errorf("merge without an approval on the page: %s", page)
	}
	if _, err := gitAs(context.Background(), m.Dir, agent.token, "push", remote, tip+":refs/heads/main"); err == nil ||
		!strings.Contains(err.Error(), words) {
		t.Errorf("push without an approval: %v", err)
	}
	w.ok("session", "review", "request", "-C", "work", "--for", "merge", "--reviewers", "alice", "-m", "please")
	page := alice.wants(session, "please", "It needs 1 more approval of alice.")
	request := between(t, page, `name="request" value="`, `"`)
	if page := agent.send("answer", http.StatusSeeOther, url.Values{"request": {request}, "op": {"grant"}}); page != "" {
		t.Errorf("grant of a user who is no reviewer: %s", page)
	}
	agent.send("merge", http.StatusForbidden, merge)
	alice.send("answer", http.StatusSeeOther, url.Values{"request": {request}, "op": {"grant"}, "text": {"fine"}})
	if out := w.ok("session", "review", "list", "-C", "work"); !strings.Contains(out, "granted") ||
		!strings.Contains(out, "alice") {
		t.Errorf("approvals after a grant on the page: %s", out)
	}
	agent.send("merge", http.StatusSeeOther, merge)
	if out, err := gitAs(context.Background(), w.root, agent.token, "ls-remote", remote, "refs/heads/main"); err != nil ||
		!strings.HasPrefix(out, tip) {
		t.Errorf("main after the merge: got %s, %v, want %s", out, err, tip)
	}

	alice.send("pin", http.StatusSeeOther, url.Values{"at": {p.ID}, "pin": {"good"}})
	if out := w.ok("session", "log", "work", "--session-remote", remote); !strings.Contains(out, "[good]") {
		t.Errorf("log after a pin on the page: %s", out)
	}
	if page := alice.send("state", http.StatusConflict, url.Values{"to": {"closed"}}); !strings.Contains(page, "work") {
		t.Errorf("close of a session that is mounted: %s", page)
	}
	w.unmount(m)
	alice.send("state", http.StatusSeeOther, url.Values{"to": {"closed"}, "text": {"merged"}})
	if r := w.elsewhere().afs("mount", "--create", "team/app", w.place("again"), "--session", "work"); r.code == 0 ||
		!strings.Contains(r.stderr, "closed") {
		t.Errorf("mount of a session that was closed on the page: %s", r)
	}
	noToken(t, "log of the server", strings.ReplaceAll(string(must[[]byte](t)(os.ReadFile(c.nodes[0].data+".log"))),
		c.token, ""))
}

// send sends a form of the session work as a browser does, and returns the page that answers it.
func (p pageOf) send(form string, status int, values url.Values) string {
	p.Helper()
	req := must[*http.Request](p.T)(http.NewRequestWithContext(p.Context(), http.MethodPost,
		p.url+"/ui/team/app/s/work/"+form, strings.NewReader(values.Encode())))
	req.AddCookie(&http.Cookie{Name: "artifactfs", Value: p.token})
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Sec-Fetch-Site", "same-origin")
	browser := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res := must[*http.Response](p.T)(browser.Do(req))
	defer res.Body.Close()
	page := string(must[[]byte](p.T)(io.ReadAll(res.Body)))
	if res.StatusCode != status {
		p.Errorf("POST %s %v: got %d, want %d, %.4000s", form, values, res.StatusCode, status, page)
	}
	return page
}

// between returns the text between two others.
func between(t *testing.T, text, before, after string) string {
	t.Helper()
	_, rest, ok := strings.Cut(text, before)
	found, _, ended := strings.Cut(rest, after)
	if !ok || !ended {
		t.Fatalf("text lacks %q: %.4000s", before, text)
	}
	return found
}
