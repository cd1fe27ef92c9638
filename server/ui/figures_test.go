package ui_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// TestFigures measures pages of large sessions. With UI_FIGURES=1, these are a timeline of 10,000 checkpoints and a
// difference of 5,000 files, otherwise a tenth of that.
func TestFigures(t *testing.T) {
	part := 10
	if os.Getenv("UI_FIGURES") != "" {
		part = 1
	}
	points, files := 10_000/part, 5000/part
	base := map[string]string{}
	for i := range files {
		base[fmt.Sprintf("src/module%02d/package%d/file_%04d.go", i%37, i%5, i)] =
			fmt.Sprintf("package p%d\n\nfunc f%d() int { return %d }\n", i%5, i, i)
	}
	m := newSession(t, "work", base)
	for i := range points {
		m.checkpoint(10+i*10, "idle", "", map[string]string{"progress.txt": strconv.Itoa(i)})
		if i%10 == 0 {
			m.records(m.ids[i], 12+i*10, `{"type":"prompt","text":"Continue with the next part, please."}`,
				`{"type":"tool_call","tool":"Edit","input":{"file_path":"/work/progress.txt","old_string":"1","new_string":"2"}}`)
		}
	}
	changed := map[string]string{}
	for name, text := range base {
		changed[name] = text + "\nvar changed = true\n"
	}
	m.checkpoint(20+points*10, "command", "", changed)
	w := newWorld(t, nil)
	read := w.reader(t, w.repo(t, "team", "app", m.done()))
	w.measure(t, read, []figure{
		{"first view", "/ui/team/app"},
		{"timeline, newest page", "/ui/team/app/s/work"},
		{"timeline, oldest page", "/ui/team/app/s/work?before=" + m.ids[150] + ".0"},
		{"timeline with a cursor", "/ui/team/app/s/work?at=" + m.ids[points/2]},
		{"cursor", "/ui/team/app/s/work?part=cursor&at=" + m.ids[points/2]},
		{"difference of all files", "/ui/team/app/diff?a=main&b=work@"},
	})
}

// figure is a page that is measured, with its description.
type figure struct{ what, path string }

// measure logs the times and sizes of pages, and fails the test if a page is larger than 100 KB.
func (w *world) measure(t *testing.T, token string, pages []figure) {
	t.Helper()
	for _, page := range pages {
		w.get(t, token, page.path, http.StatusOK) // the first request creates the replica
		var times []time.Duration
		var packed, plain int
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 5 {
			begin := time.Now()
			got := w.request(t, token, "GET", page.path, "", "Accept-Encoding", "gzip")
			times = append(times, time.Since(begin))
			packed = len(got.body)
		}
		runtime.ReadMemStats(&after)
		plain = len(w.get(t, token, page.path, http.StatusOK))
		slices.Sort(times)
		t.Logf("%-28s %7d bytes, %8d plain, %v, %d KiB allocated", page.what, packed, plain,
			times[2].Round(time.Millisecond/10),
			(after.TotalAlloc-before.TotalAlloc)/5>>10)
		if packed > 100_000 {
			t.Errorf("%s has %d bytes, want less than 100 KB", page.what, packed)
		}
	}
}

// TestFiguresOfComparison measures the comparison of six sessions with the same base commit, which has 100,000 files
// with UI_FIGURES=1, otherwise 4,000. UI_BASE=DIR.git uses HEAD of a repository as the base commit. Each session
// changes 500 files that no other one changes, 100 files in the same lines as all others, 100 files in other lines than
// one other session, and renames a directory of 100 files.
func TestFiguresOfComparison(t *testing.T) {
	files := 4000
	if os.Getenv("UI_FIGURES") != "" {
		files = 100_000
	}
	var first *sessionMaker
	if base := os.Getenv("UI_BASE"); base != "" {
		dir := filepath.Join(t.TempDir(), "base.git")
		gittest.Must(t, "", "clone", "-q", "--bare", "--shared", "--single-branch", base, dir)
		gittest.Must(t, dir, "branch", "-M", "main")
		first = sessionIn(t, "try-0", dir)
	} else {
		list := map[string]string{}
		for i := range files {
			list[fmt.Sprintf("src/area%02d/module%d/file_%05d.go", i%97, i%7, i)] =
				fmt.Sprintf("package m%d\n\nfunc f%d() int { return %d }\n\n// end\n", i%7, i, i)
		}
		first = newSession(t, "try-0", list)
	}
	var paths []string
	for path := range strings.SplitSeq(gittest.Must(t, first.dir, "ls-tree", "-r", "--name-only", "main"), "\n") {
		if slices.Contains([]string{".go", ".c", ".ts", ".rs", ".py", ".js"}, filepath.Ext(path)) &&
			!strings.Contains(path, `"`) {
			paths = append(paths, path)
		}
	}
	t.Logf("base: %s files", gittest.Must(t, first.dir, "-c", "alias.count=!git ls-tree -r main | wc -l", "count"))
	step := len(paths) / 4000
	at := func(i int) string { return paths[i*step] }
	content := map[string]string{}
	for i := range 200 {
		content[at(i)] = gittest.Must(t, first.dir, "show", "main:"+at(i)) + "\n"
	}
	link := "/ui/team/app/compare?"
	for n := range 6 {
		m, name := first, fmt.Sprint("try-", n)
		if n > 0 {
			m = first.fork(name, "")
		}
		changed := map[string]string{}
		for i := range 100 {
			changed[at(i)] = fmt.Sprint("// attempt ", n, "\n", content[at(i)])
			clean := at(100 + i)
			switch n {
			case i % 6:
				changed[clean] = "// top\n" + content[clean]
			case (i + 1) % 6:
				changed[clean] = content[clean] + "// end\n"
			}
			from := paths[(3000+n*100)*step+i]
			changed[from] = ""
			changed[fmt.Sprint("moved-", n, "/", from)] = gittest.Must(t, first.dir, "show", "main:"+from) + "\n"
		}
		for i := range 500 {
			changed[at(200+n*500+i)] = fmt.Sprint("attempt ", n, "\n")
		}
		m.checkpoint(20, "command", "attempt "+name, changed)
		m.done()
		link += "p=" + name + "@&"
	}
	w := newWorld(t, nil)
	read := w.reader(t, w.repo(t, "team", "app", first.dir))
	w.get(t, read, "/ui/team/app", http.StatusOK) // this request creates the replica
	begin := time.Now()
	wants(t, w.get(t, read, link, http.StatusOK), "in conflict")
	t.Logf("comparison of six, with 15 merges: %v", time.Since(begin).Round(time.Millisecond))
	w.measure(t, read, []figure{{"comparison of six", link}, {"its conflicts", link + "show=conflict"},
		{"its last page", link + "from=4000"},
		{"overview", "/ui/team/app"}, {"difference of two", "/ui/team/app/diff?a=try-0@&b=try-1@"}})
}
