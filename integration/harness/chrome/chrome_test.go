package chrome

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTab(t *testing.T) {
	b := Start(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		who := "nobody"
		if c, err := r.Cookie("who"); err == nil {
			who = c.Value
		}
		fmt.Fprintf(w,
			`<title>%s %s</title><a id=a href=/next>next</a><input id=i><script>console.log("hello from", location.pathname)</script>`, r.URL.Path, who)
	}))
	defer server.Close()
	tab, other := b.Tab(t), b.Tab(t)
	tab.Cookie(server.URL, "who", "ann")
	tab.Resize(360, 700)
	tab.Scheme("dark")
	tab.Open(server.URL + "/first")
	other.Open(server.URL + "/first")
	if got := tab.Text("document.title"); got != "/first ann" {
		t.Errorf("title of a page: got %q", got)
	}
	if got := other.Text("document.title"); got != "/first nobody" {
		t.Errorf("title of a page in another tab: got %q, want no cookie", got)
	}
	var width int
	tab.Eval("Promise.resolve(innerWidth)", &width)
	if dark := tab.Text(`String(matchMedia("(prefers-color-scheme: dark)").matches)`); width != 360 || dark != "true" {
		t.Errorf("window: got width %d, dark: %s", width, dark)
	}
	tab.Press("Tab")
	tab.Until(`document.activeElement.id === "a"`)
	tab.Loads(func() { tab.Press("Enter") })
	if got := tab.Text("location.pathname"); got != "/next" {
		t.Errorf("page after Enter on a link: got %q", got)
	}
	tab.Eval(`document.getElementById("i").focus()`, nil)
	tab.Press("x")
	tab.Until(`document.getElementById("i").value === "x"`)
	tab.Loads(func() { tab.Click("#a") })
	picture := filepath.Join(t.TempDir(), "p.png")
	tab.Picture(picture)
	if data, err := os.ReadFile(picture); err != nil || !bytes.HasPrefix(data, []byte("\x89PNG")) {
		t.Errorf("picture: got %.10q, %v", data, err)
	}
	if lines := tab.Console(); len(lines) != 3 || !strings.Contains(lines[0], "hello from") ||
		!strings.Contains(lines[0], "/first") {
		t.Errorf("console: got %q, want a line of each page", lines)
	}
	other.Console()
}
