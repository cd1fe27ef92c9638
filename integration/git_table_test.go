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
	"time"

	"github.com/artifactfs/artifactfs/git/object"
)

// The table of doc/compatibility.md has a row for each scenario, and for each generation of git two columns: requests
// and blobs. A run checks the columns of the git version that it uses, and leaves the others. AFS_UPDATE=1 replaces the
// figures that do not hold, AFS_UPDATE=all those that do as well.

const (
	compatibility = "../doc/compatibility.md"
	tableBegin    = "<!-- written by integration/TestGitScenarios with AFS_UPDATE=1 -->\n"
	tableEnd      = "<!-- end -->\n"
)

// generations of git: older ones run a hook as file system monitor, newer ones connect to a socket.
var generations = []string{"2.39", "2.55"}

// generation returns the columns of the git version in use. The figures are exact for that version only.
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
		t.Fatalf("git version printed %s, which has no columns in the table", out)
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

// figure is the limit in a cell of the table: zero, or a largest number. How many objects are fetched beside those that
// a scenario needs depends on the order of its reads and on the load of the machine, so a figure that is not zero
// leaves some room.
type figure int

func (f figure) String() string {
	switch {
	case f < 0:
		return "?"
	case f == 0:
		return "0"
	default:
		return fmt.Sprintf("≤ %d", int(f))
	}
}

func parseFigure(s string) figure {
	n, err := strconv.Atoi(strings.TrimPrefix(s, "≤ "))
	if err != nil {
		return -1
	}
	return figure(n)
}

// holds reports whether the count is within the figure, and the figure is not much too large.
func (f figure) holds(counted int) bool {
	return counted <= int(f) && int(f) <= 4*counted+60
}

// figureOf returns the figure for a count, with some room.
func figureOf(counted, room int) figure {
	if counted == 0 {
		return 0
	}
	return figure((counted + counted/4 + 2*room - 1) / room * room)
}

// figures are the figures of a row: requests and blobs for each generation.
type figures [4]figure

func (f *figures) holds(column int, c cost) bool {
	// On a busy machine a blob that is late is requested again after 150 ms, together with its neighbours.
	again := int(c.overload / (150 * time.Millisecond))
	// On such a machine git also reads before the neighbours of a blob are fetched ahead, so that fewer of them are
	// fetched: a count far below the figure does not show that the figure is too large.
	busy := c.overload > 50*time.Millisecond
	holds := func(f figure, counted, again int) bool {
		if f == 0 { // exact
			return f.holds(counted)
		}
		return f.holds(max(min(counted, int(f)), counted-again)) || busy && counted <= int(f)
	}
	return holds(f[2*column], c.requests, again) && holds(f[2*column+1], c.blobs, 33*again)
}

// renew replaces the figures that do not hold.
func (f *figures) renew(column int, c cost, all bool) {
	if i := 2 * column; all || !f[i].holds(c.requests) {
		f[i] = figureOf(c.requests, 2)
	}
	if i := 2*column + 1; all || !f[i].holds(c.blobs) {
		f[i] = figureOf(c.blobs, 10)
	}
}

// parseTable returns the figures by scenario.
func parseTable(table string) map[string]figures {
	all := map[string]figures{}
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		if len(cells) < 5 || strings.HasPrefix(line, "|-") {
			continue
		}
		var f figures
		for i := range f {
			f[i] = parseFigure(cells[1+i])
		}
		all[cells[0]] = f
	}
	return all
}

// table writes all rows.
func table(rows map[string]figures) string {
	var b strings.Builder
	for _, g := range gitScenarios {
		fmt.Fprintf(&b,
			"\n### %s\n| scenario | requests, git %s | blobs | requests, git %s | blobs | |\n|---|---|---|---|---|---|\n",
			g.about, generations[0], generations[1])
		for _, s := range g.scenarios {
			f := rows[s.name]
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", s.name, f[0], f[1], f[2], f[3], s.why)
		}
	}
	return b.String() + "\n"
}

// checkTable compares the figures of the page with the counts, or replaces them.
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
	how := os.Getenv("AFS_UPDATE")
	old, rows := parseTable(was), map[string]figures{}
	for i, g := range gitScenarios {
		for j, s := range g.scenarios {
			f, ok := old[s.name]
			if !ok {
				f = figures{-1, -1, -1, -1}
			}
			c := costs[i][j]
			switch {
			case how != "" && exact:
				f.renew(column, c, how == "all")
			case !f.holds(column, c) && exact:
				t.Errorf("%s: %d requests and %d blobs; %s says %s and %s (AFS_UPDATE=1 rewrites it)", s.name, c.requests, c.blobs,
					compatibility, f[2*column], f[2*column+1])
			}
			rows[s.name] = f
		}
	}
	now := table(rows)
	if how != "" {
		check(t, os.WriteFile(compatibility, []byte(head+tableBegin+now+tableEnd+tail), 0o644))
	} else if now != was {
		t.Errorf("%s does not have one row for each scenario of the suite (AFS_UPDATE=1 rewrites it)\n%s", compatibility,
			lineDiff("the table", was, now))
	}
}

// The comparison finds no difference between two clones, and finds each change that is made on one side only.
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
				t.Fatalf("make the wrong change in the mount: %+v, %v", a, err)
			}
			_, err := p.do(s)
			if (err == nil) != (c.found == "") || err != nil && !strings.Contains(err.Error(), c.found) {
				t.Errorf("comparison after the wrong change: got %v\nwant %q", err, c.found)
			}
		})
	}
}
