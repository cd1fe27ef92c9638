package ui_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/chrome"
	"github.com/artifactfs/artifactfs/server/records"
)

// person is a user with a tab of a browser.
type person struct {
	*chrome.Tab
	url string // URL of the server
}

func (w *world) person(t testing.TB, b *chrome.Browser, token string) person {
	p := person{b.Tab(t), w.url}
	p.Cookie(w.url, "artifactfs", token)
	p.Resize(1280, 900)
	return p
}

func (p person) open(path string) { p.T.Helper(); p.Open(p.url + path) }

// quote returns a text as a JavaScript string.
func quote(text string) string {
	q, _ := json.Marshal(text) // every string can be encoded
	return string(q)
}

// fill writes a text into a field. It first opens the element details that contains the field.
func (p person) fill(selector, text string) {
	p.T.Helper()
	p.Eval(`{ const field = document.querySelector(`+quote(selector)+
		`); const box = field.closest("details"); if (box) box.open = true; field.value = `+quote(text)+`; }`, nil)
}

// press presses a button that sends a form, and waits until the next page has the text want.
func (p person) press(button, want string) {
	p.T.Helper()
	p.Loads(func() { p.Click(button) })
	p.wants(want)
}

// wants reports an error unless the page contains the text.
func (p person) wants(text string) {
	p.T.Helper()
	if page := p.Text(`document.querySelector("main").innerText`); !strings.Contains(page, text) {
		p.T.Errorf("page %s lacks %q: %.3000s", p.Text("location.href"), text, page)
	}
}

// refused reports an error unless the console contains exactly one message: that a page was answered with the status.
func (p person) refused(status string) {
	p.T.Helper()
	lines := p.Console()
	if len(lines) != 1 || !strings.Contains(lines[0], status) {
		p.T.Errorf("console: got %q, want only status %s", lines, status)
	}
}

// TestBrowserActs checks that every button of a session page works in a browser, and that the browser reports no error.
// UI_PICTURES=DIR also writes pictures.
func TestBrowserActs(t *testing.T) {
	w, app, m := ready(t, `{"version":1,"branches":[{"match":"main","quorum":1,"reviewers":["alice","carol"]}]}`)
	b := chrome.Start(t)
	agent, alice := w.person(t, b, w.user(t, app, "agent")), w.person(t, b, w.user(t, app, "alice"))
	const session = "/ui/team/app/s/fix"
	comment, thread, answer := `form[action$="/comment"]`, `form[action$="/thread"]`, `form[action$="/answer"]`

	alice.open(session)
	alice.fill(comment+" textarea", "Is there a test for unknown users?")
	alice.press(comment+" button", "Your comment was added.")
	agent.open(session)
	agent.fill(thread+" textarea", "Yes, the third one.")
	agent.press(thread+" button[value=reply]", "Yes, the third one.")
	agent.press(thread+" button[value=resolve]", "1 resolved thread")
	if open := agent.Text(`String(document.querySelector(".thread").open)`); open != "false" {
		t.Errorf("resolved thread is open: %s", open)
	}
	agent.Click(".thread > summary")
	agent.press(thread+" button[value=reopen]", "1 open thread")

	// Annotate a line of a file, which is selected by its number, and a line of a difference.
	alice.open("/ui/team/app/tree/fix@" + m.ids[1] + "/login.go")
	alice.Click("#L13 > a")
	if line := alice.Text(`document.querySelector("[name=line]").value`); line != "13" {
		t.Errorf("line after a click on its number: got %q, want 13", line)
	}
	alice.fill(comment+" textarea", "Does this also hide the length of the password?")
	alice.press(comment+" button", "Does this also hide the length of the password?")
	agent.open("/ui/team/app/diff?a=main&b=fix@")
	agent.Until(`document.querySelector(".changes .thread")`)
	agent.Click("details.lines > summary")
	agent.Click(`.run:not(.same) > pre + pre > [data-n="4"]`)
	if line := agent.Text(`document.querySelector("[name=line]").value`); line != "4" {
		t.Errorf("line after a click in a difference: got %q, want 4", line)
	}
	agent.Click(`.run:not(.same) > pre:first-child > *`) // selects a line of the old file
	agent.Click(`.run.same > pre:first-child > [data-n="1"]`)
	if line := agent.Text(`document.querySelector("[name=line]").value`); line != "1" {
		t.Errorf("line after a click on one that did not change: got %q, want 1", line)
	}
	agent.Click(`.run:not(.same) > pre + pre > [data-n="4"]`)
	agent.fill(comment+" textarea", "This is the only new package.")
	agent.press(comment+" button", "")
	agent.Until(`document.querySelectorAll(".changes .thread").length === 2`)

	// Use the panel of a checkpoint, which the script loads.
	alice.open(session)
	alice.Click("#e-" + m.ids[0] + " > a")
	alice.Until(`document.querySelector("#cursor form[action$='/pin']")`)
	alice.fill("[name=pin]", "before")
	alice.press(`form[action$="/pin"] button`, "The checkpoint is now called before.")
	alice.press(`form[action$="/unpin"] button`, "No checkpoint is called before any more.")
	alice.fill("#cursor "+comment+" textarea", "Made before the tests ran.")
	alice.press("#cursor "+comment+" button", "Made before the tests ran.")
	alice.press(`form[action$="/command"] button`, "ARTIFACTFS_SESSION_TOKEN=")
	alice.Click("[data-copy]")
	alice.Until(`/Copied|Selected/.test(document.getElementById("said").textContent)`)

	// The gate refuses a change without an approval.
	agent.open(session)
	agent.Loads(func() { agent.Click(`a[href$="promote=1"]`) })
	agent.Click("[value=squash]")
	agent.press(`form[action$="/merge"] button`,
		"main is protected and needs an approval of this tree and base by 1 user of alice, carol")
	agent.refused("403")
	agent.open(session)
	agent.fill(`form[action$="/request"] [name=reviewers]`, "alice")
	agent.fill(`form[action$="/request"] textarea`, "No answer takes longer than another now.")
	agent.press(`form[action$="/request"] button`, "The approval was requested.")
	alice.open(session)
	alice.fill(answer+" textarea", "Not before noon.")
	alice.press(answer+" [value=deny]", "Not before noon.")
	alice.press(answer+" [value=grant]", "You have granted the request.")
	alice.press(answer+" [value=withdraw]", "It was withdrawn.")
	alice.fill(answer+" textarea", "Now it is fine.")
	alice.press(answer+" [value=grant]", "Now it is fine.")
	if dir := os.Getenv("UI_PICTURES"); dir != "" {
		pictures(alice, dir, m)
	}
	agent.open(session)
	agent.Loads(func() { agent.Click(`a[href$="promote=1"]`) })
	agent.Click("[value=squash]")
	agent.fill(`form[action$="/merge"] textarea`, "compare passwords in constant time")
	agent.press(`form[action$="/merge"] button`, "main is now at")
	agent.Loads(func() { agent.Click(`a[href$="/merge"]`) })
	agent.fill(`form:not([method]) [name=branch]`, "side")
	agent.press(`form:not([method]) button`, "Adopt fix to side")
	agent.press(`form[action$="/merge"] button`, "side is now at "+m.head[:10])

	for _, step := range []struct{ to, want string }{{"closed", "The session is now closed."},
		{"archived", "The session is now archived."}, {"open", "The session is now paused."}} {
		agent.Loads(func() { agent.Click(`a[href$="state?to=` + step.to + `"]`) })
		agent.fill(`form[action$="/state"] textarea`, "for a test")
		agent.press(`form[action$="/state"] button`, step.want)
	}
	agent.Loads(func() { agent.Click(`a[href$="/delete"]`) })
	agent.press(`form[action$="/delete"] button`, "Session fix was deleted.")
	w.audit.mu.Lock()
	defer w.audit.mu.Unlock()
	for _, form := range forms {
		if !slices.ContainsFunc(w.audit.entries, func(e records.AuditEntry) bool {
			return e.Cause.Target == session+"/"+form && e.Cause.Method == "POST" && e.Result < 400
		}) {
			t.Errorf("no button has sent the form %s", form)
		}
	}
}

// pictures writes pictures of a session page with annotations and approvals, and of a difference with a thread at its
// line, at three widths.
func pictures(p person, dir string, m *sessionMaker) {
	for _, width := range []int{360, 1280, 2560} {
		p.Resize(width, map[bool]int{true: 1000, false: 900}[width == 360])
		p.open("/ui/team/app/s/fix")
		if width == 360 {
			p.Eval(`document.getElementById("cursor").scrollIntoView()`, nil)
		}
		p.Picture(filepath.Join(dir, "review-"+strconv.Itoa(width)+".png"))
		p.open("/ui/team/app/diff?a=main&b=fix@")
		p.Until(`document.querySelector(".changes .thread")`)
		p.Picture(filepath.Join(dir, "thread-"+strconv.Itoa(width)+".png"))
	}
	p.Resize(1280, 900)
	p.open("/ui/team/app/s/fix")
}

// TestBrowserRefusesFormsOfOtherSites checks that a page of another site cannot make changes with the cookie of a user
// who has signed in.
func TestBrowserRefusesFormsOfOtherSites(t *testing.T) {
	w, app, _ := ready(t, "")
	p := w.person(t, chrome.Start(t), w.user(t, app, "alice"))
	other := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(rw, `<form method="post" action="%s/ui/team/app/s/fix/comment"><input name="text" value="forged"></form>`,
			w.url)
	}))
	defer other.Close()
	p.Open(strings.Replace(other.URL, "127.0.0.1", "localhost", 1) + "/") // another site for browsers
	// Drops the message about the missing icon of the other site.
	p.Console()
	p.Loads(func() { p.Eval(`document.forms[0].submit()`, nil) })
	p.wants("The form was sent by a page of another site.")
	p.refused("403")
	p.open("/ui/team/app/s/fix")
	p.wants("Nobody has commented.")
}
