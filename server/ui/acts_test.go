package ui_test

import (
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/server/access"
	"github.com/artifactfs/artifactfs/server/records"
)

// TestForkCommand checks that the form of a checkpoint is answered with a command that contains the token of the user.
// No other page contains a token, and the command sets the token of the mounted remote only if that is on the same
// host.
func TestForkCommand(t *testing.T) {
	w, app, _, m := small(t)
	read := w.reader(t, app)
	page := w.get(t, read, "/ui/team/app/s/fix?at="+m.ids[1], http.StatusOK)
	wants(t, page, `action="/ui/team/app/s/fix/command"`, `name="at" value="`+m.ids[1]+`"`,
		w.url+"/ui/team/app/s/fix?at="+m.ids[1])
	if strings.Contains(page, read) {
		t.Error("page of the session has the token")
	}
	got := w.post(t, read, "/ui/team/app/s/fix/command", url.Values{"at": {m.ids[1]}}, "Accept-Encoding", "gzip")
	structure(t, "command", got.body)
	want := "ARTIFACTFS_SESSION_TOKEN='" + read + "' artifactfs session fork '" + w.url +
		"/git/team/app.git#session=fix@" + m.ids[1] + "' fix-fork --session-remote embedded<"
	if !strings.Contains(html.UnescapeString(got.body), want) || strings.Contains(got.body, "ARTIFACTFS_TOKEN") {
		t.Errorf("page lacks %q, or has more: %s", want, got.body)
	}
	if got.status != http.StatusOK || got.header.Get("Cache-Control") != "no-store" ||
		got.header.Get("Content-Encoding") != "" {
		t.Errorf("page with a token: got %d and header %v", got.status, got.header)
	}
	_, write := w.token(t, records.Token{Role: records.RepoToken, Namespace: "team", RepoID: app.ID,
		Expires: time.Now().Add(time.Hour)})
	if got := w.post(t, write, "/ui/team/app/s/fix/command", url.Values{"at": {m.ids[1]}}); strings.Contains(got.body,
		"embedded") || !strings.Contains(got.body, "read and write") {
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
		"admin":         {admin, "s/fix/command", m.ids[1], http.StatusForbidden},
		"no checkpoint": {read, "s/fix/command", "01ARZ3NDEKTSV4RRFFQ69G5FAV", http.StatusNotFound},
		"no session":    {read, "s/none/command", m.ids[1], http.StatusNotFound},
		"no form":       {read, "s/fix/none", "", http.StatusMethodNotAllowed},
		"nobody":        {"", "s/fix/command", m.ids[1], http.StatusUnauthorized},
		"shell":         {read, "s/fix/command", "@';rm -rf /'", http.StatusNotFound},
	} {
		if got := w.post(t, c.token, "/ui/team/app/"+c.path, url.Values{"at": {c.at}}); got.status != c.want ||
			strings.Contains(got.body, "ARTIFACTFS") {
			t.Errorf("%s: got %d %s, want %d", what, got.status, got.body, c.want)
		}
	}
}

// forms lists the paths of the forms of a session page that make changes.
var forms = []string{"command", "comment", "thread", "request", "answer", "merge", "state", "pin", "unpin", "delete"}

// TestOtherSitesCannotAct checks that a page of another site cannot send any form of a session page.
func TestOtherSitesCannotAct(t *testing.T) {
	w, app, _, m := small(t)
	_, write := w.token(t, records.Token{Role: records.RepoToken, Namespace: "team", RepoID: app.ID, Actor: "alice",
		Expires: time.Now().Add(time.Hour)})
	for _, form := range forms {
		for _, headers := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"},
			{"Sec-Fetch-Site", "", "Origin", "https://evil.example"},
			{"Sec-Fetch-Site", "", "Origin", "null"}} {
			got := w.post(t, write, "/ui/team/app/s/fix/"+form, url.Values{"at": {m.ids[1]}, "text": {"x"}}, headers...)
			if got.status != http.StatusForbidden || !strings.Contains(got.body, "a page of another site") {
				t.Errorf("POST %s with %v: got %d %.300s", form, headers, got.status, got.body)
			}
		}
	}
}

// user returns a token of a user who may push to a repository.
func (w *world) user(t testing.TB, r records.Repo, actor string) string {
	t.Helper()
	_, text := w.token(t, records.Token{Role: records.RepoToken, Namespace: r.Namespace, RepoID: r.ID, Actor: actor,
		Expires: time.Now().Add(time.Hour)})
	return text
}

// act sends a form of the page of the session fix, follows the answer to the next page, and returns that page.
func (w *world) act(t testing.TB, token, form string, values url.Values) string {
	t.Helper()
	got := w.post(t, token, "/ui/team/app/s/fix/"+form, values)
	if got.status != http.StatusSeeOther {
		t.Fatalf("POST %s: got %d %.2000s", form, got.status, got.body)
	}
	cookie, err := http.ParseSetCookie(got.header.Get("Set-Cookie"))
	if err != nil || !cookie.HttpOnly || cookie.SameSite != http.SameSiteStrictMode {
		t.Fatalf("POST %s: cookie %q, %v", form, got.header.Get("Set-Cookie"), err)
	}
	to, _, _ := strings.Cut(got.header.Get("Location"), "#")
	next := w.request(t, token, "GET", to, "", "Cookie", "artifactfs="+token+"; "+cookie.Name+"="+cookie.Value)
	structure(t, to, next.body)
	if cleared := next.header.Get("Set-Cookie"); next.status != http.StatusOK || !strings.Contains(cleared, "Max-Age=0") {
		t.Errorf("page after %s: got %d, cookie %q", form, next.status, cleared)
	}
	return next.body
}

func TestComments(t *testing.T) {
	w, app, _, m := small(t)
	alice, bob := w.user(t, app, "alice"), w.user(t, app, "bob")
	page := w.act(t, alice, "comment", url.Values{"text": {"Fine so far\r\nwith two lines"}})
	wants(t, page, "Your comment was added.", "Fine so far\nwith two lines", "<strong>alice</strong>", "1 open thread")
	id := regexp.MustCompile(`id="t-([0-9A-Z]{26})"`).FindStringSubmatch(page)[1]
	page = w.act(t, bob, "thread", url.Values{"thread": {id}, "op": {"reply"},
		"text": {"token ghp_" + strings.Repeat("a", 36) + " <i>"}})
	wants(t, page, "Your reply was added. 1 secret was removed from the text.", "<strong>bob</strong>", "&lt;i&gt;")
	wants(t, w.act(t, bob, "thread", url.Values{"thread": {id}, "op": {"resolve"}}), "The thread was resolved.",
		"1 resolved thread", ">Reopen<")
	wants(t, w.act(t, bob, "thread", url.Values{"thread": {id}, "op": {"reopen"}}), "The thread was reopened.",
		"1 open thread", ">Resolve<")

	w.act(t, alice, "comment", url.Values{"text": {"about the checkpoint"}, "checkpoint": {m.ids[1]}})
	w.act(t, alice, "comment", url.Values{"text": {"about lines"}, "checkpoint": {m.ids[0]}, "path": {"main.go"},
		"line": {"3"}, "end": {"4"}})
	view := w.get(t, alice, "/ui/team/app/tree/fix@"+m.ids[2]+"/main.go", http.StatusOK)
	wants(t, view, "about lines", "main.go:3-4", `name="checkpoint" value="`+m.ids[2]+`"`, `name="path" value="main.go"`)
	wants(t, w.get(t, alice, "/ui/team/app/s/fix?part=cursor&at="+m.ids[1], http.StatusOK), "about the checkpoint",
		`name="checkpoint" value="`+m.ids[1]+`"`)

	// The next page is the one that has sent the form.
	from := "/ui/team/app/tree/fix@" + m.ids[2] + "/main.go"
	for referer, want := range map[string]string{w.url + from: from, "http://evil.example" + from: "/ui/team/app/s/fix",
		"":                          "/ui/team/app/s/fix",
		w.url + "/git/team/app.git": "/ui/team/app/s/fix", "%": "/ui/team/app/s/fix"} {
		got := w.post(t, alice, "/ui/team/app/s/fix/thread", url.Values{"thread": {id}, "op": {"reply"}, "text": {"x"}},
			"Referer", referer)
		if got.header.Get("Location") != want+"#t-"+id {
			t.Errorf("after a form of %q: got %q, want %q", referer, got.header.Get("Location"), want)
		}
	}
	for what, c := range map[string]struct {
		form   string
		values url.Values
		status int
		want   string
	}{
		"no text": {"comment", url.Values{"text": {" "}}, http.StatusBadRequest, "text is empty"},
		"no thread": {"thread", url.Values{"thread": {m.ids[0]}, "op": {"reply"}, "text": {"lost <words>"}},
			http.StatusNotFound, "lost &lt;words&gt;"},
		"no act": {"thread", url.Values{"thread": {id}, "op": {"open"}, "text": {"x"}}, http.StatusBadRequest,
			"names no act"},
		"no checkpoint": {"comment", url.Values{"text": {"x"}, "checkpoint": {"01ARZ3NDEKTSV4RRFFQ69G5FAV"}},
			http.StatusNotFound, "no checkpoint"},
		"no file": {"comment", url.Values{"text": {"x"}, "checkpoint": {m.ids[0]}, "path": {"none"}},
			http.StatusNotFound, "does not contain this file"},
		"no line": {"comment", url.Values{"text": {"x"}, "checkpoint": {m.ids[0]}, "path": {"main.go"}, "line": {"9"}},
			http.StatusBadRequest, "line 9 of a file"},
		"not a number": {"comment", url.Values{"text": {"x"}, "line": {"three"}}, http.StatusBadRequest, "not a number"},
		"no such commit": {"comment", url.Values{"text": {"x"}, "commit": {strings.Repeat("1", 40)}},
			http.StatusNotFound, "no commit"},
	} {
		got := w.post(t, alice, "/ui/team/app/s/fix/"+c.form, c.values)
		structure(t, what, got.body)
		if got.status != c.status || !strings.Contains(got.body, c.want) {
			t.Errorf("%s: got %d %s, want %d and %q", what, got.status, got.body, c.status, c.want)
		}
	}
}

// TestButtonsOfTokens checks that a page has the buttons for the changes that the token allows, and a sentence about
// the others.
func TestButtonsOfTokens(t *testing.T) {
	w, app, _, m := small(t)
	rules, err := access.SessionRules("fix")
	if err != nil {
		t.Fatal(err)
	}
	token := func(change func(*records.Token)) string {
		token := records.Token{Role: records.RepoToken, Namespace: "team", RepoID: app.ID, Actor: "alice",
			Expires: time.Now().Add(time.Hour)}
		change(&token)
		_, text := w.token(t, token)
		return text
	}
	wants(t, w.act(t, w.user(t, app, "agent"), "request", url.Values{"action": {"delete"}}), "The approval was requested.")
	at := "/ui/team/app/s/fix"
	for what, c := range map[string]struct {
		token          string
		shown, missing []string
	}{
		"read": {w.reader(t, app), []string{"Your token can only read"},
			[]string{`/comment"`, `/thread"`, `/answer"`, `/request"`}},
		"write": {w.user(t, app, "alice"), []string{`/comment"`, `/request"`, `value="grant"`, `value="deny"`},
			[]string{"can only read", `value="withdraw"`}},
		"own": {w.user(t, app, "agent"), []string{`value="withdraw"`}, []string{`value="grant"`}},
		"nobody": {token(func(t *records.Token) { t.Actor = "" }), []string{`/comment"`, `/request"`},
			[]string{`value="grant"`, `value="deny"`}},
		"session": {token(func(t *records.Token) { t.Session, t.Rules = "fix", rules }), []string{`/comment"`, `/request"`},
			[]string{`value="grant"`}},
		"branches": {token(func(t *records.Token) { t.Rules = []records.RefRule{{Glob: "refs/heads/*"}} }), nil,
			[]string{`/comment"`, `/request"`, `value="grant"`}},
	} {
		page := w.get(t, c.token, at, http.StatusOK)
		for _, text := range c.shown {
			if !strings.Contains(page, text) {
				t.Errorf("page for token %s lacks %s", what, text)
			}
		}
		for _, text := range c.missing {
			if strings.Contains(page, text) {
				t.Errorf("page for token %s has %s", what, text)
			}
		}
	}
	wants(t, w.get(t, w.reader(t, app), "/ui/team/app/tree/fix@"+m.ids[0]+"/main.go", http.StatusOK),
		"Your token can only read")
	for _, form := range forms[1:] {
		got := w.post(t, w.reader(t, app), at+"/"+form,
			url.Values{"text": {"x"}, "op": {"resolve"}, "thread": {m.ids[0]}, "action": {"delete"}})
		if got.status < 400 || got.status >= 500 || got.header.Get("Set-Cookie") != "" {
			t.Errorf("POST %s with a token that can only read: got %d %s", form, got.status, got.body)
		}
	}
}

func TestAnswers(t *testing.T) {
	w, app, _, m := small(t)
	agent, alice := w.user(t, app, "agent"), w.user(t, app, "alice")
	page := w.act(t, agent, "request", url.Values{"action": {"delete"}, "reviewers": {"alice, bob"}, "hours": {"3"},
		"text": {"not needed any more"}})
	wants(t, page, "The approval was requested.", "delete the session", "not needed any more", "of alice, bob",
		`class="state open"`)
	id := regexp.MustCompile(`id="r-([0-9A-Z]{26})"`).FindStringSubmatch(page)[1]
	wants(t, w.act(t, agent, "answer", url.Values{"request": {id}, "op": {"grant"}}), "The grant does not count")
	wants(t, w.act(t, alice, "answer", url.Values{"request": {id}, "op": {"deny"}, "text": {"still in use"}}),
		"You have denied the request.", "still in use", `class="state denied"`)
	wants(t, w.act(t, alice, "answer", url.Values{"request": {id}, "op": {"grant"}}), "You have granted the request.",
		`class="state granted"`)
	wants(t, w.act(t, agent, "answer", url.Values{"request": {id}, "op": {"withdraw"}}), "It was withdrawn.",
		`class="state withdrawn"`)
	for what, c := range map[string]struct {
		form   string
		values url.Values
		status int
		want   string
	}{
		"withdrawn":     {"answer", url.Values{"request": {id}, "op": {"grant"}}, http.StatusConflict, "withdrawn"},
		"no request":    {"answer", url.Values{"request": {m.ids[0]}, "op": {"grant"}}, http.StatusNotFound, "no request"},
		"no act":        {"answer", url.Values{"request": {id}, "op": {"request"}}, http.StatusBadRequest, "names no act"},
		"not committed": {"request", url.Values{"action": {"merge"}}, http.StatusConflict, "has no commit"},
		"no action":     {"request", url.Values{"action": {"x"}}, http.StatusConflict, ""},
	} {
		got := w.post(t, alice, "/ui/team/app/s/fix/"+c.form, c.values)
		structure(t, what, got.body)
		if got.status != c.status || !strings.Contains(got.body, c.want) {
			t.Errorf("%s: got %d %s, want %d and %q", what, got.status, got.body, c.status, c.want)
		}
	}
	// The page shows the message of the gate.
	_, nobody := w.token(t, records.Token{Role: records.RepoToken, Namespace: "team", RepoID: app.ID,
		Expires: time.Now().Add(time.Hour)})
	page = w.act(t, agent, "request", url.Values{"action": {"delete"}})
	id = regexp.MustCompile(`id="r-([0-9A-Z]{26})"`).FindStringSubmatch(page)[1]
	got := w.post(t, nobody, "/ui/team/app/s/fix/answer", url.Values{"request": {id}, "op": {"grant"}})
	if got.status != http.StatusForbidden || !strings.Contains(got.body,
		"a token without an actor can request and withdraw, but not grant") {
		t.Errorf("grant of a token without an actor: got %d %s", got.status, got.body)
	}
}

// TestMessageOfAct checks that a message about a change is shown only if it is in a cookie that the server has set.
func TestMessageOfAct(t *testing.T) {
	w, app, _, _ := small(t)
	read := w.reader(t, app)
	page := w.request(t, read, "GET", "/ui/team/app/s/fix?said=forged", "", "Cookie",
		"artifactfs="+read+"; artifactfs-said=%%%")
	if strings.Contains(page.body, `class="done"`) {
		t.Errorf("page shows a message: %s", page.body)
	}
	part := w.request(t, read, "GET", "/ui/team/app/s/fix?part=cursor", "", "Cookie",
		"artifactfs="+read+"; artifactfs-said=eA")
	if part.header.Get("Set-Cookie") != "" {
		t.Error("a part of a page has used the message up")
	}
}
