package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// step is a git command that is measured, with a preparation that is not measured.
type step struct {
	name    string
	prepare func(dir string) error
	args    []string
}

// statusSteps returns the measured calls of git status, one for each situation of a typical working day.
func (g *gitBench) statusSteps() []step {
	git := func(args ...string) func(string) error {
		return func(dir string) error { return g.must(dir, args...) }
	}
	nothing := func(string) error { return nil }
	status := []string{"status", "--porcelain=v2", "--branch"}
	return []step{
		{"first", nothing, status},
		{"second", nothing, status},
		{"after 10 edits", func(dir string) error { return g.edit(dir, 10) }, status},
		{"  again", nothing, status},
		{"after a commit", git("commit", "-qam", "edited"), status},
		{"  again", nothing, status},
		{"after a checkout of 1,000 changed files", func(dir string) error {
			return errors.Join(g.must(dir, "fetch", "-q", "origin", "+other:refs/remotes/origin/other"),
				g.must(dir, "checkout", "-q", "other"))
		}, status},
		{"  again", nothing, status},
	}
}

// status measures git status in new mounts, one mount for each round, and in a plain clone. In the clone, each step is
// measured once, except for the step "second", which is measured as often as there are rounds.
func (g *gitBench) status() error {
	clone := g.path("clone")
	if err := g.must("", "clone", "-q", g.repo, clone); err != nil {
		return err
	}
	defer os.RemoveAll(clone)
	steps := g.statusSteps()
	theirs := make([]time.Duration, len(steps))
	for i, s := range steps {
		if err := s.prepare(clone); err != nil {
			return err
		}
		for range g.o.rounds {
			c, err := g.run(clone, nil, s.args...)
			if err != nil {
				return err
			}
			if theirs[i] == 0 || c.took < theirs[i] {
				theirs[i] = c.took
			}
			if s.name != "second" { // the other steps can run only once in the same clone
				break
			}
		}
	}
	ours := make([][]cost, len(steps))
	var mounts []time.Duration
	for range g.o.rounds {
		took, err := g.statusRound(steps, ours)
		if err != nil {
			return err
		}
		mounts = append(mounts, took)
	}
	second := theirs[1]
	fmt.Fprintf(g.table, "git status\tmount, median\tmin-max\tclone\tclone's second is\tnetwork\tkernel requests\n")
	for i, s := range steps {
		slices.SortFunc(ours[i], func(a, b cost) int { return int(a.took - b.took) })
		n := len(ours[i])
		median := ours[i][n/2]
		fmt.Fprintf(g.table, "%s\t%s\t%s-%s\t%s\t%.1fx\t%s\t%s\n", s.name, seconds(median.took), seconds(ours[i][0].took),
			seconds(ours[i][n-1].took),
			seconds(theirs[i]), float64(second)/float64(median.took), median.network(), median.kernel)
	}
	slices.Sort(mounts)
	fmt.Fprintf(g.table, "(mount --wait git --history none)\t%s\n", seconds(mounts[len(mounts)/2]))
	return nil
}

// statusRound measures all steps in one new mount and appends their costs to costs. took is the duration of the mount
// command.
func (g *gitBench) statusRound(steps []step, costs [][]cost) (took time.Duration, err error) {
	m, err := g.fresh("none")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, m.removeAll()) }()
	t := newTrace(m.dir)
	defer t.close()
	for i, s := range steps {
		if err := s.prepare(m.dir); err != nil {
			return 0, fmt.Errorf("prepare %s: %w", strings.TrimSpace(s.name), err)
		}
		c, err := g.run(m.dir, t, s.args...)
		if err != nil {
			return 0, err
		}
		costs[i] = append(costs[i], c)
	}
	return m.took, nil
}
