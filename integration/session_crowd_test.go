package integration

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/crowd"
)

// Sessions that push to one session remote at the same time do not disturb each other or users who push with git.
// `make bench BENCH="-session -only crowd"` does it with 20 of them for 5 minutes.
func TestSessionsShareASessionRemote(t *testing.T) {
	t.Parallel()
	w, r, url := newOrigin(t)
	report, err := crowd.Run(t.Context(), crowd.Options{
		Program: binary, Dir: filepath.Join(w.root, "crowd"), URL: url, Repo: r.Path, Env: w.env, Sessions: 4, Killed: 1,
		For: 4 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(report.Summary())
	if err := report.Err(); err != nil {
		t.Errorf("sessions of the crowd: %v", err)
	}
	if report.Kills != 1 || report.Commits < 4 || report.Notes < 4 {
		t.Errorf("the sessions did too little to test anything: %s", report.Summary())
	}
}
