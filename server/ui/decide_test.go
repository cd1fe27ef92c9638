package ui_test

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/session/approval"
)

// loginBefore and loginAfter are a file before and after the change of a session.
const (
	// loginBefore and loginAfter are the contents of a file before and after the change by a session.
	loginBefore = `package login

import "errors"

var errWrong = errors.New("wrong user or password")

// Check compares a password with that of a user.
func Check(user, password string) error {
	if passwords[user] == password {
		return nil
	}
	return errWrong
}
`
	loginAfter = `package login

import (
	"crypto/subtle"
	"errors"
)

var errWrong = errors.New("wrong user or password")

// Check compares a password with that of a user.
func Check(user, password string) error {
	want, known := passwords[user]
	if subtle.ConstantTimeCompare([]byte(want), []byte(password)) == 1 && known {
		return nil
	}
	return errWrong
}
`
)

// ready returns a world with a session that no machine holds and whose commit can be merged. policy is the policy of
// the repository, "" for none.
func ready(t testing.TB, policy string) (w *world, app records.Repo, m *sessionMaker) {
	t.Helper()
	w = newWorld(t, nil)
	m = newSession(t, "fix", map[string]string{"login.go": loginBefore, "README": "login\n"})
	m.commit("compare passwords in constant time", map[string]string{"login.go": loginAfter})
	first := m.checkpoint(5, "idle", "", map[string]string{"login.go": loginAfter})
	m.records(first, 6,
		`{"type":"prompt","role":"user","text":"The comparison of passwords must take the same time for all of them."}`,
		`{"type":"tool_call","role":"assistant","tool":"Bash","input":{"command":"go test ./login"}}`,
		`{"type":"response","role":"assistant","text":"Check now uses crypto/subtle."}`)
	m.checkpoint(10, "commit", "", nil)
	m.leave()
	if policy != "" {
		m.store(approval.PolicyRef, approval.PolicyFile, []byte(policy))
	}
	return w, w.repo(t, "team", "app", m.done()), m
}

// hidden returns the hidden fields of the form with the given action on a page.
func hidden(t testing.TB, page, action string) url.Values {
	t.Helper()
	form := regexp.MustCompile(`(?s)<form[^>]*method="post" action="[^"]*` + action + `".*?</form>`).FindString(page)
	if form == "" {
		t.Fatalf("page has no form %s: %s", action, page)
	}
	values := url.Values{}
	for _, m := range regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`).FindAllStringSubmatch(form, -1) {
		values.Set(m[1], m[2])
	}
	return values
}

// with returns a copy of values with one more value.
func with(values url.Values, name, value string) url.Values {
	values.Set(name, value)
	return values
}

func TestAdopt(t *testing.T) {
	w, app, m := ready(t, "")
	alice := w.user(t, app, "alice")
	page := w.get(t, alice, "/ui/team/app/s/fix", http.StatusOK)
	confirm := w.get(t, alice, link(t, page, "Promote…"), http.StatusOK)
	wants(t, confirm, "<h1>Promote fix to main</h1>", m.ids[1], "Look at the difference", "no policy",
		"artifactfs session promote &#39;"+w.url+"/git/team/app.git#session=fix&#39; --to URL:BRANCH")
	stale := hidden(t, confirm, "/merge")
	page = w.act(t, alice, "merge", with(hidden(t, confirm, "/merge"), "how", "ff"))
	wants(t, page, "main is now at "+m.head[:10]+", with 1 commit of the session.")
	if got := w.post(t, alice, "/ui/team/app/s/fix/merge", with(stale, "how", "ff")); got.status != http.StatusConflict ||
		!strings.Contains(got.body, "as expected") {
		t.Errorf("second merge of the same page: got %d %s", got.status, got.body)
	}
	confirm = w.get(t, alice, "/ui/team/app/s/fix/merge?branch=side", http.StatusOK)
	wants(t, confirm, "<h1>Adopt fix to side</h1>", "does not exist yet")
	wants(t, w.act(t, alice, "merge", with(hidden(t, confirm, "/merge"), "how", "ff")), "side is now at "+m.head[:10])
	for what, c := range map[string]struct {
		name, value, want string
		status            int
	}{
		"newer checkpoint": {"seen", strings.Repeat("1", 40), "another newest checkpoint", http.StatusConflict},
		"no method":        {"how", "x", "is not a method", http.StatusBadRequest},
		"no branch":        {"branch", "a..b", "cannot be the name", http.StatusBadRequest},
		"nothing to do":    {"how", "squash", "already has all commits", http.StatusConflict},
	} {
		values := hidden(t, w.get(t, alice, "/ui/team/app/s/fix/merge?branch=side", http.StatusOK), "/merge")
		got := w.post(t, alice, "/ui/team/app/s/fix/merge", with(values, c.name, c.value))
		structure(t, what, got.body)
		if got.status != c.status || !strings.Contains(got.body, c.want) {
			t.Errorf("%s: got %d %s, want %d and %q", what, got.status, got.body, c.status, c.want)
		}
	}
	for _, path := range []string{"merge?branch=a..b", "none", "state?to=paused", "state"} {
		w.get(t, alice, "/ui/team/app/s/fix/"+path, http.StatusNotFound)
	}
	if page := w.get(t, w.reader(t, app), "/ui/team/app/s/fix/merge", http.StatusOK); strings.Contains(page,
		`method="post" action="/ui/team/app/s/fix/merge"`) || !strings.Contains(page, "Your token can only read") {
		t.Errorf("page for a token that can only read: %s", page)
	}
}

// TestPolicyAppliesToPages checks that the policy applies to changes on the page as to pushes by git: a merge is
// refused with the message of the gate until it is approved.
func TestPolicyAppliesToPages(t *testing.T) {
	w, app, m := ready(t, `{"version":1,"branches":[{"match":"main","quorum":1,"reviewers":["alice"]}]}`)
	agent, alice := w.user(t, app, "agent"), w.user(t, app, "alice")
	confirm := w.get(t, agent, "/ui/team/app/s/fix/merge?promote=1", http.StatusOK)
	wants(t, confirm, "changes of main: 1 approval by alice")
	merge := with(hidden(t, confirm, "/merge"), "how", "squash")
	got := w.post(t, agent, "/ui/team/app/s/fix/merge", merge)
	if got.status != http.StatusForbidden || !strings.Contains(got.body,
		"main is protected and needs an approval of this tree and base by 1 user of alice") {
		t.Errorf("merge without an approval: got %d %s", got.status, got.body)
	}
	page := w.act(t, agent, "request", url.Values{"action": {"merge"}})
	wants(t, page, "merge into main", "It needs 1 more approval of alice.")
	request := hidden(t, w.get(t, alice, "/ui/team/app/s/fix", http.StatusOK), "/answer")
	wants(t, w.act(t, alice, "answer", with(request, "op", "grant")), `class="state granted"`)
	wants(t, w.act(t, agent, "merge", with(merge, "text", "constant time\n\nsquashed")), "with 1 commit of the session")
	refs, err := w.db.Repos.Refs(t.Context(), app.ID)
	if err != nil {
		t.Fatal(err)
	}
	for _, ref := range refs {
		if ref.Name == "refs/heads/main" && (ref.ID == m.head || ref.ID == gittest.Must(t, m.dir, "rev-parse", "main")) {
			t.Errorf("main after the squash: got %s, want a new commit", ref.ID)
		}
	}
}

func TestPinsAndStates(t *testing.T) {
	w, app, m := ready(t, "")
	alice := w.user(t, app, "alice")
	panel := "/ui/team/app/s/fix?at=" + m.ids[0]
	wants(t, w.act(t, alice, "pin", with(hidden(t, w.get(t, alice, panel, http.StatusOK), "/pin"), "pin", "before")),
		"The checkpoint is now called before.")
	page := w.get(t, alice, panel, http.StatusOK)
	wants(t, page, "<mark>before</mark>", "Unpin")
	wants(t, w.act(t, alice, "unpin", hidden(t, page, "/unpin")), "No checkpoint is called before any more.")
	confirm := w.get(t, alice, link(t, w.get(t, alice, "/ui/team/app/s/fix", http.StatusOK), "Delete…"), http.StatusOK)
	wants(t, confirm, "<h1>Delete fix</h1>", "For 7 days")
	wants(t, w.get(t, w.reader(t, app), "/ui/team/app/s/fix/delete", http.StatusOK), "Your token can only read")
	for what, values := range map[string]url.Values{"pin": {"pin": {"10m"}, "at": {m.ids[0]}},
		"unpin": {"pin": {"none"}}} {
		if got := w.post(t, alice, "/ui/team/app/s/fix/"+what, values); got.status != http.StatusBadRequest &&
			got.status != http.StatusNotFound {
			t.Errorf("%s of a wrong name: got %d %s", what, got.status, got.body)
		}
	}
	for _, step := range []struct{ button, state string }{{"Close…", "closed"}, {"Archive…", "archived"},
		{"Reopen…", "paused"}} {
		confirm := w.get(t, alice, link(t, w.get(t, alice, "/ui/team/app/s/fix", http.StatusOK), step.button), http.StatusOK)
		page := w.act(t, alice, "state", with(hidden(t, confirm, "/state"), "text", "because"))
		wants(t, page, "The session is now "+step.state+".", `class="state `+step.state+`"`, "last changed by alice")
	}
	if got := w.post(t, alice, "/ui/team/app/s/fix/state",
		url.Values{"to": {"active"}}); got.status != http.StatusBadRequest {
		t.Errorf("form with another state: got %d", got.status)
	}
	wants(t, w.get(t, w.reader(t, app), "/ui/team/app/s/fix/state?to=closed", http.StatusOK), "Your token can only read")
	wants(t, w.act(t, alice, "delete", nil),
		"Session fix was deleted. Within 7 days, artifactfs session undelete fix --session-remote "+w.url+
			"/git/team/app.git restores it.")
	w.get(t, alice, "/ui/team/app/s/fix", http.StatusNotFound)
}

// TestAdoptFromComparison checks that the comparison of proposals links to the page on which one of them can be merged.
func TestAdoptFromComparison(t *testing.T) {
	w, app, _ := ready(t, "")
	const compare = "/ui/team/app/compare?p=main&p=fix@"
	page := w.get(t, w.user(t, app, "alice"), compare, http.StatusOK)
	wants(t, w.get(t, w.user(t, app, "alice"), link(t, page, "adopt…"), http.StatusOK), "<h1>Adopt fix to main</h1>")
	if page := w.get(t, w.reader(t, app), compare, http.StatusOK); strings.Contains(page, "adopt…") {
		t.Error("comparison for a token that can only read leads to a merge")
	}
}
