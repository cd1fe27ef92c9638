package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"

	"github.com/artifactfs/artifactfs/integration/harness/crowd"
)

// crowd runs many sessions at the same time that make commits and notes on main. The mounted remote is also the session
// remote of all sessions.
func (r *rig) crowd(o carryOptions) error {
	if out, err := exec.Command("git", "-C", r.repo, "config", "http.receivepack", "true").CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	report, err := crowd.Run(context.Background(), crowd.Options{
		Program: filepath.Join(r.bin, "artifactfs"), Dir: r.dir, URL: r.url, Repo: r.repo, Sessions: o.crowd,
		Killed: o.crowd / 4, For: o.crowdFor,
	})
	if err != nil {
		return err
	}
	wrong := report.Err()
	r.row("crowd", fmt.Sprintf("%d sessions, %s", o.crowd, o.crowdFor), report.Summary(),
		"nothing lost, nothing diverged", wrong == nil)
	return wrong
}
