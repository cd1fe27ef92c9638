package integration

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/object"
)

// The table of doc/compatibility.md has a row for each scenario, and for each generation of git two columns: requests
// and blobs. A run rewrites or checks the columns of the git it was made with, and leaves the others.

const (
	compatibility = "../doc/compatibility.md"
	tableBegin    = "<!-- written by integration/TestGitScenarios with AFS_UPDATE=1 -->\n"
	tableEnd      = "<!-- end -->\n"
)

// generations of git: what older ones ask a hook, the others ask a socket.
var generations = []string{"2.39", "2.55"}

// generation finds the columns of the git in use. Their figures are exact for that version only.
func generation(t testing.TB) (column int, exact bool) {
	t.Helper()
	cmd := exec.CommandContext(context.Background(), "git", "version")
	cmd.Env = []string{"PATH=" + gitPath()}
	cmd.Path = lookGit(t)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(\d+)\.(\d+)`).FindStringSubmatch(string(out))
	if found == nil {
		t.Fatalf("git version: %s", out)
	}
	major, _ := strconv.Atoi(found[1])
	minor, _ := strconv.Atoi(found[2])
	if major > 2 || minor >= 55 {
		column = 1
	}
	return column, found[0] == generations[column]
}

// lookGit is the git that scenarios run.
func lookGit(t testing.TB) string {
	t.Helper()
	if git := os.Getenv("AFS_GIT"); git != "" {
		return git
	}
	path, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// cell is a figure of the table: what was counted, or the bound where it depends on time.
func cell(counted, bound int) string {
	if bound > 0 {
		return fmt.Sprintf("≤ %d", bound)
	}
	return strconv.Itoa(counted)
}

// row is a scenario's line. Cells of other columns are taken over.
func row(s scenario, c cost, column int, old []string) string {
	cells := make([]string, 2*len(generations))
	for i := range cells {
		cells[i] = "?"
		if i < len(old) {
			cells[i] = old[i]
		}
	}
	cells[2*column], cells[2*column+1] = cell(c.requests, s.requests), cell(c.blobs, s.blobs)
	return fmt.Sprintf("| %s | %s | %s |\n", s.name, strings.Join(cells, " | "), s.why)
}

// oldCells are the figures of each row of a table, by scenario.
func oldCells(table string) map[string][]string {
	all := map[string][]string{}
	for line := range strings.Lines(table) {
		if f := strings.Split(line, " | "); len(f) == 2+2*len(generations) {
			all[strings.TrimPrefix(f[0], "| ")] = f[1 : 1+2*len(generations)]
		}
	}
	return all
}

// table writes all rows.
func table(costs [][]cost, column int, old map[string][]string) string {
	var b strings.Builder
	for i, g := range gitScenarios {
		fmt.Fprintf(&b, "\n### %s\n| scenario |", g.about)
		for _, version := range generations {
			fmt.Fprintf(&b, " requests, %s | blobs |", version)
		}
		b.WriteString(" |\n|---|" + strings.Repeat("---|", 2*len(generations)) + "---|\n")
		for j, s := range g.scenarios {
			b.WriteString(row(s, costs[i][j], column, old[s.name]))
		}
	}
	return b.String() + "\n"
}

// checkTable compares the figures with those of the page, or puts them there.
func checkTable(t *testing.T, costs [][]cost) {
	t.Helper()
	column, exact := generation(t)
	page, err := os.ReadFile(compatibility)
	check(t, err)
	head, rest, ok := strings.Cut(string(page), tableBegin)
	was, tail, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", compatibility)
	}
	old := oldCells(was)
	for i, g := range gitScenarios {
		for j, s := range g.scenarios {
			c := costs[i][j]
			if s.requests > 0 && c.requests > s.requests || s.blobs > 0 && c.blobs > s.blobs {
				t.Errorf("%s: %d requests and %d blobs, want at most %s and %s", s.name, c.requests, c.blobs, cell(c.requests, s.requests), cell(c.blobs, s.blobs))
			}
		}
	}
	now := table(costs, column, old)
	switch {
	case os.Getenv("AFS_UPDATE") != "":
		if !exact {
			t.Errorf("the table is for git %s", generations[column])
			return
		}
		check(t, os.WriteFile(compatibility, []byte(head+tableBegin+now+tableEnd+tail), 0o644))
	case now != was && exact:
		t.Errorf("%s is not what was counted (AFS_UPDATE=1 rewrites it)\n%s", compatibility, lineDiff("the table", now, was))
	case now != was:
		t.Logf("with this git, which %s is not about, %s", compatibility, lineDiff("the table", now, was))
	}
}

// Two clones agree; where a side is not what it should be, that is found.
func TestGitSuiteItself(t *testing.T) {
	w := newWorld(t)
	x := w.gitFixture(w.storied(object.SHA1))
	x.clones = true
	s := scenario{steps: "git status\necho more >>log.txt; git commit -q -a -m more; git log -1 --format=%H"}
	for _, c := range []struct{ name, wrong, found string }{
		{"right", "true", ""},
		{"another answer", "git config status.short true", "stdout differs"},
		{"another exit status", "mv .git/HEAD .git/head", "exit code"},
		{"another commit", "git commit -q --amend -m other", "stdout differs"},
		{"another branch", "git branch more", "refs differs"},
		{"another index", "git update-index --skip-worktree files/1.txt", "index differs"},
		{"another mode", "chmod 600 log.txt", "files differs"},
		{"another file", "mkdir empty", "files differs"},
		{"a change that is hidden", "git update-index --assume-unchanged log.txt", "index differs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := x.newPair(t, s)
			if a, err := p.mount.step(0, c.wrong); err != nil || a.code != 0 {
				t.Fatal(a, err)
			}
			_, err := p.do(s)
			if (err == nil) != (c.found == "") || err != nil && !strings.Contains(err.Error(), c.found) {
				t.Errorf("found: %v\nwant %q", err, c.found)
			}
		})
	}
}
