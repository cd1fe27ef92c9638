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

// The benchmarks -write perform the same operations on a mount and on a plain directory, one after the other. The plain
// directory is on the file system that contains the mount's state directory. The benchmarks print the ratio of the
// durations and, if the kernel can count them (tracefs), the number of requests from the kernel to the mount by kind.

// writeOptions are the options of the write benchmarks.
type writeOptions struct {
	places  []place
	only    *regexp.Regexp
	files   int // number of small files
	singles int // number of single operations of each kind
	large   int64
	random  int // number of writes of 4 KiB into the large file
	memory  int // number of files of the memory test; 0 to skip the test
	rounds  int // number of rounds of each short measurement; the median is printed
	npm     string
	npmHome string // directory of npm's cache
	module  string
}

// place is a file system on which the benchmarks run. dir is a directory on it, which contains a plain directory and
// the state directory of a mount.
type place struct{ name, dir string }

// writeFlags declares the flags that only the mode -write has. The result is reports whether the user has passed
// -write.
func writeFlags() (o *writeOptions, is *bool) {
	o = &writeOptions{}
	is = flag.Bool("write", false, "compare operations on a mount with the same operations on a plain directory")
	flag.Func("places",
		"`NAME=DIR,...` of file systems for state and plain directory (default disk=TMPDIR,tmpfs=/dev/shm)",
		func(s string) (err error) {
			o.places, err = parsePlaces(s)
			return err
		})
	flag.IntVar(&o.files, "files", 20_000, "with -write: number of small files")
	flag.IntVar(&o.singles, "singles", 2000,
		"with -write: number of single operations of each kind; the median is printed")
	flag.Int64Var(&o.large, "large", 1<<30, "with -write: bytes of the large file")
	flag.IntVar(&o.random, "random", 100_000, "with -write: number of random writes into the large file")
	flag.IntVar(&o.memory, "memory", 0, "with -write: number of files of the memory test; 0: no memory test")
	flag.IntVar(&o.rounds, "rounds", 3, "with -write: number of rounds of each short measurement; the median is printed")
	flag.StringVar(&o.npm, "npm", "",
		"with -write: `directory` with the package.json and package-lock.json of a project to install")
	flag.StringVar(&o.npmHome, "npm-cache", "",
		"with -write: directory of npm's cache, which must contain all packages of the project")
	flag.StringVar(&o.module, "module", "", "with -write: `repository` of a Go module to build")
	return o, is
}

// parsed returns the options with the values that are known only after the flags were parsed.
func (o *writeOptions) parsed(only *regexp.Regexp) writeOptions {
	done := *o
	done.only = only
	if len(done.places) == 0 {
		done.places = []place{{"disk", os.TempDir()}, {"tmpfs", "/dev/shm"}}
	}
	return done
}

// parsePlaces parses the value of the flag -places, NAME=DIR,NAME=DIR,...
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

// arena contains a mount and a plain directory beside the mount's state directory, on which the same operations are
// measured.
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
		redirect   string // path in the mount that is redirected to a directory on the host; "" if none
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

// inArena mounts a repository, fetches all contents, clones the repository beside the mount, and calls run.
func (b *bench) inArena(repo, place string, o writeOptions, redirect string, run func(*arena) error) (err error) {
	s, err := b.serve(repo)
	if err != nil {
		return err
	}
	defer func() {
		s.stop()
		// a later group of measurements may serve the same repository
		os.RemoveAll(filepath.Join(b.work, "root-"+s.name))
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
		err = errors.Join(err, a.m.quietly("unmount", "--discard", "--yes", a.m.dir), a.m.quietly("unmount", "--all"),
			os.RemoveAll(a.plain), os.RemoveAll(s.state))
	}()
	if _, err := s.git("clone", "-q", "--depth", "1", s.url, a.plain); err != nil {
		return err
	}
	a.trace = newTrace(a.m.dir)
	defer a.trace.close()
	return run(a)
}

// compare measures work in the mount and in the plain directory, each for several rounds, and prints a row. It calls
// prepare before each round and does not measure this call. After an error, further calls do nothing.
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
			unix.Sync() // write back the data of earlier operations, so that this is not measured
			if side == 1 {
				a.trace.begin()
			}
			before, start := processorTime(a.m.pid), time.Now()
			if err := work(dir); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			times[side] = append(times[side], time.Since(start))
			if side == 1 {
				// the values of the last round are printed, because in the first round nothing may be cached
				used, requests = processorTime(a.m.pid)-before, a.trace.end()
			}
		}
	}
	for _, t := range times {
		slices.Sort(t)
	}
	plain, mount := times[0][rounds/2], times[1][rounds/2]
	fmt.Fprintf(a.table, "%s\t%s\t%s\t%s\t%.2fx\t%s\t%s\n", what, a.place, seconds(mount), seconds(plain),
		float64(mount)/float64(plain), seconds(used), requests)
	a.failed = false
	return nil
}

// processorTime returns the processor time that a process has used, with a resolution of 10 ms. Unlike elapsed time, it
// hardly depends on other processes.
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

// note prints a row whose result is not a pair of durations.
func (a *arena) note(what, result string) {
	fmt.Fprintf(a.table, "%s\t%s\t%s\t\t\t\t\n", what, a.place, result)
}

// again mounts the same state directory at the same mount point once more, and returns how long this took.
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

// quietly runs an artifactfs command, and returns its output only as part of an error.
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
