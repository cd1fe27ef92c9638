package ui_test

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/chrome"
	"github.com/artifactfs/artifactfs/integration/harness/install"
	"github.com/artifactfs/artifactfs/server/records"
)

// kind is one kind of web page, with a path as an example.
type kind struct{ name, token, path string }

// kinds returns a page of each kind, with threads, requests and long names.
func kinds(t testing.TB) (w *world, pages []kind) {
	t.Helper()
	w, app, m := ready(t,
		`{"version":1,"branches":[{"match":"main","quorum":1,"reviewers":["alice","carol"]}],"sessions":[{"match":"*","quorum":1}]}`)
	user := w.user(t, app, "alice")
	_, admin := w.token(t, records.Token{Role: records.AdminToken})
	w.act(t, user, "comment", url.Values{"text": {"About the whole session"}})
	w.act(t, user, "comment", url.Values{"text": {"About a line"}, "checkpoint": {m.ids[0]}, "path": {"login.go"},
		"line": {"1"}, "end": {"2"}})
	w.act(t, user, "request", url.Values{"action": {"delete"}, "text": {"Not needed any more"}})
	three, app3, _ := three(t)
	compared := three.reader(t, app3)
	at := "/ui/team/app/s/fix"
	diff := w.get(t, user, "/ui/team/app/diff?a=main&b=fix@", http.StatusOK)
	pages = []kind{
		{"sign in", "", "/"},
		{"namespaces", admin, "/"},
		{"repositories", admin, "/ui/team"},
		{"repository", user, "/ui/team/app"},
		{"session", user, at},
		{"session with a checkpoint", user, at + "?at=" + m.ids[0]},
		{"merge to confirm", user, at + "/merge"},
		{"merge into the default branch", user, at + "/merge?promote=1"},
		{"close to confirm", user, at + "/state?to=closed"},
		{"deletion to confirm", user, at + "/delete"},
		{"difference", user, "/ui/team/app/diff?a=main&b=fix@"},
		{"difference of a file", user, link(t, diff, "Difference</a>")},
		{"directory", user, "/ui/team/app/tree/fix@"},
		{"file", user, "/ui/team/app/tree/fix@" + m.ids[0] + "/login.go"},
		{"missing page", user, "/ui/team/app/nothing"},
		{"comparison", compared, three.url + "/ui/team/app/compare?p=one@&p=two@&p=three@"},
		{"list to compare", compared, three.url + "/ui/team/app"},
		{"refused comparison", compared, three.url + "/ui/team/app/compare?p=one@"},
	}
	for i := range pages {
		if strings.HasPrefix(pages[i].path, "/") {
			pages[i].path = w.url + pages[i].path
		}
	}
	return w, pages
}

// show opens a page in a tab of the browser. The only errors allowed in its console are those about its own status.
func (k kind) show(tab *chrome.Tab) {
	tab.T.Helper()
	base, _, _ := strings.Cut(strings.TrimPrefix(k.path, "http://"), "/")
	if k.token != "" {
		tab.Cookie("http://"+base, "artifactfs", k.token)
	}
	tab.Open(k.path)
	// The differences are loaded.
	tab.Until(`![...document.querySelectorAll(".changes > details[open]")].some((d) => d.querySelector(":scope > p > a"))`)
	for _, line := range tab.Console() {
		if !strings.Contains(line, "status of 4") {
			tab.T.Errorf("%s: console: %s", k.name, line)
		}
	}
}

// TestPages checks each kind of page: axe-core finds no violation, in light and in dark colours, the page is not wider
// than the window, and its elements can be reached by keyboard and are visible when they have the focus.
func TestPages(t *testing.T) {
	t.Parallel()
	modules := filepath.Join(install.NPM(t, "testdata/axe"), "node_modules")
	axe, err := os.ReadFile(filepath.Join(modules, "axe-core/axe.min.js"))
	if err != nil {
		t.Fatal(err)
	}
	// All pages use one tab: the process of a new one takes longer than most pages.
	tab := chrome.Start(t).Tab(t)
	_, pages := kinds(t)
	for _, k := range pages {
		t.Run(k.name, func(t *testing.T) {
			defer func(of testing.TB) { tab.T = of }(tab.T)
			tab.T = t
			tab.Resize(360, 900)
			k.show(tab)
			tab.Eval("{ for (const d of document.querySelectorAll('details')) d.open = true; }", nil)
			checkWidths(t, tab)
			tab.Resize(1280, 900)
			tab.Eval(string(axe)+"\n;undefined", nil)
			checkAxe(t, tab)
			checkKeyboard(t, tab)
		})
	}
}

// checkWidths checks that the page is not wider than the window.
func checkWidths(t *testing.T, tab *chrome.Tab) {
	for _, width := range []int{360, 1280, 3840} {
		tab.Resize(width, 900)
		var wide int
		tab.Eval("document.scrollingElement.scrollWidth", &wide)
		if wide > width {
			t.Errorf("page in a window of %d pixels is %d pixels wide; too wide are %s", width, wide,
				tab.Text(`[...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > innerWidth + 1).slice(0, 5).map((e) => e.outerHTML.slice(0, 200)).join("\n")`))
		}
	}
}

// checkAxe runs axe-core, which was loaded.
func checkAxe(t *testing.T, tab *chrome.Tab) {
	// Only this rule depends on the colours.
	for _, c := range [][2]string{{"light", "null"}, {"dark", `["color-contrast"]`}} {
		scheme, rules := c[0], c[1]
		tab.Scheme(scheme)
		var found []struct {
			ID, Help string
			Nodes    []struct{ HTML, FailureSummary string }
		}
		tab.Eval(`axe.run(document, { resultTypes: ["violations"], ...(`+rules+` && { runOnly: `+rules+
			` }) }).then((r) => r.violations)`, &found)
		for _, v := range found {
			for _, n := range v.Nodes[:min(3, len(v.Nodes))] {
				t.Errorf("%s, %s: %s: %.300s: %s", scheme, v.ID, v.Help, n.HTML, n.FailureSummary)
			}
		}
	}
	tab.Scheme("light")
}

// checkKeyboard checks that the key Tab reaches all controls, and that each is visible when it has the focus.
func checkKeyboard(t *testing.T, tab *chrome.Tab) {
	unreached :=
		`[...document.querySelectorAll("a[href], button, input, select, textarea, summary")].filter((e) => e.checkVisibility() && !e.seen && e.tabIndex >= 0 && !e.disabled && e.type !== "hidden")`
	var total int
	tab.Eval(unreached+".length", &total)
	for range total + 5 {
		tab.Press("Tab")
		// Tab reaches one of the radio buttons, and the arrow keys select among them.
		if hidden := tab.Text(`(() => {
			const e = document.activeElement;
			e.seen = true;
			if (e.type === "radio") for (const other of e.form.elements[e.name]) other.seen = true;
			return e === document.body || getComputedStyle(e).outlineStyle !== "none" ? "" : e.outerHTML.slice(0, 200);
		})()`); hidden != "" {
			t.Errorf("focus is not visible: %s", hidden)
		}
	}
	if rest := tab.Text(unreached + `.map((e) => e.outerHTML.slice(0, 150)).join("\n")`); rest != "" {
		t.Errorf("the key Tab does not reach all of %d controls: %s", total, rest)
	}
}

// TestKeysOfTimeline checks that the keys of a timeline page work, and that the first view is small.
func TestKeysOfTimeline(t *testing.T) {
	t.Parallel()
	m := newSession(t, "fix", map[string]string{"a": "a\n"})
	for i := range 450 {
		m.checkpoint(10*i, "idle", fmt.Sprint("checkpoint ", i), map[string]string{"a": fmt.Sprint(i)})
	}
	w := newWorld(t, nil)
	read := w.reader(t, w.repo(t, "team", "app", m.done()))
	tab := chrome.Start(t).Tab(t)
	kind{"timeline", read, w.url + "/ui/team/app/s/fix"}.show(tab)
	focus := func() string { return tab.Text("document.activeElement.innerText") }
	for _, key := range []string{"j", "ArrowDown", "ArrowDown"} {
		tab.Press(key)
	}
	if got := focus(); !strings.Contains(got, "checkpoint 447") {
		t.Errorf("entry after three keys: got %q", got)
	}
	tab.Press("k")
	tab.Press("ArrowUp")
	tab.Press("Enter")
	tab.Until(`document.getElementById("cursor").innerText.includes("checkpoint 449")`)
	tab.Loads(func() { tab.Press("n") })
	if got := tab.Text(`document.querySelector(".axis").innerText`); !strings.Contains(got, "checkpoint 249") ||
		strings.Contains(got, "checkpoint 250") {
		t.Errorf("page after n: got %.200s", got)
	}
	tab.Loads(func() { tab.Press("p") })
	tab.Press("?")
	tab.Until(`document.getElementById("help").open`)
	tab.Press("Escape")
	tab.Until(`!document.getElementById("help").open`)
	tab.Loads(func() { tab.Press("u") })
	if got := tab.Text("location.pathname"); got != "/ui/team/app" {
		t.Errorf("page after u: got %s", got)
	}
}
