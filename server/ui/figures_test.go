package ui_test

import (
	"fmt"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"
)

// TestFigures measures pages of large sessions. UI_FIGURES=1 measures a timeline of 10,000 checkpoints and a difference of 5,000 files;
// without it, a tenth of that.
func TestFigures(t *testing.T) {
	part := 10
	if os.Getenv("UI_FIGURES") != "" {
		part = 1
	}
	points, files := 10_000/part, 5000/part
	base := map[string]string{}
	for i := range files {
		base[fmt.Sprintf("src/module%02d/package%d/file_%04d.go", i%37, i%5, i)] = fmt.Sprintf("package p%d\n\nfunc f%d() int { return %d }\n", i%5, i, i)
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
	for _, page := range []struct {
		what, path string
	}{
		{"first view", "/ui/team/app"},
		{"timeline, newest page", "/ui/team/app/s/work"},
		{"timeline, oldest page", "/ui/team/app/s/work?before=" + m.ids[150] + ".0"},
		{"timeline with a cursor", "/ui/team/app/s/work?at=" + m.ids[points/2]},
		{"cursor", "/ui/team/app/s/work?part=cursor&at=" + m.ids[points/2]},
		{"difference of all files", "/ui/team/app/diff?a=main&b=work@"},
	} {
		w.get(t, read, page.path, http.StatusOK) // the first read makes the replica
		var times []time.Duration
		var packed, plain int
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 5 {
			begin := time.Now()
			got := w.request(t, read, "GET", page.path, "", "Accept-Encoding", "gzip")
			times = append(times, time.Since(begin))
			packed = len(got.body)
		}
		runtime.ReadMemStats(&after)
		plain = len(w.get(t, read, page.path, http.StatusOK))
		slices.Sort(times)
		t.Logf("%-28s %7d bytes, %8d plain, %v, %d KiB allocated", page.what, packed, plain, times[2].Round(time.Millisecond/10),
			(after.TotalAlloc-before.TotalAlloc)/5>>10)
		if packed > 100_000 {
			t.Errorf("%s has %d bytes, want less than 100 KB", page.what, packed)
		}
	}
}
