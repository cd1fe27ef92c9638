package integration

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/internal/harness/crowd"
)

// Sessions that work at the same time on one session remote are not in each other's way, and not in the people's.
// `make bench BENCH="-session -only crowd"` does it with 20 of them for 5 minutes.
func TestSessionsShareASessionRemote(t *testing.T) {
	t.Parallel()
	w, r, url := newOrigin(t)
	report, err := crowd.Run(t.Context(), crowd.Options{
		Program: binary, Dir: filepath.Join(w.root, "crowd"), URL: url, Repo: r.Path, Env: w.env, Sessions: 4, Killed: 1, For: 4 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(report.Summary())
	if err := report.Err(); err != nil {
		t.Errorf("work of the crowd: %v", err)
	}
	if report.Kills != 1 || report.Commits < 4 || report.Notes < 4 {
		t.Errorf("they did too little to show anything: %s", report.Summary())
	}
}
