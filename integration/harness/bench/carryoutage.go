package main

import (
	"fmt"
	"strings"
	"time"
)

// outage measures commits and checkpoints while the session remote is unreachable, and checks that they are pushed
// later.
func (r *rig) outage(o carryOptions) error {
	c, server, url, err := r.receiver(true, 0)
	if err != nil {
		return err
	}
	defer server.Close()
	m, _, err := r.mount(r.state, "--session", "work", "--session-remote", url, "--wait", "git", "--prefetch", "none")
	if err != nil {
		return err
	}
	var commits, checkpoints []string
	work := func(n int) error {
		id, err := r.sh(m.Dir,
			fmt.Sprintf("echo %d >>work; git add -A; git commit -qm %d; echo %d >>more; git rev-parse HEAD", n, n, n))
		if err != nil {
			return err
		}
		var p madeCheckpoint
		if _, err := r.afs(r.state, &p, "checkpoint", m.Dir); err != nil {
			return err
		}
		commits, checkpoints = append(commits, id), append(checkpoints, p.Commit)
		return nil
	}
	if err := work(0); err != nil {
		return err
	}
	if _, err := r.afs(r.state, nil, "sync", m.Dir, "--timeout", "60s"); err != nil {
		return err
	}
	server.Down()
	every := max(o.outage/200, 200*time.Millisecond)
	var slowest time.Duration
	for end := time.Now().Add(o.outage); time.Now().Before(end); {
		start := time.Now()
		if err := work(len(commits)); err != nil {
			return err
		}
		slowest = max(slowest, time.Since(start))
		time.Sleep(max(0, every-time.Since(start)))
	}
	st, err := r.status(r.state, m.Dir)
	if err != nil {
		return err
	}
	r.row("outage", o.outage.String(),
		fmt.Sprintf("%d commits, %d checkpoints, slowest of both %s; status: %d pending, %q", len(commits)-1,
			len(checkpoints)-1, seconds(slowest), st.Session.Pending, st.Session.Error), "",
		st.Session.Pending > 0 && st.Session.Error != "")
	sync := r.command(r.state, "sync", m.Dir, "--timeout", "500ms")
	sync.Run()
	unsynced := sync.ProcessState.ExitCode()
	back := time.Now()
	if err := server.Up(); err != nil {
		return err
	}
	if _, err := await(c.Path, "refs/heads/"+sessionMain, commits[len(commits)-1], 5*time.Minute); err != nil {
		return err
	}
	byItself := time.Since(back)
	if _, err := r.afs(r.state, nil, "sync", m.Dir, "--timeout", "5m"); err != nil {
		return err
	}
	r.row("outage", "end of the outage",
		fmt.Sprintf("all pushed without a command after %s; exit code of sync during the outage: %d", seconds(byItself),
			unsynced), "5", unsynced == 5)
	order := checkOrder(c, "refs/heads/"+sessionMain, commits)
	reachable, err := r.sh(c.Path, "git rev-list --all")
	if err != nil {
		return err
	}
	missing := 0
	for _, id := range append(append([]string(nil), commits...), checkpoints...) {
		if !strings.Contains(reachable, id) {
			missing++
		}
	}
	r.row("outage", "on the session remote", fmt.Sprintf("%d of %d commits and checkpoints; in order, each once: %v",
		len(commits)+len(checkpoints)-missing, len(commits)+len(checkpoints), order == nil), "all",
		missing == 0 && order == nil)
	if order != nil {
		r.wrong("%v", order)
	}
	return r.checkRepo(c.Path)
}
