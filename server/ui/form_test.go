package ui_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/server/records"
)

// unreadBody is the body of a request that the server must not read.
type unreadBody struct {
	t    *testing.T
	what string
}

func (b unreadBody) Read([]byte) (int, error) {
	b.t.Errorf("%s: the server reads the body", b.what)
	return 0, io.EOF
}

// TestBodiesThatAreNotRead checks that the page reads the body of a request only if it is a form that a user with a
// token sends to a repository that the token allows.
func TestBodiesThatAreNotRead(t *testing.T) {
	w, app, _, _ := small(t)
	other := w.repo(t, "other", "secret", "")
	_, foreign := w.token(t, records.Token{Role: records.RepoToken, Namespace: "other", RepoID: other.ID,
		Expires: time.Now().Add(time.Hour)})
	_, write := w.token(t, records.Token{Role: records.RepoToken, Namespace: "team", RepoID: app.ID,
		Expires: time.Now().Add(time.Hour)})
	const urlencoded, parts = "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"
	for what, c := range map[string]struct {
		method, path, token, kind string
		want                      int
	}{
		"form without a token":       {http.MethodPost, "/ui/team/app/s/fix/comment", "", urlencoded, 401},
		"parts without a token":      {http.MethodPost, "/ui/team/app/s/fix/comment", "", parts, 401},
		"form with a foreign token":  {http.MethodPost, "/ui/team/app/s/fix/comment", foreign, urlencoded, 404},
		"form to another path":       {http.MethodPost, "/ui/team/app/diff", write, urlencoded, 405},
		"page with parts":            {http.MethodGet, "/ui/team/app", write, parts, 200},
		"parts to the start page":    {http.MethodGet, "/", "", parts, 200},
		"parts to a page, no token":  {http.MethodGet, "/ui/team/app", "", parts, 401},
		"method that does not exist": {http.MethodPut, "/ui/team/app", write, parts, 405},
	} {
		r, err := http.NewRequestWithContext(t.Context(), c.method, w.url+c.path, unreadBody{t, what})
		if err != nil {
			t.Fatal(err)
		}
		r.ContentLength = 100_000
		r.Header.Set("Content-Type", c.kind)
		r.Header.Set("Sec-Fetch-Site", "same-origin")
		// the client sends the body when the server begins to read it
		r.Header.Set("Expect", "100-continue")
		cookies := []string{"artifactfs-said=eA"}
		if c.token != "" {
			cookies = append(cookies, "artifactfs="+c.token)
		}
		r.Header.Set("Cookie", strings.Join(cookies, "; "))
		transport := &http.Transport{ExpectContinueTimeout: time.Hour}
		res, err := transport.RoundTrip(r)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		res.Body.Close()
		transport.CloseIdleConnections()
		if res.StatusCode != c.want {
			t.Errorf("%s: got %d, want %d", what, res.StatusCode, c.want)
		}
	}
}
