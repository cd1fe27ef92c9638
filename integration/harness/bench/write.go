package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// The write benchmarks perform the same operations on a mount and on a plain directory of the file system that contains the
// mount's state directory, one after the other. They print the ratio of the times, and the number of requests that the kernel
// sent to the mount, by kind, if the kernel can count them (tracefs).

// writeOptions are the options of the write benchmarks.
type writeOptions struct {
	places  []place
	only    *regexp.Regexp
	files   int // number of small files
	singles int // number of single operations of each kind
	large   int64
	random  int // number of writes of 4 KiB into the large file
	memory  int // number of files of the memory test; 0: no memory test
	rounds  int // number of rounds of short measurements, of which the median is printed
	npm     string
	npmHome string // directory of npm's cache
	module  string
}

// place is a file system on which the benchmarks run. dir contains a plain directory and the state directory of a mount.
type place struct{ name, dir string }

// writeFlags declares the flags of -write.
func writeFlags() (o *writeOptions, is *bool) {
	o = &writeOptions{}
	is = flag.Bool("write", false, "measure work on a mount against the same work on a plain directory")
	flag.Func("places", "`NAME=DIR,...` of file systems for state and plain directory (default disk=TMPDIR,tmpfs=/dev/shm)", func(s string) (err error) {
		o.places, err = parsePlaces(s)
		return err
	})
	flag.IntVar(&o.files, "files", 20_000, "with -write: small files")
	flag.IntVar(&o.singles, "singles", 2000, "with -write: single operations of each kind, of which the median counts")
	flag.Int64Var(&o.large, "large", 1<<30, "with -write: bytes of the large file")
	flag.IntVar(&o.random, "random", 100_000, "with -write: random writes into it")
	flag.IntVar(&o.memory, "memory", 0, "with -write: files of the memory test; 0: no memory test")
	flag.IntVar(&o.rounds, "rounds", 3, "with -write: rounds of short measurements, of which the median counts")
	flag.StringVar(&o.npm, "npm", "", "with -write: `directory` of a package.json and a package-lock.json to install")
	flag.StringVar(&o.npmHome, "npm-cache", "", "with -write: npm's cache, where everything is")
	flag.StringVar(&o.module, "module", "", "with -write: `repository` of a Go module to build")
	return o, is
}

// parsed completes the options after the flags were parsed.
func (o *writeOptions) parsed(only *regexp.Regexp) writeOptions {
	done := *o
	done.only = only
	if len(done.places) == 0 {
		done.places = []place{{"disk", os.TempDir()}, {"tmpfs", "/dev/shm"}}
	}
	return done
}

// parsePlaces parses "name=dir,name=dir".
func parsePlaces(s string) (places []place, err error) {
	for p := range strings.SplitSeq(s, ",") {
		name, dir, ok := strings.Cut(p, "=")
		if !ok {
			return nil, fmt.Errorf("place %q: want NAME=DIRECTORY", p)
		}
		places = append(places, place{name, dir})
	}
	return places, nil
}

// arena contains the directories of one kind of measurement: a mount, and a plain directory beside the mount's state
// directory.
type arena struct {
	*session
	o        writeOptions
	place    string
	m        *mounted
	plain    string
	trace    *trace
	redirect string
	failed   bool
}

// writes runs all write benchmarks.
func (b *bench) writes(repos []string, o writeOptions) error {
	b.table = tabwriter.NewWriter(os.Stdout, 2, 8, 2, ' ', 0)
	fmt.Fprintf(b.table, "measurement\tstate on\tmount\tplain\tratio\tdaemon CPU\trequests\n")
	defer b.table.Flush()
	var all error
	for _, p := range o.places {
		work, err := os.MkdirTemp(p.dir, "artifactfs-bench-*")
		if err != nil {
			return err
		}
		here := *b
		here.work = work
		err = here.writesAt(repos, o, p.name)
		if err != nil {
			all = errors.Join(all, fmt.Errorf("%s: %w", p.name, err))
		}
		if err := os.RemoveAll(work); err != nil {
			return err
		}
	}
	return all
}

func (b *bench) writesAt(repos []string, o writeOptions, place string) error {
	small := filepath.Join(b.work, "synthetic.git")
	if err := makeRepository(small, 100, 1); err != nil {
		return err
	}
	type group struct {
		name, repo string
		redirect   string // path that the mount redirects
		run        func(*arena) error
	}
	groups := []group{
		{"single", small, "", (*arena).singles},
		{"files", small, "", (*arena).smallFiles},
		{"large", small, "", (*arena).largeFile},
		{"memory", small, "", (*arena).memory},
		{"npm", small, "", (*arena).npmInstall},
		{"npm-redirected", small, "project/node_modules", (*arena).npmInstall},
		{"go", o.module, "", (*arena).goBuild},
		{"go-redirected", o.module, ".gocache", (*arena).goBuild},
	}
	for _, r := range repos {
		groups = append(groups, group{"search", r, "", (*arena).searches}, group{"tree", r, "", (*arena).tree})
	}
	for _, g := range groups {
		if g.repo == "" || !o.only.MatchString(g.name) {
			continue
		}
		err := b.inArena(g.repo, place, o, g.redirect, g.run)
		b.table.Flush()
		if err != nil {
			return fmt.Errorf("%s: %w", g.name, err)
		}
	}
	return nil
}

// inArena mounts a repository with all contents fetched, clones it beside the mount, and calls run.
func (b *bench) inArena(repo, place string, o writeOptions, redirect string, run func(*arena) error) (err error) {
	s, err := b.serve(repo)
	if err != nil {
		return err
	}
	defer func() {
		s.stop()
		os.RemoveAll(filepath.Join(b.work, "root-"+s.name)) // the next group may serve the same repository
	}()
	a := &arena{session: s, o: o, place: place, plain: s.path("plain"), redirect: redirect}
	args := []string{"--history", "none", "--prefetch", "all", "--wait", "all"}
	if redirect != "" {
		args = append(args, "--redirect", redirect)
	}
	if a.m, err = s.mount(args...); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, a.m.quietly("unmount", "--discard", "--yes", a.m.dir), a.m.quietly("unmount", "--all"), os.RemoveAll(a.plain), os.RemoveAll(s.state))
	}()
	if _, err := s.git("clone", "-q", "--depth", "1", s.url, a.plain); err != nil {
		return err
	}
	a.trace = newTrace(a.m.dir)
	defer a.trace.close()
	return run(a)
}

// compare measures work on both sides, each in several rounds, and prints a row. It calls prepare before each round without
// measuring it. After an error, further calls do nothing.
func (a *arena) compare(what string, rounds int, prepare, work func(dir string) error) error {
	if a.failed {
		return nil
	}
	a.failed = true
	var times [2][]time.Duration
	var requests string
	var used time.Duration
	for range rounds {
		for side, dir := range []string{a.plain, a.m.dir} {
			if prepare != nil {
				if err := prepare(dir); err != nil {
					return fmt.Errorf("prepare %s: %w", what, err)
				}
			}
			unix.Sync() // write back the data of other processes, so that their writes are not measured
			if side == 1 {
				a.trace.begin()
			}
			before, start := processorTime(a.m.pid), time.Now()
			if err := work(dir); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			times[side] = append(times[side], time.Since(start))
			if side == 1 {
				used, requests = processorTime(a.m.pid)-before, a.trace.end() // the last round counts, because nothing may be cached in the first
			}
		}
	}
	for _, t := range times {
		slices.Sort(t)
	}
	plain, mount := times[0][rounds/2], times[1][rounds/2]
	fmt.Fprintf(a.table, "%s\t%s\t%s\t%s\t%.2fx\t%s\t%s\n", what, a.place, seconds(mount), seconds(plain), float64(mount)/float64(plain), seconds(used), requests)
	a.failed = false
	return nil
}

// processorTime returns the processor time that a process has used, in ticks of 10 ms. Unlike elapsed time, it hardly depends
// on other processes.
func processorTime(pid int) time.Duration {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

// note prints a row whose result is not a pair of times.
func (a *arena) note(what, result string) {
	fmt.Fprintf(a.table, "%s\t%s\t%s\t\t\t\t\n", what, a.place, result)
}

// again mounts the same state directory at the same directory once more.
func (m *mounted) again() (time.Duration, error) {
	start := time.Now()
	if err := m.quietly("mount", m.s.url, m.dir, "--history", "none", "--prefetch", "none"); err != nil {
		return 0, err
	}
	took := time.Since(start)
	st, err := m.status()
	m.pid = st.PID
	return took, err
}

// quietly runs the command, and prints its output only if the command fails.
func (m *mounted) quietly(args ...string) error {
	cmd := m.s.artifactfs(args...)
	cmd.Stderr = nil
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", args[0], err, out)
	}
	return nil
}

// shellIn runs a shell command in a directory.
func shellIn(dir, script string, env ...string) error {
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", script, err, out[max(0, len(out)-2000):])
	}
	return nil
}
