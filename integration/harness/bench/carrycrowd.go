package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"

	"github.com/artifactfs/artifactfs/integration/harness/crowd"
)

// crowd lets many sessions make commits and notes on main at the same time. Their session remote is the mounted remote.
func (r *rig) crowd(o carryOptions) error {
	if out, err := exec.Command("git", "-C", r.repo, "config", "http.receivepack", "true").CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	report, err := crowd.Run(context.Background(), crowd.Options{
		Program: filepath.Join(r.bin, "artifactfs"), Dir: r.dir, URL: r.url, Repo: r.repo, Sessions: o.crowd, Killed: o.crowd / 4, For: o.crowdFor,
	})
	if err != nil {
		return err
	}
	wrong := report.Err()
	r.row("crowd", fmt.Sprintf("%d sessions, %s", o.crowd, o.crowdFor), report.Summary(), "all there, nothing diverged", wrong == nil)
	return wrong
}
