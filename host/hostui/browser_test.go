package hostui

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch/fetchmap"
	"github.com/artifactfs/artifactfs/integration/harness/chrome"
	"github.com/artifactfs/artifactfs/integration/harness/install"
)

// openLive opens the live page of a mount whose daemon sends a map every 20 ms, until the test ends.
func openLive(t *testing.T, tab *chrome.Tab) string {
	t.Helper()
	d := &fakeDaemon{maps: make(chan control.Trace)}
	p, s := newPage(t, d)
	ended := make(chan struct{})
	t.Cleanup(func() {
		tab.Open("about:blank")
		close(ended)
		p.Close()
	})
	go func() {
		for n := int64(0); ; n++ {
			m := tree("", 6, 3)
			m.Dirs[0].Dirs[0].Dirs[0].Fetched, m.Dirs[0].Dirs[0].Dirs[0].Fetching = n%2, (n+1)%2
			select {
			case d.maps <- control.Trace{Map: &fetchmap.Map{Known: true, Seconds: 1, Requests: 1000 + n, Tree: m}}:
			case <-ended:
				return
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ended:
				return
			}
		}
	}()
	tab.Cookie(s.URL, "artifactfs-ui-7", p.Token())
	tab.Open(s.URL + LivePath("/m"))
	tab.Until(`Number(live.dataset.views) > 1 && document.querySelectorAll("#map g").length > 6`)
	return s.URL
}

// TestLivePageChangesInPlace checks that elements of the live page are kept while their values change, that the page
// receives updates only while it is visible, and that it shows a problem.
func TestLivePageChangesInPlace(t *testing.T) {
	tab := chrome.Start(t).Tab(t)
	tab.Resize(1280, 900)
	openLive(t, tab)
	tab.Eval(`window.added = 0; new MutationObserver((list) => { for (const m of list) added += [...m.addedNodes, ...m.removedNodes].filter((n) => n.nodeType === Node.ELEMENT_NODE).length; })
		.observe(map, { childList: true, subtree: true }); document.querySelector("#rows a").focus(); live.dataset.views = 0; undefined`, nil)
	tab.Until(`Number(live.dataset.views) > 20`)
	var added int
	tab.Eval("added", &added)
	if kept := tab.Text(`String(document.activeElement === document.querySelector("#rows a"))`); added > 0 ||
		kept != "true" {
		t.Errorf("20 updates have replaced %d elements of the map; the focus was kept: %s", added, kept)
	}
	before := tab.Text(`document.getElementById("map").getAttribute("viewBox")`)
	tab.Resize(700, 900)
	tab.Until(`document.getElementById("map").getAttribute("viewBox") !== "` + before + `"`)
}

// TestAccessible checks with axe-core that the live page and the first page have no violations in light and dark
// colors, and that no page is wider than its window.
func TestAccessible(t *testing.T) {
	axe, err := os.ReadFile(filepath.Join(install.NPM(t, "../../server/ui/testdata/axe"),
		"node_modules/axe-core/axe.min.js"))
	if err != nil {
		t.Fatal(err)
	}
	tab := chrome.Start(t).Tab(t)
	tab.Resize(1280, 900)
	url := openLive(t, tab)
	for _, page := range []string{LivePath("/m"), "/"} {
		if page == "/" {
			tab.Open(url + page)
		}
		tab.Eval(string(axe)+"\n;undefined", nil)
		for _, scheme := range []string{"light", "dark"} {
			tab.Scheme(scheme)
			var found []struct {
				ID, Help string
				Nodes    []struct{ HTML, FailureSummary string }
			}
			tab.Eval(`axe.run(document, { resultTypes: ["violations"] }).then((r) => r.violations)`, &found)
			for _, v := range found {
				for _, n := range v.Nodes[:min(3, len(v.Nodes))] {
					t.Errorf("%s, %s: %s: %s: %.300s: %s", page, scheme, v.ID, v.Help, n.HTML, n.FailureSummary)
				}
			}
		}
		for _, width := range []int{360, 1280, 2560, 3840} {
			tab.Resize(width, 900)
			if wide := tab.Text("String(document.scrollingElement.scrollWidth)"); wide != fmt.Sprint(width) {
				t.Errorf("%s: page in a window of %d pixels is %s pixels wide; too wide are %s", page, width, wide,
					tab.Text(`[...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > innerWidth + 1).slice(0, 5).map((e) => e.outerHTML.slice(0, 200)).join("\n")`))
			}
		}
		if dir := os.Getenv("UI_PICTURES"); dir != "" {
			tab.Picture(filepath.Join(dir, "wide"+filepath.Base(page)[:1]+".png"))
		}
	}
}
