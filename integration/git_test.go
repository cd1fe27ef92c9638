package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// The git suite runs the same commands in a mount and in a plain clone of the same repository, and compares their
// output and the states of both directories afterwards. The clone is the oracle: the suite has no model of git.
//
// Terms: a scenario is a list of steps, a step is a line of shell; a side is one of the two working trees it runs in;
// the state of a side is all of it that git commands show: refs, index, status, files.

const stepTime = time.Minute // longest run of one step

// gitSide is one of the two working trees. Steps find it in variables:
//
//	$TOP     the working tree, where each step starts; its parent is there for more directories
//	$SERVER  the bare repository of origin, for commands that change it
//	$URL     the URL of origin
type gitSide struct {
	name   string // for messages
	home   string // contains all files that steps write
	gitDir string
	server string
	url    string
	env    []string
}

func (g *gitSide) top() string { return filepath.Join(g.home, "tree") }

// prelude defines shell functions for every step: edits as users make them.
const prelude = `
edit() { sed -i "${2:-3}s/\$/ edited/" "$1"; }   # a line, the third unless said
append() { printf 'appended\n' >>"$1"; }
on() { git -C "$SERVER" "$@"; }
server() { # server BRANCH TREE MESSAGE: commits a tree to a branch of the server
	on update-ref refs/heads/$1 $(on commit-tree -p $1 -m "$3" "$2")
}
`

// answer is the output and exit code of a step, without the parts that cannot be the same on both sides.
type answer struct {
	line           string
	stdout, stderr string
	code           int
}

// step runs the n-th line of a scenario. Commits get dates by n, so that ids are the same on both sides. The shell
// changes to the directory of the side itself: the test process must not have its working directory in a mount.
func (g *gitSide) step(n int, line string) (answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), stepTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", "cd \"$TOP\" || exit 125\n"+prelude+line)
	date := fmt.Sprintf("%d +0000", gitEpoch+60*n)
	cmd.Dir = filepath.Dir(g.home)
	cmd.Env = append(os.Environ(), append(g.env, "TOP="+g.top(), "SERVER="+g.server, "URL="+g.url,
		"GIT_AUTHOR_DATE="+date, "GIT_COMMITTER_DATE="+date)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second // a busy machine may be slow to copy the output
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || cmd.ProcessState.ExitCode() < 0 {
		return answer{}, fmt.Errorf("%s: %s: %w\n%s", g.name, line, err, &stderr)
	}
	return answer{line, g.normal(stdout.String()), withoutLineEnds(g.normal(stderr.String())),
		cmd.ProcessState.ExitCode()}, nil
}

// withoutLineEnds removes warnings about line ends. Git prints them whenever it reads a file, also an untouched one
// that is as young as the index, which without a monitor depends on the second.
func withoutLineEnds(s string) string {
	var kept strings.Builder
	for line := range strings.Lines(s) {
		if !strings.HasPrefix(line, "warning: in the working copy of ") {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

// normal replaces the paths that differ between the sides.
func (g *gitSide) normal(s string) string {
	for _, r := range [][2]string{{g.gitDir, "TOP/.git"}, {g.top(), "TOP"}, {g.home, "HOME"}, {g.url, "URL"}} {
		s = strings.ReplaceAll(s, r[0], r[1])
	}
	return s
}

// run runs all steps. It does not check exit codes; the comparison does.
func (g *gitSide) run(steps []string) ([]answer, error) {
	var all []answer
	for i, line := range steps {
		a, err := g.step(i, line)
		if err != nil {
			return all, err
		}
		all = append(all, a)
	}
	return all, nil
}

// gitEpoch is later than every commit of the fixture.
const gitEpoch = 1_750_000_000

// aspects are the parts of a side's state that git prints. They are read in this order: the index as the scenario left
// it comes before anything that may refresh it.
var aspects = []struct{ name, line string }{
	{"index", "git ls-files -s -v"},
	{"status", "git status --porcelain=v2 --branch --untracked-files=all --ignored --show-stash"},
	{"refs", `git for-each-ref --format='%(refname) %(objectname) %(symref)'
		(cd "$(git rev-parse --git-dir)" && grep -s . HEAD ORIG_HEAD MERGE_HEAD CHERRY_PICK_HEAD REVERT_HEAD REBASE_HEAD BISECT_HEAD AUTO_MERGE)
		git reflog show --format='%H %gs' HEAD --; true`},
	{"status without help",
		"git -c core.fsmonitor=false -c core.untrackedCache=false status --porcelain=v2 --untracked-files=all --ignored"},
}

// state is what commands left behind, by aspect.
type gitState []struct{ name, text string }

func (g *gitSide) state() (gitState, error) {
	var s gitState
	for _, a := range aspects {
		r, err := g.step(0, a.line)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", a.name, err)
		}
		s = append(s, struct{ name, text string }{a.name, fmt.Sprintf("%sexit code %d", r.stdout, r.code)})
	}
	files, err := treeText(g.top())
	if err != nil {
		return nil, fmt.Errorf("list files: %w", err)
	}
	return append(s, struct{ name, text string }{"files", files}), nil
}

// treeText lists a working tree with modes and contents.
func treeText(top string) (string, error) {
	var b strings.Builder
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(top, path)
		if err != nil {
			return err
		}
		if rel == ".git" {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		content := ""
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			content, err = os.Readlink(path)
		case info.Mode().IsRegular() && d.Name() == ".git": // the file .git of a submodule, which names the git directory
		case info.Mode().IsRegular():
			var data []byte
			data, err = os.ReadFile(path)
			content = string(data)
			if int64(len(data)) != info.Size() {
				err = errors.Join(err, fmt.Errorf("%s: %d bytes read, size %d", rel, len(data), info.Size()))
			}
		}
		fmt.Fprintf(&b, "%v %q %q\n", info.Mode(), rel, content)
		return err
	})
	return b.String(), err
}

// sameAnswers reports the first step that the sides answered differently.
func sameAnswers(got, want []answer) error {
	for i := range want {
		a, b := got[i], want[i]
		if a != b {
			return fmt.Errorf("step %d: %s\nexit code %d, want %d\n%s%s", i+1, b.line, a.code, b.code,
				lineDiff("stdout", a.stdout, b.stdout), lineDiff("stderr", a.stderr, b.stderr))
		}
	}
	return nil
}

// sameState reports all aspects in which the sides differ.
func sameState(got, want gitState) error {
	var err error
	for i := range want {
		if d := lineDiff(want[i].name, got[i].text, want[i].text); d != "" {
			err = errors.Join(err, errors.New(d))
		}
	}
	return err
}

// lineDiff shows what differs between two texts, "" if nothing does: without what both begin or end with.
func lineDiff(what, got, want string) string {
	if got == want {
		return ""
	}
	a, b := strings.SplitAfter(got, "\n"), strings.SplitAfter(want, "\n")
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%s differs:\n", what)
	for _, side := range []struct {
		sign  string
		lines []string
	}{{"+", a}, {"-", b}} {
		for i, l := range side.lines {
			if i == differencesShown {
				fmt.Fprintf(&out, "%s ... %d lines more\n", side.sign, len(side.lines)-i)
				break
			}
			if len(l) > 300 {
				l = l[:300] + "...\n"
			}
			out.WriteString(side.sign + strings.TrimSuffix(l, "\n") + "\n")
		}
	}
	return out.String()
}

// gitPath is PATH with the git of the test's choice first.
func gitPath() string {
	if git := os.Getenv("AFS_GIT"); git != "" {
		return filepath.Dir(git) + ":" + os.Getenv("PATH")
	}
	return os.Getenv("PATH")
}

// copyTree copies a directory with cp, and preserves times and links.
func copyTree(from, to string) error {
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("copy %s: %w: %s", from, err, out)
	}
	return nil
}
