package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/integration/harness/workday"
)

// commitsEach is the number of commits that are measured for each kind of session remote.
const commitsEach = 20

// sessionMain is the name that the branch main of the session "work" has on a session remote that also contains other
// branches.
const sessionMain = "afs/work/main"

// carryPlace is a session remote: its kind, the argument that names it, and the path of its repository on disk.
type carryPlace struct {
	kind, arg, path string
	end             func() error
}

// commits measures, for each kind of session remote, how long it takes until a commit is on the session remote. It then
// checks the session remote with stock git.
func (r *rig) commits(o carryOptions) error {
	for _, kind := range []func() (carryPlace, error){
		func() (carryPlace, error) { return carryPlace{kind: "embedded"}, nil },
		func() (carryPlace, error) {
			c, s, url, err := r.receiver(true, 0)
			if err != nil {
				return carryPlace{}, err
			}
			return carryPlace{"http", url, c.Path, s.Close}, nil
		},
		func() (carryPlace, error) {
			c, s, _, err := r.receiver(true, 0)
			if err != nil {
				return carryPlace{}, err
			}
			return carryPlace{"path", c.Path, c.Path, s.Close}, nil
		},
		r.overSSH,
		func() (carryPlace, error) { return r.forge(o.forge) },
	} {
		p, err := kind()
		if err != nil {
			return err
		}
		if p.kind == "" { // the user has not selected this kind of session remote
			continue
		}
		err = r.commitsTo(p)
		if p.end != nil {
			p.end()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", p.kind, err)
		}
	}
	return nil
}

func (r *rig) overSSH() (carryPlace, error) {
	c, s, _, err := r.receiver(true, 0)
	if err != nil {
		return carryPlace{}, err
	}
	s.Close()
	ssh, command, err := gittest.ServeSSH(gittest.ServerOptions{Root: filepath.Dir(c.Path), Cheap: true})
	if err != nil {
		return carryPlace{}, err
	}
	r.env = append(r.env, "GIT_SSH_COMMAND="+command)
	return carryPlace{"ssh", ssh.URL("s.git"), c.Path, ssh.Close}, nil
}

func (r *rig) commitsTo(p carryPlace) error {
	state := r.path("state-" + p.kind)
	flags := []string{"--session", "work", "--wait", "git", "--prefetch", "none"}
	if p.arg != "" {
		flags = append(flags, "--session-remote", p.arg)
	}
	m, _, err := r.mount(state, flags...)
	if err != nil {
		return err
	}
	branch := sessionMain
	if p.path == "" {
		branch = "main" // the embedded session remote belongs to the session
		p.path = filepath.Join(state, "mounts", m.ID, "session.git")
		p.arg = p.path
	}
	var times []time.Duration
	var ids []string
	for i := range commitsEach {
		id, err := r.sh(m.Dir,
			fmt.Sprintf("echo %d >>new%d; sed -i 's/some/any/' %s; git add -A; git commit -qm %d; git rev-parse HEAD", i, i%5,
				filePath(i*7), i))
		if err != nil {
			return err
		}
		took, err := await(p.path, "refs/heads/"+branch, id, time.Minute)
		if err != nil {
			st, _ := r.status(state, m.Dir)
			return fmt.Errorf("%w; status %+v", err, st.Session)
		}
		times, ids = append(times, took), append(ids, id)
	}
	slices.Sort(times)
	longest := times[len(times)-1]
	r.row("commit", p.kind, fmt.Sprintf("median %s, longest of %d %s", seconds(percentile(times, 50)), len(times),
		seconds(longest)), "1 s", longest < time.Second)
	if _, err := r.afs(state, nil, "checkpoint", m.Dir, "--sync"); err != nil {
		return err
	}
	clone := r.path("clone")
	fetch := "git clone -q " + p.arg + " " + clone
	if p.kind == "embedded" { // the embedded session remote lacks the contents of the base
		fetch = "git clone -q " + r.repo + " " + clone + " && git -C " + clone + " fetch -q " + p.arg +
			" '+refs/heads/*:refs/remotes/origin/*'"
	}
	if _, err := r.sh(r.dir, fetch); err != nil {
		return err
	}
	for _, dir := range []string{p.path, clone} {
		if err := r.checkRepo(dir); err != nil {
			return err
		}
	}
	got, err := r.sh(clone, "git rev-parse origin/"+branch+" && git rev-list --count origin/"+branch+" ^"+ids[0])
	if err != nil {
		return err
	}
	if want := fmt.Sprintf("%s\n%d", ids[len(ids)-1], commitsEach-1); got != want {
		r.wrong("%s: a clone has %q, want %q", p.kind, got, want)
	}
	if p.kind != "embedded" { // the embedded session remote gets no pushes
		if err := r.stockPushes(p, clone); err != nil {
			return err
		}
	}
	return r.end(state)
}

// stockPushes measures how long a push of a commit by stock git takes.
func (r *rig) stockPushes(p carryPlace, clone string) error {
	if _, err := r.sh(clone, "git checkout -q -b stock"); err != nil {
		return err
	}
	var times []time.Duration
	for range 10 {
		if _, err := r.sh(clone, "echo more >>stock; git add stock; git commit -qm stock"); err != nil {
			return err
		}
		start := time.Now()
		if _, err := r.sh(clone, "git push -q origin stock"); err != nil {
			return err
		}
		times = append(times, time.Since(start))
	}
	slices.Sort(times)
	r.row("commit", p.kind+", git push in a clone",
		fmt.Sprintf("median %s, longest of %d %s", seconds(percentile(times, 50)), len(times), seconds(times[len(times)-1])),
		"", true)
	return nil
}

// kills runs a workday.Journey, which simulates a working day and kills all processes at random moments.
func (r *rig) kills(o carryOptions) error {
	for _, k := range []struct {
		kind  string
		kills int
	}{{"http", o.kills}, {"embedded", o.kills}, {"path", o.kills / 4}} {
		if k.kills == 0 || !slices.Contains(strings.Split(o.kinds, ","), k.kind) {
			continue
		}
		j := workday.Journey{Binary: filepath.Join(r.bin, "artifactfs"), Base: r.path("j"), Remote: r.url, Session: "work",
			Seed: o.seed, Longest: 10 * time.Second, Interval: 20 * time.Second,
			Log: func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }}
		if err := os.Mkdir(j.Base, 0o755); err != nil {
			return err
		}
		j.Objects = []string{filepath.Join(r.repo, "objects")}
		var c *gittest.Receiver
		if k.kind != "embedded" {
			var s *gittest.Server
			var err error
			if c, s, j.Saved, err = r.receiver(false, 0); err != nil {
				return err
			}
			defer s.Close()
			if k.kind == "path" {
				j.Saved = c.Path
			}
			j.Objects, j.Copy = append(j.Objects, filepath.Join(c.Path, "objects")), c.Path
		}
		tally, err := j.Run(context.Background(), k.kills)
		for _, f := range tally.Faults {
			r.wrong("seed %d: %s", o.seed, f)
		}
		if err != nil {
			return err
		}
		slices.Sort(tally.Resume)
		r.row("kills", k.kind, fmt.Sprintf("%s; resumed in %s (median), %s (longest)", tally,
			seconds(percentile(tally.Resume, 50)), seconds(tally.Resume[len(tally.Resume)-1])), "10 s lost",
			tally.Lost < 12*time.Second && len(tally.Faults) == 0 && tally.Found[workday.Undecided] == 0)
		if c == nil || len(tally.Faults) > 0 {
			continue
		}
		if err := r.checkRepo(c.Path); err != nil {
			return err
		}
		reachable, err := r.sh(c.Path, "git rev-list --all")
		if err != nil {
			return err
		}
		missing := 0
		for _, id := range tally.Commits {
			if !strings.Contains(reachable, id) {
				r.wrong("commit %s is gone", id)
				missing++
			}
		}
		r.row("kills", k.kind, fmt.Sprintf("%d of %d commits on the session remote", len(tally.Commits)-missing,
			len(tally.Commits)), "all", missing == 0)
	}
	return nil
}
