package ui_test

import (
	"html"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/server/records"
)

// The form of a checkpoint is answered with a command that has the token of the user. No other page has a token, and the token of the
// mounted remote is not set if that is on another host.
func TestForkCommand(t *testing.T) {
	w, app, _, m := small(t)
	read := w.reader(t, app)
	page := w.get(t, read, "/ui/team/app/s/fix?at="+m.ids[1], http.StatusOK)
	wants(t, page, `action="/ui/team/app/s/fix/command"`, `name="at" value="`+m.ids[1]+`"`, w.url+"/ui/team/app/s/fix?at="+m.ids[1])
	if strings.Contains(page, read) {
		t.Error("page of the session has the token")
	}
	got := w.post(t, read, "/ui/team/app/s/fix/command", url.Values{"at": {m.ids[1]}}, "Accept-Encoding", "gzip")
	structure(t, "command", got.body)
	want := "ARTIFACTFS_SESSION_TOKEN='" + read + "' artifactfs session fork '" + w.url + "/git/team/app.git#session=fix@" + m.ids[1] + "' fix-fork --session-remote embedded<"
	if !strings.Contains(html.UnescapeString(got.body), want) || strings.Contains(got.body, "ARTIFACTFS_TOKEN") {
		t.Errorf("page lacks %q, or has more: %s", want, got.body)
	}
	if got.status != http.StatusOK || got.header.Get("Cache-Control") != "no-store" || got.header.Get("Content-Encoding") != "" {
		t.Errorf("page with a token: got %d and header %v", got.status, got.header)
	}
	_, write := w.token(t, records.Token{Role: records.RepoToken, Namespace: "team", RepoID: app.ID, Expires: time.Now().Add(time.Hour)})
	if got := w.post(t, write, "/ui/team/app/s/fix/command", url.Values{"at": {m.ids[1]}}); strings.Contains(got.body, "embedded") || !strings.Contains(got.body, "read and write") {
		t.Errorf("command for a token that can push: %s", got.body)
	}
	_, admin := w.token(t, records.Token{Role: records.AdminToken})
	if page := w.get(t, admin, "/ui/team/app/s/fix?at="+m.ids[1], http.StatusOK); strings.Contains(page, "/command") {
		t.Error("page for an administrator has a form for a command with the token")
	}
	for what, c := range map[string]struct {
		token, path, at string
		want            int
	}{
		"admin": {admin, "s/fix/command", m.ids[1], http.StatusForbidden}, "no checkpoint": {read, "s/fix/command", "01ARZ3NDEKTSV4RRFFQ69G5FAV", http.StatusNotFound},
		"no session": {read, "s/none/command", m.ids[1], http.StatusNotFound}, "no form": {read, "s/fix/none", "", http.StatusMethodNotAllowed},
		"nobody": {"", "s/fix/command", m.ids[1], http.StatusUnauthorized}, "shell": {read, "s/fix/command", "@';rm -rf /'", http.StatusNotFound},
	} {
		if got := w.post(t, c.token, "/ui/team/app/"+c.path, url.Values{"at": {c.at}}); got.status != c.want || strings.Contains(got.body, "ARTIFACTFS") {
			t.Errorf("%s: got %d %s, want %d", what, got.status, got.body, c.want)
		}
	}
}

// forms are the paths of the forms of a session that act.
var forms = []string{"command"}

// A page of another site cannot send any form of a session.
func TestOtherSitesCannotAct(t *testing.T) {
	w, app, _, m := small(t)
	_, write := w.token(t, records.Token{Role: records.RepoToken, Namespace: "team", RepoID: app.ID, Actor: "alice", Expires: time.Now().Add(time.Hour)})
	for _, form := range forms {
		for _, headers := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Sec-Fetch-Site", "", "Origin", "https://evil.example"},
			{"Sec-Fetch-Site", "", "Origin", "null"}} {
			got := w.post(t, write, "/ui/team/app/s/fix/"+form, url.Values{"at": {m.ids[1]}, "text": {"x"}}, headers...)
			if got.status != http.StatusForbidden || !strings.Contains(got.body, "a page of another site") {
				t.Errorf("POST %s with %v: got %d %.300s", form, headers, got.status, got.body)
			}
		}
	}
}
