package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Roles of the processes whose counters are read.
const (
	command = "command" // processes that end by themselves: the command, and the hooks that git starts
	daemon  = "daemon"  // the supervisor and its workers
)

const (
	module    = "github.com/artifactfs/artifactfs/"
	snapLimit = 20 * time.Second // timeout for a daemon to write its counters
	snapPoll  = 5 * time.Millisecond
)

// function is a function or method of the program, including the function literals inside it.
type function struct {
	dir, file string // directory of the package, relative to the root of the module; name of the file
	line      int
	name      string
}

// walk is the set of functions that were entered during a run.
type walk map[function]bool

// byRole maps each role to the functions that its processes entered.
type byRole map[string]walk

func (w walk) add(other walk) {
	for f := range other {
		w[f] = true
	}
}

// without returns the functions of w that are not in other.
func (w walk) without(other walk) walk {
	left := walk{}
	for f := range w {
		if !other[f] {
			left[f] = true
		}
	}
	return left
}

func (w walk) files() map[string]bool {
	files := map[string]bool{}
	for f := range w {
		files[f.dir+"/"+f.file] = true
	}
	return files
}

func (w walk) packages() map[string]bool {
	packages := map[string]bool{}
	for f := range w {
		packages[f.dir] = true
	}
	return packages
}

// sorted returns the functions sorted by package, in the given order of packages, and then by position in the source.
func (w walk) sorted(order []string) []function {
	var all []function
	for f := range w {
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b function) int {
		if a.dir != b.dir {
			return slices.Index(order, a.dir) - slices.Index(order, b.dir)
		}
		if a.file != b.file {
			return strings.Compare(a.file, b.file)
		}
		return a.line - b.line
	})
	return all
}

// all returns the functions that processes of any role entered.
func (b byRole) all() walk {
	all := walk{}
	for _, w := range b {
		all.add(w)
	}
	return all
}

// common returns, for each role, the functions that were entered in every run.
func common(runs []byRole) byRole {
	got := byRole{}
	for role, first := range runs[0] {
		got[role] = walk{}
		for f := range first {
			if !slices.ContainsFunc(runs, func(r byRole) bool { return !r[role][f] }) {
				got[role][f] = true
			}
		}
	}
	return got
}

// repeated returns the functions that were entered in at least two of the three parts of the idle interval. A function
// that was entered in only one part is a late effect of the warm-up, so it is not background work.
func repeated(parts [3]walk) walk {
	got := walk{}
	for i, part := range parts {
		for f := range part {
			if parts[(i+1)%len(parts)][f] {
				got[f] = true
			}
		}
	}
	return got
}

// parseFunctions reads the output of "go tool covdata func" and returns the functions of which at least one statement
// was executed. A line consists of "FILE:LINE:", the name of a function and a percentage, separated by tabs. The last
// line is a total.
func parseFunctions(text io.Reader) (walk, error) {
	got := walk{}
	lines := bufio.NewScanner(text)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || fields[0] == "total" {
			continue
		}
		if len(fields) != 3 {
			return nil, fmt.Errorf("parse coverage %q: %d fields, want 3", lines.Text(), len(fields))
		}
		where := strings.Split(fields[0], ":")
		file, ours := strings.CutPrefix(where[0], module)
		if !ours || len(where) != 3 {
			return nil, fmt.Errorf("parse coverage %q: no position in the module", lines.Text())
		}
		line, err := strconv.Atoi(where[1])
		if err != nil {
			return nil, fmt.Errorf("parse coverage %q: %w", lines.Text(), err)
		}
		share, err := strconv.ParseFloat(strings.TrimSuffix(fields[2], "%"), 64)
		if err != nil {
			return nil, fmt.Errorf("parse coverage %q: %w", lines.Text(), err)
		}
		if share > 0 && path.Base(file) != triggerFile {
			got[function{path.Dir(file), path.Base(file), line, fields[1]}] = true
		}
	}
	return got, lines.Err()
}

// entered returns the functions that processes of the daemon have entered since the last call of entered.
func (r *rig) entered() (walk, error) {
	pids, err := r.daemons()
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		syscall.Kill(pid, triggerSignal)
	}
	dir := filepath.Join(r.tmp, daemon)
	for _, pid := range pids {
		if err := r.takeSnapshot(pid, dir); err != nil {
			return nil, err
		}
	}
	return r.read(dir)
}

// daemons returns the IDs of the running processes that write their counters when they receive triggerSignal.
func (r *rig) daemons() (pids []int, err error) {
	announced, err := filepath.Glob(filepath.Join(r.counters(), "daemon.*"))
	for _, name := range announced {
		if pid, err := strconv.Atoi(filepath.Ext(name)[1:]); err == nil && syscall.Kill(pid, 0) == nil {
			pids = append(pids, pid)
		}
	}
	return pids, err
}

// takeSnapshot asks a process to write its counters, waits until they are complete, and moves them to dir. It returns
// nil without counters if the process ends.
func (r *rig) takeSnapshot(pid int, dir string) error {
	snapshot := filepath.Join(r.counters(), fmt.Sprintf("snapshot.%d", pid))
	for deadline := time.Now().Add(snapLimit); ; time.Sleep(snapPoll) {
		if _, err := os.Stat(snapshot); err == nil {
			break
		}
		if syscall.Kill(pid, 0) != nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("process %d of the daemon has not written its counters", pid)
		}
		if err := r.ctx.Err(); err != nil {
			return err
		}
	}
	if err := moveAll(filepath.Join(snapshot, "covcounters.*"), dir); err != nil {
		return err
	}
	return os.RemoveAll(snapshot)
}

// ended returns the functions that were entered by processes that have ended since the last call of ended.
func (r *rig) ended() (walk, error) {
	dir := filepath.Join(r.tmp, command)
	if err := moveAll(filepath.Join(r.counters(), "covcounters.*"), dir); err != nil {
		return nil, err
	}
	return r.read(dir)
}

// read returns the functions whose counters are in dir, and removes dir.
func (r *rig) read(dir string) (walk, error) {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return walk{}, nil
	}
	descriptions, err := filepath.Glob(filepath.Join(r.counters(), "covmeta.*"))
	if err != nil {
		return nil, err
	}
	for _, d := range descriptions {
		if err := os.Link(d, filepath.Join(dir, filepath.Base(d))); err != nil {
			return nil, err
		}
	}
	var stderr strings.Builder
	c := exec.CommandContext(r.ctx, r.covdata, "func", "-i="+dir)
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("read counters: %w: %s", err, stderr.String())
	}
	got, err := parseFunctions(strings.NewReader(string(out)))
	return got, errors.Join(err, os.RemoveAll(dir))
}

// moveAll moves the files that match a pattern to the directory dir. It creates dir if there is such a file.
func moveAll(pattern, dir string) error {
	names, err := filepath.Glob(pattern)
	if err != nil || len(names) == 0 {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, name := range names {
		if err := os.Rename(name, filepath.Join(dir, filepath.Base(name))); err != nil {
			return err
		}
	}
	return nil
}
