package integration

import (
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/server/client"
)

// The page of the server shows a session that a mount has pushed: its checkpoints, commits and records, and what
// changed at each.
func TestPageOfServer(t *testing.T) {
	t.Parallel()
	w, c, api := hosted(t)
	m := w.bare("team/app", "--create", "--session", "work", "--wait", "git")
	w.sh(m.Dir, "echo one >one.txt")
	first := m.checkpoint("--sync", "-m", "one file")
	m.record(`{"type":"prompt","text":"Write the second file"}`)
	w.sh(m.Dir, "echo two >two.txt && git add -A && git commit -qm 'both files'")
	second := m.checkpoint("--sync", "-m", "two files")

	token := must[client.NewToken](t)(api.CreateToken(t.Context(), "team", client.CreateToken{Repo: "app", Scope: "read"}))
	p := pageOf{t, c.proxy.url(), token.Plaintext}
	p.wants("/ui/team/app", `href="/ui/team/app/s/work"`, "active")
	page := p.wants("/ui/team/app/s/work", "one file", "two files", "both files", "Write the second file",
		first.ID, second.ID)
	order := regexp.MustCompile(`(?s)two files.*both files.*one file`)
	if !order.MatchString(page) {
		t.Errorf("entries are in another order than newest first: %.8000s", page)
	}
	p.wants("/ui/team/app/s/work?part=cursor&at="+first.ID, "one.txt", "session fork", "#session=work@"+first.ID)
	p.wants("/ui/team/app/diff?a=main&b=work@", "one.txt", "two.txt")
	p.wants("/ui/team/app/tree/work@"+second.ID+"/two.txt", `<span id="L1">`, "two")
	noToken(t, "log of the server", strings.ReplaceAll(string(must[[]byte](t)(os.ReadFile(c.nodes[0].data+".log"))),
		c.token, ""))
}

// pageOf reads pages of a server with a token.
type pageOf struct {
	*testing.T
	url, token string
}

func (p pageOf) wants(path string, texts ...string) (page string) {
	p.Helper()
	req := must[*http.Request](p.T)(http.NewRequestWithContext(p.Context(), http.MethodGet, p.url+path, nil))
	req.AddCookie(&http.Cookie{Name: "artifactfs", Value: p.token})
	res := must[*http.Response](p.T)(http.DefaultClient.Do(req))
	defer res.Body.Close()
	page = string(must[[]byte](p.T)(io.ReadAll(res.Body)))
	if res.StatusCode != http.StatusOK {
		p.Errorf("GET %s: got %d, %.400s", path, res.StatusCode, page)
	}
	for _, text := range texts {
		if !strings.Contains(page, text) {
			p.Errorf("GET %s: page lacks %q: %.8000s", path, text, page)
		}
	}
	return page
}
