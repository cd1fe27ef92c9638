package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// The git benchmarks run the same git commands in a mount and in clones of the same repository, which is served with a
// delay. Requests and objects are counted at the server, so that objects which git fetched without the daemon are
// included.

// gitOptions are the options of the git benchmarks.
type gitOptions struct {
	only     *regexp.Regexp
	git2     string // path of a second git program that is also measured; "" if none
	rounds   int    // number of rounds of git status, each with a fresh mount
	blame    string
	patience time.Duration // maximum time of a single git command
}

// gitFlags declares the flags that only the mode -git has. The result is reports whether the user has passed -git.
func gitFlags() (o *gitOptions, is *bool) {
	o = &gitOptions{}
	is = flag.Bool("git", false, "compare git in a mount with git in clones")
	flag.StringVar(&o.git2, "git2", "", "with -git: measure this git `program` too")
	flag.IntVar(&o.rounds, "git-rounds", 3, "with -git: number of mounts for git status; the median is printed")
	flag.StringVar(&o.blame, "blame", "",
		"with -git: `path` to blame (default: a file with at least 500 versions, otherwise the file with the most versions)")
	flag.DurationVar(&o.patience, "patience", 5*time.Minute, "with -git: give up a git command after this `time`")
	return o, is
}

// gitBench is the state of the benchmarks with one git program.
type gitBench struct {
	*session
	o        gitOptions
	program  string
	version  string
	server   *gittest.Server
	template string // a blobless clone that is copied for each measurement
	input    string // standard input of the next git command
	files    []string
}

// gits runs the git benchmarks of all repositories, once with each git program.
func (b *bench) gits(repos []string, o gitOptions) error {
	if len(repos) == 0 {
		path := filepath.Join(b.work, "large.git")
		if err := makeRepository(path, 70_000, 2000); err != nil {
			return err
		}
		repos = []string{path}
	}
	programs := []string{"git"}
	if o.git2 != "" {
		programs = append(programs, o.git2)
	}
	var all error
	for _, repo := range repos {
		served, err := b.prepare(repo)
		if err != nil {
			return fmt.Errorf("%s: %w", repo, err)
		}
		for _, program := range programs {
			if err := b.gitsOf(served, program, o); err != nil {
				all = errors.Join(all, fmt.Errorf("%s: %s: %w", repo, program, err))
			}
		}
		if err := os.RemoveAll(filepath.Dir(served)); err != nil {
			return err
		}
	}
	return all
}

// gitsOf measures one repository with one git program.
func (b *bench) gitsOf(served, program string, o gitOptions) error {
	program, err := exec.LookPath(program)
	if err != nil {
		return err
	}
	here := *b
	if here.work, err = os.MkdirTemp(b.work, "git-*"); err != nil {
		return err
	}
	defer os.RemoveAll(here.work)
	server, err := gittest.Serve(gittest.ServerOptions{Root: filepath.Dir(served), RTT: b.rtt, Cheap: true,
		Stderr: os.Stderr})
	if err != nil {
		return err
	}
	defer server.Close()
	server.Inject(gittest.Fault{Kind: gittest.NoObjectInfo})
	s := &session{bench: &here, name: repoName(served), repo: served, url: server.URL(filepath.Base(served))}
	// The daemon and the commands that it runs use the git program that is measured.
	s.env = append(gittest.Env(), "PATH="+filepath.Dir(program)+":"+os.Getenv("PATH"))
	g := &gitBench{session: s, o: o, program: program, server: server}
	out, err := exec.Command(program, "version").Output()
	if err != nil {
		return err
	}
	g.version = strings.TrimPrefix(strings.TrimSpace(string(out)), "git version ")
	if g.files, err = g.session.files(); err != nil {
		return err
	}
	for _, m := range []struct {
		name string
		run  func() error
	}{
		{"status", g.status},
		{"commands", g.commands},
	} {
		if !o.only.MatchString(m.name) {
			continue
		}
		g.table = tabwriter.NewWriter(os.Stdout, 2, 8, 2, ' ', 0)
		fmt.Fprintf(g.table, "\n%s: %d files, git %s, round trip %s\n", g.name, len(g.files), g.version, b.rtt)
		err := m.run()
		g.table.Flush()
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	return nil
}

// cost contains the time, the requests and the objects that one git command needed.
type cost struct {
	took     time.Duration
	requests int         // number of requests for objects that reached the server
	objects  int         // number of objects in the server's answers
	wants    []object.ID // objects that the requests named
	kernel   string      // number of requests to the file system, by kind; "" if they were not counted
}

// network returns the numbers of requests and objects as text for the table.
func (c cost) network() string {
	if c.requests == 0 {
		return "-"
	}
	return fmt.Sprintf("%d requests, %d objects", c.requests, c.objects)
}

// run runs git in a directory and returns its cost. If t is not nil, it counts the requests of the kernel to the mount.
func (g *gitBench) run(dir string, t *trace, args ...string) (cost, error) {
	ctx, cancel := context.WithTimeout(context.Background(), g.o.patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, g.program, args...)
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(g.input)
	cmd.Env = append(g.env[:len(g.env):len(g.env)], "GIT_PAGER=cat", "GIT_EDITOR=true")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	g.server.Log().Reset()
	if t != nil {
		t.begin()
	}
	start := time.Now()
	err := cmd.Run()
	c := cost{took: time.Since(start)}
	if t != nil {
		c.kernel = t.end()
	}
	for _, r := range g.server.Log().Fetches() {
		c.requests++
		c.objects += r.Objects
		c.wants = append(c.wants, r.Wants...)
	}
	if args[0] == "grep" && cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == 1 {
		err = nil // git grep exits with 1 if it finds nothing
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		return c, fmt.Errorf("git %s in %s: %w: %s", strings.Join(args, " "), dir, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return c, nil
}

// must runs git without measuring it, for example to prepare a measurement.
func (g *gitBench) must(dir string, args ...string) error {
	_, err := g.run(dir, nil, args...)
	return err
}

// fresh mounts the repository with an empty state directory. Only the ignore files that the index needs are fetched.
func (g *gitBench) fresh(history string) (*mounted, error) {
	return g.mount("--prefetch", "auto", "--prefetch-budget", "1", "--history", history, "--wait", "git")
}

// removeAll unmounts the mount and removes all its files.
func (m *mounted) removeAll() error {
	return errors.Join(m.quietly("unmount", "--discard", "--yes", m.dir), m.quietly("unmount", "--all"),
		os.RemoveAll(m.s.state))
}

// edit appends a line to n files in different directories.
func (g *gitBench) edit(dir string, n int) error {
	for i := range n {
		path := filepath.Join(dir, g.files[(2*i+1)*len(g.files)/(2*n)])
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteString("edited by the benchmark\n")
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}
