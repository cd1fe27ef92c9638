package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// commandSteps returns the measured git commands that read contents. Each command runs in a new mount or clone with
// main checked out.
func (g *gitBench) commandSteps() ([]step, error) {
	blamed, versions := g.o.blame, ""
	if blamed == "" {
		var n int
		var err error
		if blamed, n, err = g.muchChanged(); err != nil {
			return nil, err
		}
		versions = fmt.Sprintf(" (%d versions)", n)
	}
	edits := func(dir string) error { return g.edit(dir, 10) }
	nothing := func(string) error { return nil }
	return []step{
		{"diff, 10 edits", edits, []string{"diff"}},
		{"diff other", nothing, []string{"diff", "origin/other"}},
		{"show HEAD", nothing, []string{"show"}},
		{"log -p -20", nothing, []string{"log", "-p", "-20"}},
		{"log -p -5 -- " + blamed, nothing, []string{"log", "-p", "-5", "--", blamed}},
		{"blame " + blamed + versions, nothing, []string{"blame", blamed}},
		{"checkout other", nothing, []string{"checkout", "-q", "other"}},
		{"stash, 10 edits", edits, []string{"stash", "-q"}},
		{"stash pop", func(dir string) error { return errors.Join(edits(dir), g.must(dir, "stash", "-q")) },
			[]string{"stash", "pop", "-q"}},
		{"commit -a, 10 edits", edits, []string{"commit", "-qam", "edited"}},
		{"merge topic", nothing, []string{"merge", "-q", "--no-edit", "origin/topic"}},
		{"cherry-pick, of topic", nothing, []string{"cherry-pick", "origin/topic"}},
		{"reset --hard other", nothing, []string{"reset", "-q", "--hard", "origin/other"}},
		{"grep in the tree", nothing, []string{"grep", "-c", "unlikely-to-be-found"}},
		{"grep in other", nothing, []string{"grep", "-c", "unlikely-to-be-found", "origin/other"}},
	}, nil
}

// muchChanged returns a file with many versions: among the files with at least 500 versions, the file with the fewest.
// If there is no such file, it returns the file with the most versions.
func (g *gitBench) muchChanged() (path string, versions int, err error) {
	out, err := gittest.Git(context.Background(), g.repo, "log", "--no-merges", "--no-renames", "--format=",
		"--name-only", "main")
	if err != nil {
		return "", 0, err
	}
	n := map[string]int{}
	for line := range strings.Lines(out) {
		n[strings.TrimSuffix(line, "\n")]++
	}
	const enough = 500
	for _, f := range g.files {
		if better := n[f] > versions && versions < enough || n[f] >= enough && n[f] < versions; better {
			path, versions = f, n[f]
		}
	}
	return path, versions, nil
}

// commands measures git commands in new mounts, and in blobless clones into which all objects that the command needs
// were fetched in one request. The goal for the mount is one and a half times the time in the clone, plus the time of
// that fetch.
func (g *gitBench) commands() error {
	g.template = g.path("blobless")
	if err := g.must("", "clone", "-q", "--filter=blob:none", g.url, g.template); err != nil {
		return err
	}
	defer os.RemoveAll(g.template)
	steps, err := g.commandSteps()
	if err != nil {
		return err
	}
	fmt.Fprintf(g.table,
		"git\tmount\tagain\tblobless clone, prefetched\tthe fetch\tof what it may take\tnetwork of the mount\tkernel requests\n")
	for _, s := range steps {
		if err := g.command(s); err != nil {
			fmt.Fprintf(g.table, "%s\t%v\n", s.name, err)
		}
		g.table.Flush()
	}
	return nil
}

// command measures one git command in a mount and in a clone, and prints its row of the table.
func (g *gitBench) command(s step) error {
	ours, again, err := g.inMount(s)
	if err != nil {
		return err
	}
	theirs, fetch, err := g.inClone(s, ours.wants)
	if err != nil {
		return err
	}
	allowed := theirs.took + theirs.took/2 + fetch.took
	fmt.Fprintf(g.table, "%s\t%s\t%s\t%s\t%s\t%.2f\t%s\t%s\n", s.name, seconds(ours.took), seconds(again.took),
		seconds(theirs.took), seconds(fetch.took),
		float64(ours.took)/float64(allowed), ours.network(), ours.kernel)
	return nil
}

// inMount runs a step in a new mount, and then runs it again from the same state, when all contents are already on this
// host.
func (g *gitBench) inMount(s step) (first, again cost, err error) {
	m, err := g.fresh("full")
	if err != nil {
		return first, again, err
	}
	defer func() { err = errors.Join(err, m.removeAll()) }()
	t := newTrace(m.dir)
	defer t.close()
	if err := g.must(m.dir, "status"); err != nil {
		return first, again, err
	}
	if err := s.prepare(m.dir); err != nil {
		return first, again, err
	}
	if first, err = g.run(m.dir, t, s.args...); err != nil {
		return first, again, err
	}
	again, err = g.repeat(m.dir, s)
	return first, again, err
}

// repeat resets the working tree to the state before the step and runs the step again.
func (g *gitBench) repeat(dir string, s step) (cost, error) {
	for _, args := range [][]string{{"checkout", "-q", "-f", "-B", "main", "origin/main"}, {"stash", "clear"},
		{"clean", "-fdq"}, {"status"}} {
		if err := g.must(dir, args...); err != nil {
			return cost{}, err
		}
	}
	if err := s.prepare(dir); err != nil {
		return cost{}, err
	}
	return g.run(dir, nil, s.args...)
}

// inClone fetches the objects wants into a blobless clone and then runs a step twice. It returns the costs of the
// second run and of the fetch. The first run is not used, because git may have fetched further objects in it.
func (g *gitBench) inClone(s step, wants []object.ID) (second, fetch cost, err error) {
	dir, err := g.copied()
	if err != nil {
		return second, fetch, err
	}
	defer os.RemoveAll(dir)
	if len(wants) > 0 {
		ids := make([]string, 0, len(wants))
		for _, id := range wants {
			ids = append(ids, id.String())
		}
		slices.Sort(ids)
		g.input = strings.Join(slices.Compact(ids), "\n") + "\n"
		fetch, err = g.run(dir, nil, "-c", "fetch.negotiationAlgorithm=noop", "fetch", "-q", "origin", "--no-tags",
			"--no-write-fetch-head",
			"--recurse-submodules=no", "--filter=blob:none", "--stdin")
		g.input = ""
		if err != nil {
			return second, fetch, err
		}
	}
	if err := s.prepare(dir); err != nil {
		return second, fetch, err
	}
	if _, err := g.run(dir, nil, s.args...); err != nil {
		return second, fetch, err
	}
	second, err = g.repeat(dir, s)
	return second, fetch, err
}

// copied copies the blobless clone and returns the directory of the copy.
func (g *gitBench) copied() (string, error) {
	dir := g.path("copy")
	if out, err := exec.Command("cp", "-a", g.template, dir).CombinedOutput(); err != nil {
		return "", fmt.Errorf("copy %s: %w: %s", g.template, err, out)
	}
	return dir, g.must(dir, "status")
}
