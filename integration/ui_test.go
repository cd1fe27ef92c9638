package integration

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/chrome"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// page is a running "artifactfs ui".
type page struct {
	w   *world
	cmd *exec.Cmd
	url *url.URL
}

// ui starts a page, which the test must end.
func (w *world) ui(args ...string) page {
	w.Helper()
	p := page{w: w, cmd: w.command(w.Context(), append([]string{"ui", "--json"}, args...)...)}
	out := must[io.ReadCloser](w)(p.cmd.StdoutPipe())
	if err := p.cmd.Start(); err != nil {
		w.Fatal(err)
	}
	var printed struct{ URL string }
	if err := json.NewDecoder(bufio.NewReader(out)).Decode(&printed); err != nil {
		w.Fatalf("output of ui: %v", err)
	}
	p.url = must[*url.URL](w)(url.Parse(printed.URL))
	return p
}

// end ends the page by a signal.
func (p page) end(s os.Signal) {
	p.w.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.w.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil {
		p.w.Errorf("ui after %s: %v", s, err)
	}
	if c, err := net.Dial("tcp", p.url.Host); err == nil {
		c.Close()
		p.w.Errorf("something listens at %s after the end of the page", p.url.Host)
	}
}

// forest returns files in directories of different sizes.
func forest() map[string]gittest.File {
	files := map[string]gittest.File{"README": {Data: []byte("readme\n")}}
	for dir, n := range map[string]int{"src/core": 120, "src/net": 60, "doc": 40, "test/unit": 30, "test/data": 10} {
		for i := range n {
			files[fmt.Sprintf("%s/f%d.txt", dir, i)] = gittest.File{Data: fmt.Appendf(nil, "%s %d\n", dir, i)}
		}
	}
	return files
}

// The live page of a mount shows reads through the mount as they happen: the treemap changes in place, and the table
// has its figures.
func TestLivePageFollowsMount(t *testing.T) {
	t.Parallel()
	tab := chrome.Start(t).Tab(t)
	w := newWorld(t)
	w.commit(w.repo("app", object.SHA1), forest())
	m := w.bare(w.serve(gittest.ServerOptions{RTT: 50 * time.Millisecond}).URL("app"), "--session", "work")
	p := w.ui(m.Dir)
	tab.Resize(1280, 900)
	tab.Open("about:blank")
	tab.Call("Page.navigate", map[string]any{"url": p.url.String()}, nil)
	tab.Until(`document.querySelectorAll("#map g").length >= 6`)
	wantSignIn(t, tab)
	const box = `document.querySelector('#map g[data-key="src/core"]')`
	const height = `Number(` + box + `.querySelector(".fetched").getAttribute("height"))`
	if got := tab.Text(`document.getElementById("f-fetched").textContent`); got != "0 % of 261 files" {
		t.Errorf("fetched before any read: got %q", got)
	}
	if strings.Contains(tab.Text("location.href"), "token") {
		t.Errorf("address of the page has the token: %s", tab.Text("location.href"))
	}
	tab.Eval(`window.seen = `+box+`; undefined`, nil)
	w.sh(m.Dir, "cat src/core/*")
	tab.Until(height + ` > 0`)
	tab.Until(`window.seen === ` + box + ` && window.seen.isConnected`) // the box has changed in place
	tab.Until(`/^[1-9]/.test(document.querySelector('#rows tr[data-key=src] td[data-label=Fetched]').textContent)`)
	w.sh(m.Dir, "cat $(find . -type f -not -path './.git/*') >all; rm all")
	tab.Until(`document.getElementById("f-fetched").textContent === "100 % of 261 files"`)
	tab.Until(`document.getElementById("chart-requests").getAttribute("d").includes("L")`)

	// The keyboard reaches the directories of the table, and a directory has a page of its own.
	tab.Press("j")
	tab.Until(`document.activeElement.closest("#rows")`)
	tab.Loads(func() { tab.Press("Enter") })
	tab.Until(`document.querySelector('#map g[data-key="src/net"]') && document.querySelector("h1").textContent.endsWith("/src")`)
	tab.Loads(func() { tab.Click(`#live a[href*="by=bytes"]`) })
	tab.Until(`document.getElementById("map-title").textContent === "Files by size" && document.querySelectorAll("#map g").length > 0`)

	// After the end of the mount the page says so, and the session is still on the first page.
	w.sh(m.Dir, "echo new >new.txt")
	m.checkpoint("-m", "a new file")
	w.unmount(m)
	tab.Until(`document.getElementById("problem").textContent !== ""`)
	tab.Open("http://" + p.url.Host + "/")
	tab.Until(`document.querySelector("tbody th a").textContent === "work" && document.querySelector("tbody .state").textContent === "unmounted"`)
	tab.Loads(func() { tab.Click("tbody th a") })
	tab.Until(`document.body.textContent.includes("a new file") && document.body.textContent.includes("artifactfs session fork work")`)
	tab.Click(".axis a[data-entry]")
	tab.Until(`document.getElementById("cursor").textContent.includes("new.txt")`)
	tab.Open("http://" + p.url.Host + "/ui/sessions/" + m.ID + "/tree/work@/new.txt")
	tab.Until(`document.querySelector("#L1").textContent.includes("new")`)
	p.end(os.Interrupt)
}

// wantSignIn removes the answer that asks for the token from the console of a tab, and fails if anything else was
// there.
func wantSignIn(t *testing.T, tab *chrome.Tab) {
	t.Helper()
	for _, line := range tab.Console() {
		if !strings.Contains(line, "401 (Unauthorized)") {
			t.Errorf("console: %s", line)
		}
	}
}

// The page answers only with its token, ends by a signal, and shows sessions without a daemon.
func TestPageOfHostNeedsItsToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.commit(w.repo("app", object.SHA1), forest())
	shared := w.place("shared.git")
	w.sh(w.root, "git init -q --bare "+shared)
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("app"), "--session", "work", "--session-remote", shared)
	w.sh(m.Dir, "echo new >new.txt")
	m.checkpoint("--sync", "-m", "a new file")
	w.unmount(m)
	w.ok("unmount", "--all") // ends the daemon
	p := w.ui("work")
	token := strings.TrimPrefix(p.url.Fragment, "token=")
	if len(token) != 40 || p.url.Path != "/ui/sessions/work/s/work" {
		t.Errorf("URL: got %s", p.url)
	}
	get := func(path, name, value string) (int, string) {
		t.Helper()
		req := must[*http.Request](t)(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.url.Host+path, nil))
		req.AddCookie(&http.Cookie{Name: name, Value: value})
		res := must[*http.Response](t)(http.DefaultClient.Do(req))
		defer res.Body.Close()
		return res.StatusCode, string(must[[]byte](t)(io.ReadAll(res.Body)))
	}
	cookie := "artifactfs-ui-" + p.url.Port()
	live := "/ui/live?mount=" + url.QueryEscape(m.Dir)
	for _, path := range []string{"/", "/ui/sessions/work/s/work",
		"/ui/session-remotes/" + filepath.Base(strings.TrimSuffix(shared, ".git")), live,
		strings.Replace(live, "live?", "live/events?", 1)} {
		for _, c := range [][2]string{{cookie, ""}, {cookie, token[:39] + "x"}, {"artifactfs", token}} {
			if status, body := get(path, c[0], c[1]); strings.Contains(body, "new file") || strings.Contains(body, m.Dir) ||
				path != "/" && status == 200 {
				t.Errorf("GET %s with the cookie %s=%s: got %d, %.300s", path, c[0], c[1], status, body)
			}
		}
		status, body := get(path, cookie, token)
		if strings.HasPrefix(path, "/ui/live") {
			if status != http.StatusNotFound {
				t.Errorf("GET %s: got %d, want the answer that nothing is mounted", path, status)
			}
		} else if status != http.StatusOK || !strings.Contains(body, "work") {
			t.Errorf("GET %s: got %d, %.2000s", path, status, body)
		}
	}
	if _, body := get("/", cookie, token); !strings.Contains(body, "No daemon is running") ||
		!strings.Contains(body, "artifactfs mount URL DIR") {
		t.Errorf("first page without a daemon: %.3000s", body)
	}
	p.end(syscall.SIGTERM)
	if r := w.afs("ui", "nothing"); r.code != 4 || !strings.Contains(r.stderr, "hint: ") {
		t.Errorf("page of a session that does not exist: %s", r)
	}
}

// UI_PICTURES=DIR UI_REPOSITORY=GITDIR writes pictures of the live page while grep reads the repository, which is
// mounted at UI_MOUNT if that is set.
func TestPicturesOfLivePage(t *testing.T) {
	dir, repo := os.Getenv("UI_PICTURES"), os.Getenv("UI_REPOSITORY")
	if dir == "" || repo == "" {
		t.Skip("UI_PICTURES and UI_REPOSITORY are not set")
	}
	tab := chrome.Start(t).Tab(t)
	w := newWorld(t)
	name := strings.ReplaceAll(filepath.Base(filepath.Dir(repo)), "+", "-")
	if err := os.Symlink(repo, filepath.Join(w.repos, name)); err != nil {
		t.Fatal(err)
	}
	at := cmp.Or(os.Getenv("UI_MOUNT"), w.place("m"))
	w.ok("mount", w.serve(gittest.ServerOptions{RTT: 50 * time.Millisecond, Bandwidth: 220 << 10, Cheap: true}).URL(name),
		at, "--prefetch", "none",
		"--history", "none")
	p := w.ui(at)
	tab.Resize(1280, 900)
	tab.Open("about:blank")
	tab.Call("Page.navigate", map[string]any{"url": p.url.String()}, nil)
	tab.Until(`document.querySelectorAll("#map g").length >= 6`)
	wantSignIn(t, tab)
	tab.Until(`!document.getElementById("f-fetched").textContent.includes("so far")`)
	grep := exec.Command("grep", "-r", "no such text", ".")
	grep.Dir = at
	if err := grep.Start(); err != nil {
		t.Fatal(err)
	}
	defer grep.Wait()
	defer grep.Process.Kill()
	for i, width := range []int{360, 1280, 2560} {
		tab.Resize(width, 900)
		tab.Eval(`live.dataset.views = 0; undefined`, nil)
		tab.Until(fmt.Sprintf(`Number(live.dataset.views) > 3 && parseInt(document.getElementById("f-fetched").textContent) >= %d`, 10+15*i))
		tab.Eval(`new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))`, nil)
		tab.Picture(filepath.Join(dir, fmt.Sprintf("live-%d.png", width)))
	}
	tab.Open("about:blank")
	p.end(os.Interrupt)
}
