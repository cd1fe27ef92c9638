package integration

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/server/client"
)

// comparedOnPage checks that the page of the server shows what `session compare` has printed about sessions of
// team/app, forks of the checkpoint with the id base, and the test result that is stored for the tree of the first one.
func comparedOnPage(t *testing.T, w *world, c *cluster, api *client.Client, compared control.SessionCompareReply,
	base string) {
	t.Helper()
	key := "test/" + compared.Sides[0].Checkpoint.Tree
	if r := w.cache("ok 3 tests\nin 2 s\n", "put", key, "--session-remote",
		c.proxy.url()+"/git/team/app.git"); r.code != 0 {
		t.Fatalf("store a test result: %+v", r)
	}
	query := url.Values{}
	for _, s := range compared.Sides {
		query.Add("p", s.Checkpoint.Session+"@")
	}
	token := must[client.NewToken](t)(api.CreateToken(t.Context(), "team", client.CreateToken{Repo: "app", Scope: "read"}))
	p := pageOf{t, c.proxy.url(), token.Plaintext}
	p.wants("/ui/team/app", `value="`+compared.Sides[0].Checkpoint.Session+`@" form="compare"`)
	page := p.wants("/ui/team/app/compare?"+query.Encode(), "@"+base+", from which all were forked",
		"<code>ok 3 tests</code>", "18 B")
	conflicts := 0
	for _, path := range compared.Shared {
		row := regexp.MustCompile(`(?s)<tr><th scope="row">` + regexp.QuoteMeta(path.Path) + `</th>.*?</tr>`).FindString(page)
		if !strings.Contains(row, fmt.Sprintf(`<span class="verdict %s">`, path.Verdict)) {
			t.Errorf("verdict on %s: got %q, want %s", path.Path, row, path.Verdict)
		}
		if path.Verdict == control.VerdictConflict {
			conflicts++
		}
	}
	if text := fmt.Sprintf("%d by two or more, %d in conflict", len(compared.Shared),
		conflicts); !strings.Contains(page, text) {
		t.Errorf("page of the comparison lacks %q: %.4000s", text, page)
	}
	for _, s := range compared.Sides {
		lines := fmt.Sprintf(`<ins>+%d</ins> <del>−%d</del></td>`, s.LinesAdded, s.LinesRemoved)
		row := regexp.MustCompile(`(?s)<tr><th scope="row">[^\n]*>` + s.Checkpoint.Session + `@<.*?</tr>`).FindString(page)
		if files := fmt.Sprintf(`<ins>+%d</ins> ~%d <del>−%d</del>`, s.Added, s.Modified, s.Removed); !strings.Contains(row,
			lines) || !strings.Contains(row, files) {
			t.Errorf("row of %s: got %q, want %s and %s", s.Checkpoint.Session, row, files, lines)
		}
	}
}
