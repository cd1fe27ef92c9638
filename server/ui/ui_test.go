package ui_test

import (
	"fmt"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/ui"
)

// link returns the path of the first link whose HTML tag contains a text.
func link(t testing.TB, page, text string) string {
	t.Helper()
	for _, m := range regexp.MustCompile(`<a [^>]*href="([^"]*)"[^>]*>(.*?)</a>`).FindAllStringSubmatch(strings.ReplaceAll(page, "\n", " "), -1) {
		if strings.Contains(m[0], text) {
			return html.UnescapeString(m[1])
		}
	}
	t.Fatalf("page has no link with %q: %.2000s", text, page)
	return ""
}

func wants(t testing.TB, page string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(page, text) {
			t.Errorf("page lacks %q:\n%.6000s", text, page)
		}
	}
}

// small returns a world with the repository team/app, which has a session with three checkpoints, and the repository
// team/other.
func small(t testing.TB) (w *world, app, other records.Repo, m *sessionMaker) {
	t.Helper()
	w = newWorld(t, nil)
	m = smallSession(t)
	app = w.repo(t, "team", "app", m.done())
	return w, app, w.repo(t, "team", "other", ""), m
}

func TestSignIn(t *testing.T) {
	w, app, _, _ := small(t)
	read := w.reader(t, app)
	if got := w.get(t, "", "/", http.StatusOK); !strings.Contains(got, `name="token"`) {
		t.Errorf("first page: got %.300s, want a form for a token", got)
	}
	page := w.get(t, "", "/ui/team/app/s/fix?at=x", http.StatusUnauthorized)
	wants(t, page, `name="next" value="/ui/team/app/s/fix?at=x"`)

	got := w.post(t, "", "/ui/-/sign-in", url.Values{"token": {read}, "next": {"/ui/team/app/s/fix?at=x"}})
	if got.status != http.StatusSeeOther || got.header.Get("Location") != "/ui/team/app/s/fix?at=x" {
		t.Fatalf("sign in: got %d to %q", got.status, got.header.Get("Location"))
	}
	cookie, err := http.ParseSetCookie(got.header.Get("Set-Cookie"))
	if err != nil {
		t.Fatal(err)
	}
	if !cookie.HttpOnly || cookie.SameSite != http.SameSiteStrictMode || cookie.Path != "/" || cookie.Secure ||
		cookie.Value != read ||
		time.Until(cookie.Expires) > time.Hour || time.Until(cookie.Expires) < 50*time.Minute {
		t.Errorf("cookie: got %+v", cookie)
	}
	if got := w.request(t, read, "GET", "/", ""); got.header.Get("Location") != "/ui/team/app" {
		t.Errorf("first page with a token of a repository: got %d to %q", got.status, got.header.Get("Location"))
	}
	got = w.post(t, read, "/ui/-/sign-out", nil)
	if cookie, err := http.ParseSetCookie(got.header.Get("Set-Cookie")); err != nil || cookie.MaxAge >= 0 ||
		cookie.Value != "" {
		t.Errorf("cookie after signing out: got %+v, %v", cookie, err)
	}
	for _, wrong := range []string{"", "x", "art_v1_" + strings.Repeat("0", 40), "afs_admin_" + strings.Repeat("0", 40)} {
		got := w.post(t, "", "/ui/-/sign-in", url.Values{"token": {wrong}})
		if got.status != http.StatusUnauthorized || got.header.Get("Set-Cookie") != "" {
			t.Errorf("sign in with %q: got %d and cookie %q", wrong, got.status, got.header.Get("Set-Cookie"))
		}
		structure(t, "wrong token", got.body)
		w.get(t, wrong, "/ui/team/app", http.StatusUnauthorized)
	}
	for next, want := range map[string]string{"//evil.example/ui/": "/", "https://evil.example/ui/": "/",
		`/\evil.example/ui/`: "/", "/git/team/app": "/",
		"/ui/-/sign-out": "/", "javascript:alert(1)": "/", "/ui/team/app/diff?a=1&b=2": "/ui/team/app/diff?a=1&b=2"} {
		if got := w.post(t, "", "/ui/-/sign-in",
			url.Values{"token": {read}, "next": {next}}); got.header.Get("Location") != want {
			t.Errorf("sign in with next=%q: got %q, want %q", next, got.header.Get("Location"), want)
		}
	}
	if entries := w.audit.String(); strings.Contains(entries, strings.Split(read, "?")[0]) {
		t.Error("the audit log has a token")
	}
}

// TestSecureCookie checks that with a public URL of https, browsers send the cookie only by https.
func TestSecureCookie(t *testing.T) {
	w := newWorld(t, func(o *ui.Options) { o.URL = "https://git.example.org" })
	_, admin := w.token(t, records.Token{Role: records.AdminToken})
	got := w.post(t, "", "/ui/-/sign-in", url.Values{"token": {admin}}, "Sec-Fetch-Site", "", "Origin",
		"https://git.example.org")
	cookie, err := http.ParseSetCookie(got.header.Get("Set-Cookie"))
	if err != nil || !cookie.Secure || cookie.Name != "__Host-artifactfs" || !cookie.Expires.IsZero() {
		t.Errorf("cookie: got %+v, %v", cookie, err)
	}
	w.get(t, admin, "/ui/", http.StatusUnauthorized) // the cookie with the other name is ignored
}

func TestOtherSitesCannotSendForms(t *testing.T) {
	w, app, _, _ := small(t)
	read := w.reader(t, app)
	for _, headers := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"},
		{"Sec-Fetch-Site", "", "Origin", "https://evil.example"},
		{"Sec-Fetch-Site", "", "Origin", "null"}} {
		for _, path := range []string{"/ui/-/sign-in", "/ui/-/sign-out"} {
			got := w.post(t, read, path, url.Values{"token": {read}}, headers...)
			if got.status != http.StatusForbidden || got.header.Get("Set-Cookie") != "" {
				t.Errorf("POST %s with %v: got %d and cookie %q", path, headers, got.status, got.header.Get("Set-Cookie"))
			}
		}
	}
	for _, path := range []string{"/ui/-/sign-in", "/ui/-/sign-out"} {
		if got := w.request(t, read, "GET", path+"?token="+url.QueryEscape(read),
			""); got.status != http.StatusMethodNotAllowed {
			t.Errorf("GET %s: got %d", path, got.status)
		}
	}
	for _, path := range []string{"/", "/ui/team/app"} {
		if got := w.post(t, read, path, nil); got.status != http.StatusMethodNotAllowed {
			t.Errorf("POST %s: got %d", path, got.status)
		}
	}
	if got := w.post(t, "", "/ui/-/sign-in",
		url.Values{"token": {strings.Repeat("x", 10<<10)}}); got.status != http.StatusBadRequest {
		t.Errorf("large form: got %d", got.status)
	}
}

// TestTokensSeeTheirRepositories checks that a page shows only repositories that its token may read, and that others
// look as if they did not exist.
func TestTokensSeeTheirRepositories(t *testing.T) {
	w, app, other, m := small(t)
	alien := w.repo(t, "else", "app", "")
	tokens := map[string]string{"reader": w.reader(t, app), "other": w.reader(t, other), "alien": w.reader(t, alien)}
	_, tokens["admin"] = w.token(t, records.Token{Role: records.AdminToken})
	_, tokens["owner"] = w.token(t, records.Token{Role: records.OwnerToken, Namespace: "team", Scope: records.ReadScope})
	_, tokens["stranger"] = w.token(t, records.Token{Role: records.OwnerToken, Namespace: "else"})
	_, tokens["session"] = w.token(t, records.Token{Role: records.RepoToken, Namespace: "team", RepoID: app.ID,
		Session: "fix",
		Rules:   []records.RefRule{{Glob: "refs/afs/*/fix"}}, Expires: time.Now().Add(time.Hour)})
	in := []string{"/ui/team/app", "/ui/TEAM/App", "/ui/team/app/s/fix", "/ui/team/app/diff?a=main&b=fix@",
		"/ui/team/app/tree/main", "/ui/team/app/tree/fix@" + m.ids[0] + "/main.go"}
	for name, token := range tokens {
		want := http.StatusNotFound
		if name == "reader" || name == "admin" || name == "owner" || name == "session" {
			want = http.StatusOK
		}
		for _, path := range in {
			w.get(t, token, path, want)
		}
		list, all := http.StatusNotFound, http.StatusNotFound
		if name == "admin" || name == "owner" {
			list = http.StatusOK
		}
		w.get(t, token, "/ui/team", list)
		w.get(t, token, "/ui/nowhere/app", http.StatusNotFound)
		w.get(t, token, "/ui/team/none", http.StatusNotFound)
		if name == "admin" {
			all = http.StatusOK
		}
		if got := w.request(t, token, "GET", "/", ""); got.status != all &&
			(got.status != http.StatusSeeOther || !strings.HasPrefix(got.header.Get("Location"), "/ui/")) {
			t.Errorf("first page of %s: got %d", name, got.status)
		}
	}
	// The answer for a forbidden repository is the same as for a missing one.
	forbidden, missing := w.get(t, tokens["alien"], "/ui/team/app", 404), w.get(t, tokens["alien"], "/ui/team/none", 404)
	if forbidden != missing {
		t.Errorf("a forbidden repository differs from one that does not exist:\n%s\n%s", forbidden, missing)
	}
	page := w.get(t, tokens["admin"], "/ui/team", http.StatusOK)
	wants(t, page, "/ui/team/app", "/ui/team/other")
}

func TestRevokedTokenEndsTheView(t *testing.T) {
	w, app, _, _ := small(t)
	token, text := w.token(t, records.Token{Role: records.RepoToken, Namespace: "team", RepoID: app.ID,
		Expires: time.Now().Add(time.Hour)})
	w.get(t, text, "/ui/team/app", http.StatusOK)
	if err := w.guard.Revoke(t.Context(), token.ID, nil, records.Cause{}); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/ui/team/app", "/ui/team/app/s/fix", "/ui/team/app/s/fix?part=cursor",
		"/ui/team/app/tree/main/main.go", "/ui/team/app/diff?a=main&b=main"} {
		if page := w.get(t, text, path, http.StatusUnauthorized); strings.Contains(page, "println") {
			t.Errorf("GET %s with a revoked token shows contents", path)
		}
	}
	_, gone := w.token(t, records.Token{Role: records.RepoToken, Namespace: "team", RepoID: app.ID,
		Expires: time.Now().Add(-time.Second)})
	w.get(t, gone, "/ui/team/app", http.StatusUnauthorized)
}

func TestHeaders(t *testing.T) {
	w, app, _, _ := small(t)
	read := w.reader(t, app)
	host := strings.TrimPrefix(w.url, "http://")
	for _, path := range []string{"/", "/ui/team/app", "/ui/team/none", "/ui/team/app/tree/main/main.go"} {
		got := w.request(t, read, "GET", path, "")
		if got.status == http.StatusSeeOther {
			continue
		}
		for name, want := range map[string]string{"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
			"Referrer-Policy": "same-origin",
			"X-Frame-Options": "DENY", "Content-Type": "text/html; charset=utf-8", "Cross-Origin-Opener-Policy": "same-origin",
			"Content-Security-Policy": "default-src 'none'; script-src " + host + "/ui/-/; style-src " + host +
				"/ui/-/; img-src " + host +
				"/ui/-/; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"} {
			if got.header.Get(name) != want {
				t.Errorf("GET %s: %s is %q, want %q", path, name, got.header.Get(name), want)
			}
		}
	}
	page := w.get(t, read, "/ui/team/app", http.StatusOK)
	for _, pattern := range []string{`/ui/-/page\.[0-9a-f]{12}\.css`, `/ui/-/page\.[0-9a-f]{12}\.js`,
		`/ui/-/icon\.[0-9a-f]{12}\.svg`} {
		path := regexp.MustCompile(pattern).FindString(page)
		got := w.request(t, "", "GET", path, "")
		if got.status != http.StatusOK || !strings.Contains(got.header.Get("Cache-Control"), "immutable") ||
			got.header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("GET %q: got %d, %v", path, got.status, got.header)
		}
	}
	head := w.request(t, read, "HEAD", "/ui/team/app", "")
	if head.status != http.StatusOK || head.body != "" || head.header.Get("Content-Length") == "" {
		t.Errorf("HEAD: got %d, %d bytes", head.status, len(head.body))
	}
	if got := w.request(t, read, "GET", "/ui/team/app", "", "Host",
		"evil\"; script-src *"); strings.Contains(got.header.Get("Content-Security-Policy"), "*") {
		t.Errorf("policy with a hostile host: %q", got.header.Get("Content-Security-Policy"))
	}
}

func TestSessionPage(t *testing.T) {
	w, app, _, m := small(t)
	read := w.reader(t, app)
	page := w.get(t, read, "/ui/team/app", http.StatusOK)
	wants(t, page, "1 session", `class="state active"`, "ann@laptop", `class="num">3<`,
		"artifactfs mount "+w.url+"/git/team/app.git DIR")
	page = w.get(t, read, link(t, page, ">fix<"), http.StatusOK)
	wants(t, page, "3 checkpoints", "Fix the login &amp; greet", "go test ./...", "before the rename", `<em>Bash</em>`,
		"artifactfs session resume &#39;"+w.url+"/git/team/app.git#session=fix&#39; fix")
	order := regexp.MustCompile(`<li class="(\w+)" id="e-`).FindAllStringSubmatch(page, -1)
	kinds := ""
	for _, o := range order {
		kinds += o[1] + " "
	}
	if kinds != "checkpoint checkpoint response tool prompt checkpoint " {
		t.Errorf("entries: got %s", kinds)
	}
	// The page shows the changes of a checkpoint compared with the previous one; the first one is compared with the
	// base.
	page = w.get(t, read, "/ui/team/app/s/fix?at="+m.ids[1], http.StatusOK)
	wants(t, page, `aria-current="true"`, "before the rename", "2 files changed", "old name.txt → docs/new name.txt",
		"the checkpoint before",
		"artifactfs session fork &#39;"+w.url+"/git/team/app.git#session=fix@"+m.ids[1]+"&#39; fix-fork",
		"artifactfs session restore -C fix "+m.ids[1])
	page = w.get(t, read, "/ui/team/app/s/fix?part=cursor&at="+m.ids[0], http.StatusOK)
	wants(t, page, "1 file changed", "the base of the session", "main.go")
	if strings.Contains(page, "<html") {
		t.Error("the part of a page has a frame")
	}
	diff := w.get(t, read, link(t, page, ">main.go<"), http.StatusOK)
	wants(t, diff, `<ins data-n="3"><b class="c">// hello</b></ins>`, "&lt;hi&gt;", `<del data-n="3">`, "File before")
	files := w.get(t, read, link(t, page, ">Files<"), http.StatusOK)
	wants(t, files, "docs/", "main.go", "Restore here")
	all := w.get(t, read, "/ui/team/app/diff?a=main&b=fix@", http.StatusOK)
	wants(t, all, "4 files changed", "renamed", "docs/read me.txt")
	w.get(t, read, "/ui/team/app/s/fix?at=01ARZ3NDEKTSV4RRFFQ69G5FAV", http.StatusOK)
	for _, path := range []string{"/ui/team/app/s/none", "/ui/team/app/s/fix?before=x", "/ui/team/app/s/..%2ffix",
		"/ui/team/app/diff?a=main&b=none",
		"/ui/team/app/diff?a=main&b=fix@none", "/ui/team/app/tree/main/none", "/ui/team/app/tree/main/..%2f..",
		"/ui/team/app/tree/main~1", "/ui/team/app/none",
		"/ui/team/app/diff/file?a=main&b=main&path=main.go", "/ui/a//b", "/ui/%00/b"} {
		w.get(t, read, path, http.StatusNotFound)
	}
	w.get(t, read, "/ui/team/app/diff", http.StatusBadRequest)
}

func TestFilePage(t *testing.T) {
	w, app, _, m := small(t)
	read := w.reader(t, app)
	page := w.get(t, read, "/ui/team/app/tree/fix@"+m.ids[0]+"/main.go", http.StatusOK)
	wants(t, page, `<span id="L3"><a href="#L3" data-n="3" aria-label="Line 3"></a><b class="c">// hello</b></span>`,
		"4 lines", `<b class="q">&#34;&lt;hi&gt;&#34;</b>`)
	wants(t, w.get(t, read, "/ui/team/app/tree/main/docs", http.StatusOK),
		`href="/ui/team/app/tree/main/docs/read%20me.txt"`)
	wants(t, w.get(t, read, "/ui/team/app/tree/main/docs/read%20me.txt", http.StatusOK), "three")
}

// TestHostileTextIsShownAsText checks that names, messages and contents of hostile clients are shown as text and not as
// HTML.
func TestHostileTextIsShownAsText(t *testing.T) {
	const evil = `<img src=x onerror=alert(1)>`
	m := newSession(t, "evil", map[string]string{"a": "a\n"})
	m.checkpoint(1, evil[:20], evil+" \u202e\x1b[31m",
		map[string]string{`x"><script>alert(1)</script>`: evil + "\n", "b\nc'\" &amp;": "\x1b[2J\u202e" + evil,
			"x.html": "<script>alert(1)</script>\n",
			"bin":    "a\x00b", "crlf.go": "package a\r\n\r\nfunc b() {}\r\n", "\xff\xfe": "latin \xe9\n"})
	m.records(m.ids[0], 2, `{"type":"prompt","text":"`+strings.ReplaceAll(evil, `"`, `\"`)+`"}`, `{"type":5,"text":[1]}`,
		`{"type":"tool_call","tool":"<i>","input":"</pre>"}`,
		`{"type":"subagent_end","text":"found","sub":"<i>","sub_type":"<i>x"}`)
	dir := m.done()
	w := newWorld(t, nil)
	app := w.repo(t, "team", "app", dir)
	read := w.reader(t, app)
	wants(t, w.get(t, read, "/ui/team/app/s/evil", http.StatusOK), "sub-agent &lt;i&gt;x subagent_end")
	pages := []string{"/ui/team/app", "/ui/team/app/s/evil", "/ui/team/app/s/evil?at=" + m.ids[0],
		"/ui/team/app/diff?a=main&b=evil@", "/ui/team/app/tree/evil@",
		"/ui/team/app/diff?a=%3Cscript%3E&b=%22"}
	tree := w.get(t, read, "/ui/team/app/tree/evil@", http.StatusOK)
	for _, found := range regexp.MustCompile(`<li class="blob"><a href="([^"]+)"`).FindAllStringSubmatch(tree, -1) {
		pages = append(pages, html.UnescapeString(found[1]))
	}
	diff := w.get(t, read, "/ui/team/app/diff?a=main&b=evil@", http.StatusOK)
	for _, found := range regexp.MustCompile(`href="(/ui/team/app/diff/file[^"]+)"`).FindAllStringSubmatch(diff, -1) {
		pages = append(pages, html.UnescapeString(found[1]))
	}
	if len(pages) != 6+6+6 {
		t.Errorf("found %d pages, want 18: %v", len(pages), pages)
	}
	for _, path := range pages {
		got := w.request(t, read, "GET", path, "")
		structure(t, path, got.body)
		for _, bad := range []string{"<script>alert", "<img", "\u202e", "\x1b", "<i>", "</script>alert"} {
			if strings.Contains(got.body, bad) {
				t.Errorf("GET %s: page has %q", path, bad)
			}
		}
		if got.status >= 500 {
			t.Errorf("GET %s: got %d", path, got.status)
		}
	}
}

// TestTimelinePages checks that a timeline is divided into pages, and that each entry is on one of them, in both
// directions.
func TestTimelinePages(t *testing.T) {
	m := newSession(t, "long", map[string]string{"a": "a\n"})
	var records []string
	for i := range 450 {
		records = append(records, fmt.Sprintf(`{"type":"prompt","text":"record %d."}`, i))
	}
	m.records("none", -5, `{"type":"prompt","text":"before all"}`)
	for i := range 300 {
		id := m.checkpoint(10+i*1000, "idle", fmt.Sprintf("point %d.", i), map[string]string{"a": fmt.Sprint(i)})
		if i == 150 {
			m.records(id, 11+i*1000, records...)
		}
	}
	w := newWorld(t, nil)
	app := w.repo(t, "team", "app", m.done())
	read := w.reader(t, app)
	entries := func(page string) (list []string) {
		for _, found := range regexp.MustCompile(`<span class="text">([^<]*)</span>`).FindAllStringSubmatch(page, -1) {
			list = append(list, found[1])
		}
		return list
	}
	page := w.get(t, read, "/ui/team/app/s/long", http.StatusOK)
	wants(t, page, "300 checkpoints")
	var down []string
	for {
		here := entries(page)
		if len(here) == 0 || len(here) > 200 {
			t.Fatalf("page has %d entries", len(here))
		}
		down = append(down, here...)
		if !strings.Contains(page, `rel="next"`) {
			break
		}
		page = w.get(t, read, link(t, page, `rel="next"`), http.StatusOK)
	}
	if len(down) != 300+450+1 || down[0] != "point 299." || down[750] != "before all" || down[149] != "record 449." {
		t.Fatalf("timeline has %d entries, from %q to %q, and %q", len(down), down[0], down[len(down)-1], down[149])
	}
	up := entries(page)
	for strings.Contains(page, `rel="prev"`) {
		page = w.get(t, read, link(t, page, `rel="prev"`), http.StatusOK)
		up = append(entries(page), up...)
	}
	if strings.Join(up, "") != strings.Join(down, "") {
		t.Errorf("upwards, the timeline has %d entries, from %q, want the same as downwards", len(up), up[0])
	}
	slices.Reverse(down)
	page = w.get(t, read, link(t, page, "Oldest first"), http.StatusOK)
	for what, next := range []string{`rel="next"`, `rel="prev"`} {
		all := entries(page)
		for strings.Contains(page, next) {
			page = w.get(t, read, link(t, page, next), http.StatusOK)
			if all = append(all, entries(page)...); what == 1 {
				all = append(entries(page), all[:len(all)-len(entries(page))]...)
			}
		}
		if strings.Join(all, "") != strings.Join(down, "") {
			t.Errorf("by %s, the timeline with the oldest entries first has %d entries, from %q to %q, want the opposite order",
				next, len(all), all[0], all[len(all)-1])
		}
	}
	page = w.get(t, read, link(t, page, "point 0."), http.StatusOK)
	if here := entries(page); !strings.Contains(page, "aria-current") || !strings.Contains(page, "Newest first") ||
		here[0] != "before all" {
		t.Errorf("checkpoint with the oldest entries first: page has entries %q to %q", here[0], here[len(here)-1])
	}
	page = w.get(t, read, "/ui/team/app/s/long?at="+m.ids[100], http.StatusOK)
	if here := entries(page); len(here) == 0 || here[0] != "point 103." || !strings.Contains(page, "aria-current") {
		t.Errorf("page at a checkpoint begins with %v", here[:min(3, len(here))])
	}
}
