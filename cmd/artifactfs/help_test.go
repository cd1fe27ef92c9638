package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
)

// visible returns the arguments that print the help of each visible command, by the name of the command.
func visible(root *cobra.Command) map[string][]string {
	pages := map[string][]string{"": {"--help"}}
	var add func(c *cobra.Command, names ...string)
	add = func(c *cobra.Command, names ...string) {
		if c.Hidden {
			return
		}
		names = append(slices.Clone(names), c.Name())
		pages[strings.Join(names, " ")] = append(slices.Clone(names), "--help")
		for _, sub := range c.Commands() {
			add(sub, names...)
		}
	}
	for _, c := range root.Commands() {
		add(c)
	}
	return pages
}

func TestHelpTeaches(t *testing.T) {
	a := newAfs(t)
	pages := visible(rootCommand(&cli.App{Stdout: os.Stdout, Stderr: os.Stderr}))
	for _, name := range []string{"mount", "unmount", "status", "list", "prefetch", "daemon", "version",
		"completion", "checkpoint",
		"sync", "session", "session log", "session gc"} {
		if pages[name] == nil {
			t.Errorf("command %s does not exist", name)
		}
	}
	for name, args := range pages {
		help := printed(t, args...)
		if got := printed(t, append([]string{"help"}, args[:len(args)-1]...)...); got != help {
			t.Errorf("artifactfs help %s: got %q, want what --help prints", name, got)
		}
		full := printed(t, append(slices.Clone(args), "--all")...)
		for _, want := range []string{"Usage:\n  artifactfs", "Examples:\n  ", "artifactfs " + name, "--json"} {
			if !strings.Contains(help, want) || !strings.Contains(full, want) {
				t.Errorf("help of %q has no %q:\n%s", name, want, help)
			}
		}
		if strings.Contains(help, "--log-level") || name != "" && strings.Contains(full, "--log-level debug") {
			t.Errorf("help of %q repeats the global flags:\n%s", name, full)
		}
		if want := "Global flags (--json, --state, -v, ...): artifactfs help --all\n"; !strings.Contains(help, want) {
			t.Errorf("help of %q does not say where the global flags are:\n%s", name, help)
		}
		for line := range strings.Lines(help + full) {
			if len(line) > 121 {
				t.Errorf("help of %q has a line of %d characters: %s", name, len(line), line)
			}
		}
	}
	if got := a.ok(); got != a.ok("--help") || got != printed(t, "--help") {
		t.Errorf("artifactfs without arguments printed\n%s", got)
	}
	if _, err := os.Stat(a.state); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("help created the state directory: %v", err)
	}
}

// printed returns what the command prints with these arguments on both outputs. It runs in this process: to start the
// program for each of some hundred pages takes half a minute.
func printed(t *testing.T, args ...string) string {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "output"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	code := run(&cli.App{Stdout: out, Stderr: out}, args, nil)
	text, err := os.ReadFile(out.Name())
	if code != 0 || err != nil {
		t.Fatalf("artifactfs %s: exit %d, error %v\n%s", strings.Join(args, " "), code, err, text)
	}
	return string(text)
}

// listed returns the names of the commands that a help page lists, by the titles of the groups.
func listed(page string) map[string][]string {
	groups, title := map[string][]string{}, ""
	for line := range strings.Lines(page) {
		if m := regexp.MustCompile(`^([A-Z][A-Za-z, ]+):\n$`).FindStringSubmatch(line); m != nil {
			title = m[1]
		} else if m := regexp.MustCompile(`^  ([a-z-]+)  +[A-Z]`).FindStringSubmatch(line); m != nil {
			groups[title] = append(groups[title], m[1])
		}
	}
	return groups
}

// The first page names the nine commands of daily work, and says where the others are.
func TestFirstHelpPage(t *testing.T) {
	page := printed(t, "--help")
	groups := listed(page)
	for title, want := range map[string]string{
		"Work": "mount status switch checkpoint sync unmount", "Sessions": "session worktree run", "More": "serve",
	} {
		if got := strings.Join(groups[title], " "); got != want {
			t.Errorf("group %s of the first page: got %q, want %q", title, got, want)
		}
	}
	if len(groups) != 3 {
		t.Errorf("groups of the first page: got %v, want three", groups)
	}
	root := rootCommand(&cli.App{Stdout: os.Stdout, Stderr: os.Stderr})
	operators := regexp.MustCompile(`(?m)^For operators: ([a-z, ]+), \.\.\.: artifactfs help --all lists all commands\.$`)
	m := operators.FindStringSubmatch(page)
	if m == nil {
		t.Fatalf("first page has no line for operators:\n%s", page)
	}
	for _, name := range strings.Split(m[1], ", ") {
		if c, _, err := root.Find([]string{name}); err != nil || !c.IsAvailableCommand() {
			t.Errorf("line for operators names %s, which is no command", name)
		}
	}
}

// With --all, the help of artifactfs lists each visible command once.
func TestHelpOfAll(t *testing.T) {
	page := printed(t, "--help", "--all")
	for _, args := range [][]string{{"help", "--all"}, {"--all", "-h"}} {
		if got := printed(t, args...); got != page {
			t.Errorf("artifactfs %v: got %q, want what --help --all prints", args, got)
		}
	}
	count := map[string]int{}
	for _, names := range listed(page) {
		for _, name := range names {
			count[name]++
		}
	}
	for _, c := range rootCommand(&cli.App{Stdout: os.Stdout, Stderr: os.Stderr}).Commands() {
		if want := map[bool]int{true: 1}[c.IsAvailableCommand()]; count[c.Name()] != want {
			t.Errorf("artifactfs --help --all lists %s %d times, want %d", c.Name(), count[c.Name()], want)
		}
	}
	for _, want := range []string{"Global flags:\n", "--log-level", "--socket", "--state", "-v, --verbose",
		"Exit codes: 0 success"} {
		if !strings.Contains(page, want) {
			t.Errorf("artifactfs --help --all has no %q", want)
		}
	}
}

// Topics are texts that no command has, and help completes their names.
func TestHelpTopics(t *testing.T) {
	a := newAfs(t)
	for topic, want := range map[string]string{"checkpoints": "@, @~1", "exit-codes": "4 no such mount"} {
		if got := printed(t, "help", topic); !strings.Contains(got, want) {
			t.Errorf("artifactfs help %s: got %q, want %q in it", topic, got, want)
		}
		if page := printed(t, "--help"); !strings.Contains(page, "artifactfs help "+topic) {
			t.Errorf("first page does not name the topic %s", topic)
		}
	}
	got := a.run("__complete", "help", "check").stdout
	if !strings.Contains(got, "checkpoint\t") || !strings.Contains(got, "checkpoints\t") {
		t.Errorf("completion of help check: got %q", got)
	}
	if got := a.run("__complete", "help", "session", "rest").stdout; !strings.Contains(got, "restore\t") {
		t.Errorf("completion of help session rest: got %q", got)
	}
}

// The help of session lists each visible command once, in groups, and is short enough to be read.
func TestHelpOfSession(t *testing.T) {
	page := printed(t, "session", "--help")
	root := rootCommand(&cli.App{Stdout: os.Stdout, Stderr: os.Stderr})
	session, _, err := root.Find([]string{"session"})
	if err != nil {
		t.Fatal(err)
	}
	in := map[string]string{}
	for title, names := range listed(page) {
		for _, name := range names {
			if in[name] != "" {
				t.Errorf("session --help lists %s in %q and in %q", name, in[name], title)
			}
			in[name] = title
		}
	}
	for _, c := range session.Commands() {
		if (in[c.Name()] != "") != c.IsAvailableCommand() {
			t.Errorf("session --help: %s is in group %q, but visible is %v", c.Name(), in[c.Name()], c.IsAvailableCommand())
		}
	}
	for name, want := range map[string]string{
		"log": "See the work", "restore": "Go back, or go on", "promote": "Tell others, and publish",
		"fact": "Write down for the next user", "lock": "Work beside other sessions", "set": "State of a session",
		"gc": "Clean up",
	} {
		if in[name] != want {
			t.Errorf("session --help lists %s in %q, want %q", name, in[name], want)
		}
	}
	if strings.Contains(page, "\nCommands:") || !strings.Contains(page, "artifactfs help checkpoints") {
		t.Errorf("session --help does not name the topic of checkpoints, or has commands without a group:\n%s", page)
	}
	if intro, _, _ := strings.Cut(page, "Usage:"); strings.Count(intro, "\n") > 12 {
		t.Errorf("session --help begins with %d lines of text", strings.Count(intro, "\n"))
	}
}

// The help of a command that mounts lists at most twelve flags, says how many more there are, and lists them all with
// --all.
func TestHelpOfMounts(t *testing.T) {
	a := newAfs(t)
	root := rootCommand(&cli.App{Stdout: os.Stdout, Stderr: os.Stderr})
	flag := regexp.MustCompile(`(?m)^ +(?:-., )?--([a-z-]+)`)
	for _, line := range []string{"mount", "run", "session fork", "session resume"} {
		names := strings.Fields(line)
		cmd, _, err := root.Find(names)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]bool{}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { want[f.Name] = !f.Hidden })
		delete(want, "help")
		maps.DeleteFunc(want, func(_ string, shown bool) bool { return !shown })
		brief, full := printed(t, append(names, "--help")...), printed(t, append(names, "--help", "--all")...)
		got := flag.FindAllStringSubmatch(brief, -1)
		if len(got) < 6 || len(got) > 12 {
			t.Errorf("%s --help lists %d flags, want 6 to 12:\n%s", line, len(got), brief)
		}
		more := fmt.Sprintf("\n%d more flags: artifactfs %s --help --all\n", len(want)-len(got), line)
		if !strings.Contains(brief, more) || strings.Contains(full, "more flags") {
			t.Errorf("%s --help: want %q only without --all, got\n%s", line, more, brief)
		}
		for _, m := range flag.FindAllStringSubmatch(full, -1) {
			if !want[m[1]] {
				t.Errorf("%s --help --all lists --%s twice, or it is hidden", line, m[1])
			}
			delete(want, m[1])
		}
		if len(want) > 0 {
			t.Errorf("%s --help --all does not list %v", line, want)
		}
		words := append(append([]string{"__complete"}, names...), "--cache")
		if got := a.run(words...).stdout; !strings.HasPrefix(got, "--cache-size\t") {
			t.Errorf("completion of %s --cache: got %q", line, got)
		}
	}
	if page := printed(t, "mount", "--help"); strings.Count(page, "\n") > 50 {
		t.Errorf("mount --help has %d lines, want one screen", strings.Count(page, "\n"))
	}
	for _, want := range []string{"--session-remote-create COMMAND creates", "With --fuse-fd N",
		"$ARTIFACTFS_CACHE_SIZE"} {
		if page := printed(t, "mount", "--help", "--all"); !strings.Contains(page, want) {
			t.Errorf("mount --help --all has no %q", want)
		}
	}
}
