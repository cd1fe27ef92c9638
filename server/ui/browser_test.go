package ui_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// browser runs Chromium without a window until a page and its script are complete. It returns the page and the messages
// of the console.
func browser(t *testing.T, url string, width, height int, more ...string) (page string, console []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	profile := t.TempDir()
	if len(more) > 0 && strings.HasPrefix(more[0], "--user-data-dir=") {
		profile, more = strings.TrimPrefix(more[0], "--user-data-dir="), more[1:]
	}
	args := append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-extensions", "--hide-scrollbars",
		"--enable-logging=stderr",
		"--user-data-dir=" + profile, fmt.Sprintf("--window-size=%d,%d", width, height), "--virtual-time-budget=10000"},
		more...)
	cmd := exec.CommandContext(ctx, "chromium", append(args, url)...)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("chromium: %v\n%.2000s", err, stderr.String())
	}
	return out.String(), regexp.MustCompile(`.*CONSOLE.*`).FindAllString(stderr.String(), -1)
}

// TestBrowser opens a link with a token in its fragment in Chromium, at three widths. UI_PICTURES=DIR also writes
// pictures.
func TestBrowser(t *testing.T) {
	if _, err := exec.LookPath("chromium"); err != nil {
		t.Skip("SKIPPED: chromium is not installed (apt-get install chromium), so no browser has read the pages")
	}
	w, app, _, m := small(t)
	read := w.reader(t, app)
	for _, page := range []struct {
		name, path string
		width      int
		wants      []string
	}{
		{"page-360", "/ui/team/app/s/fix?at=" + m.ids[1], 360,
			[]string{"before the rename", "2 files changed", `data-copy="">`}},
		{"page-1280", "/ui/team/app/s/fix?at=" + m.ids[1], 1280, []string{"before the rename", "2 files changed"}},
		{"page-2560", "/ui/team/app/diff?a=main&b=fix@", 2560, []string{`data-loaded="yes"`, `<ins data-n="1">new</ins>`}},
	} {
		t.Run(page.name, func(t *testing.T) {
			dom, console := browser(t, w.url+page.path+"#token="+read, page.width, 900, "--dump-dom")
			for _, want := range page.wants {
				if !strings.Contains(dom, want) {
					t.Errorf("page after the sign-in lacks %q: %.6000s", want, dom)
				}
			}
			if strings.Contains(dom, read) {
				t.Error("page has the token")
			}
			for _, line := range console {
				if !strings.Contains(line, "401 (Unauthorized)") { // the first answer requires a token
					t.Errorf("console: %s", line)
				}
			}
			if dir := os.Getenv("UI_PICTURES"); dir != "" {
				browser(t, w.url+page.path+"#token="+read, page.width, 900, "--screenshot="+filepath.Join(dir, page.name+".png"))
			}
		})
	}
	if entries := w.audit.String(); strings.Contains(entries, strings.Split(read, "?")[0]) {
		t.Error("the audit log has the token")
	}
}

// TestBrowserFollowsLinkFromOtherSite checks that a user who has signed in and follows a link from another site sees
// the page, although browsers do not send the cookie with such a link.
func TestBrowserFollowsLinkFromOtherSite(t *testing.T) {
	if _, err := exec.LookPath("chromium"); err != nil {
		t.Skip("SKIPPED: chromium is not installed (apt-get install chromium), so no browser has followed the link")
	}
	w, app, _, _ := small(t)
	read := w.reader(t, app)
	other := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(rw,
			`<a id="a" href="%s/ui/team/app/s/fix">session</a><script>document.getElementById("a").click()</script>`, w.url)
	}))
	defer other.Close()
	profile := "--user-data-dir=" + t.TempDir()
	from := strings.Replace(other.URL, "127.0.0.1", "localhost", 1) // another site for browsers
	if dom, _ := browser(t, from, 1280, 900, profile, "--dump-dom"); !strings.Contains(dom, `name="token"`) {
		t.Errorf("page before the sign-in lacks the form: %.3000s", dom)
	}
	browser(t, w.url+"/ui/team/app#token="+read, 1280, 900, profile, "--dump-dom")
	if dom, _ := browser(t, from, 1280, 900, profile, "--dump-dom"); !strings.Contains(dom, "Fix the login") {
		t.Errorf("page after a link from another site lacks the session: %.3000s", dom)
	}
}

// TestBrowserAsksBeforeSignIn checks that a link with a token that is opened by a page of another site does not sign in
// the user without a question, whether or not the user has signed in before.
func TestBrowserAsksBeforeSignIn(t *testing.T) {
	if _, err := exec.LookPath("chromium"); err != nil {
		t.Skip("SKIPPED: chromium is not installed (apt-get install chromium), so no browser has followed the link")
	}
	w, app, _, _ := small(t)
	read, theirs := w.reader(t, app), w.reader(t, app)
	other := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/html")
		rw.Header().Set("Referrer-Policy", "no-referrer")
		fmt.Fprintf(rw,
			`<a id="a" href="%s/ui/team/app/s/fix#token=%s">session</a><script>document.getElementById("a").click()</script>`,
			w.url, theirs)
	}))
	defer other.Close()
	from := strings.Replace(other.URL, "127.0.0.1", "localhost", 1) // another site for browsers
	const ask = "Sign in with the token of the link"
	profile := "--user-data-dir=" + t.TempDir()
	if dom, _ := browser(t, from, 1280, 900, profile, "--dump-dom"); !strings.Contains(dom, ask) ||
		strings.Contains(dom, "Fix the login") {
		t.Errorf("page of a visitor after a link from another site: %.3000s", dom)
	}
	browser(t, w.url+"/ui/team/app#token="+read, 1280, 900, profile, "--dump-dom")
	if dom, _ := browser(t, from, 1280, 900, profile, "--dump-dom"); !strings.Contains(dom, ask) {
		t.Errorf("page of a user after a link from another site: %.3000s", dom)
	}
	if dom, _ := browser(t, w.url+"/ui/team/app/s/fix#token="+theirs, 1280, 900, profile,
		"--dump-dom"); !strings.Contains(dom, ask) ||
		!strings.Contains(dom, "Fix the login") || !strings.Contains(dom, "the token replaces that") {
		t.Errorf("page of a user with another token in the address: %.3000s", dom)
	}
}
