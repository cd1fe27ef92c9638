package api_test

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/server/records"
)

// TestReviewFigures measures requests that change sessions, on a repository with 100 sessions if API_FIGURES is set,
// otherwise with 5 sessions.
func TestReviewFigures(t *testing.T) {
	sessions, runs := 5, 2
	if os.Getenv("API_FIGURES") != "" {
		sessions, runs = 100, 15
	}
	w := newWorld(t, nil)
	gitDir := seed(t, w.vars)
	for i := range sessions {
		addSession(t, gitDir, fmt.Sprintf("s%03d", i), false, w.vars)
	}
	w.run(t, []exchange{createBase})
	w.fill(t, "team", "base", gitDir)
	r, err := w.db.Repos.Get(t.Context(), "team", "base")
	if err != nil {
		t.Fatal(err)
	}
	for _, actor := range []string{"ann", "bob"} {
		w.vars[actor] = w.token(t, records.Token{Role: records.RepoToken, Namespace: "team", RepoID: r.ID, Actor: actor,
			Expires: time.Now().Add(time.Hour)})
	}
	took := map[string][]time.Duration{}
	do := func(what, token, method, path, body string, status int) string {
		t.Helper()
		begin := time.Now()
		got := w.do(t, w.vars[token], method, inBase[1:]+path, body)
		took[what] = append(took[what], time.Since(begin))
		if got.status != status {
			t.Fatalf("%s: got %d %s", what, got.status, got.body)
		}
		return got.body
	}
	for i := range runs {
		one := fmt.Sprintf("/sessions/s%03d", i)
		do("list 50 sessions", "ann", http.MethodGet, "/sessions", "", http.StatusOK)
		do("annotate the session", "ann", http.MethodPost, one+"/annotations", `{"text":"x"}`, http.StatusCreated)
		do("annotate a line", "ann", http.MethodPost, one+"/annotations", `{"text":"x","path":"README.md","line":1}`,
			http.StatusCreated)
		do("list annotations", "ann", http.MethodGet, one+"/annotations", "", http.StatusOK)
		id := valueOf(t, do("request", "ann", http.MethodPost, one+"/approvals", `{}`, http.StatusCreated), "result.id")
		do("grant", "bob", http.MethodPost, one+"/approvals/"+id+"/grant", `{}`, http.StatusOK)
		do("merge into a new branch", "ann", http.MethodPost, one+"/merge", fmt.Sprintf(`{"branch":"b%d"}`, i), http.StatusOK)
		do("store a cache entry of 1 KiB", "ann", http.MethodPut, fmt.Sprintf("/cache/value?key=k%d", i),
			strings.Repeat("x", 1024), http.StatusOK)
	}
	load, _ := os.ReadFile("/proc/loadavg")
	for _, what := range slices.Sorted(maps.Keys(took)) {
		all := took[what]
		slices.Sort(all)
		t.Logf("%-30s median %4d ms, from %d to %d ms, load %.4s", what, all[len(all)/2].Milliseconds(),
			all[0].Milliseconds(),
			all[len(all)-1].Milliseconds(), load)
	}
}
