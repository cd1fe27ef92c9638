// Package torture runs programs in a mount that know which results their operations must return, and reports wrong
// results. It tests a file system whose server is killed while programs use it: the programs must not notice this.
//
// A job is a program of one of the kinds that Jobs returns. It runs in a separate process, so that the process that
// starts and kills the server never has a file of the mount open. A job uses a separate directory below Options.Mount
// and has a model of this directory, so each operation has one right result. A gap is an operation that took long, with
// its start and end.
//
// A program that uses this package must call Main first, because jobs are processes of the same program.
//
// Locks: Load.mu is a leaf.
package torture

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Options describes a load.
type Options struct {
	Mount   string   // directory in the mount, in which the directory "load" is created
	Plain   string   // checkout of the mounted commit on another file system, which no program changes
	Scratch string   // an empty directory on another file system
	Jobs    []string // kinds of the jobs to start; a kind that occurs several times is started several times
	Seed    uint64
	Env     []string // variables that are added to the environment of the jobs
}

// Jobs returns the kinds of jobs.
func Jobs() []string { return slices.Sorted(maps.Keys(jobs)) }

// Gap is an operation that took long. Start and End are times as Now returns them.
type Gap struct {
	Kind       string
	Start, End time.Duration
}

// Took returns the duration of the operation.
func (g Gap) Took() time.Duration { return g.End - g.Start }

// Now returns the time since the boot of the host. This is the clock of all times in gaps.
func Now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // does not happen, because Linux has this clock
	}
	return time.Duration(ts.Nano())
}

// Report contains the results of a load.
type Report struct {
	Errors []string         // descriptions of wrong results; empty if there are none
	Done   map[string]int64 // number of operations by job
	Gaps   []Gap            // operations of the job meter that took longer than a millisecond
}

// Load is a set of running jobs.
type Load struct {
	jobs []*running

	mu     sync.Mutex
	report Report
}

// running represents the process of a job in the process that has started the job.
type running struct {
	name  string
	cmd   *exec.Cmd
	stdin io.Closer
	ready chan struct{} // closed when the job has started its operations or has ended
	over  chan struct{} // closed when the job's output has ended and the process was reaped
}

// started is the number of jobs that were started so far. It is used to give each job a new directory.
var started atomic.Int64

// Start starts the jobs.
func Start(o Options) (*Load, error) {
	if err := os.MkdirAll(filepath.Join(o.Mount, loadDir), 0o755); err != nil {
		return nil, fmt.Errorf("start load: %w", err)
	}
	l := &Load{report: Report{Done: map[string]int64{}}}
	for i, kind := range o.Jobs {
		if _, ok := jobs[kind]; !ok {
			l.Kill()
			return nil, fmt.Errorf("start load: unknown job %q", kind)
		}
		r := &running{name: fmt.Sprintf("%s-%d", kind, started.Add(1)), ready: make(chan struct{}), over: make(chan struct{})}
		r.cmd = exec.Command("/proc/self/exe")
		r.cmd.Args[0] = "torture-" + r.name // name that ps shows for the process
		r.cmd.Env = append(append(os.Environ(), o.Env...),
			jobVar+"="+strings.Join([]string{kind, r.name, o.Mount, o.Plain, o.Scratch,
				strconv.FormatUint(o.Seed+uint64(i), 10)}, "\n"))
		// not the mount: the job changes its directory itself, because this process must not wait for the mount
		r.cmd.Dir = "/"
		r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		if err := l.begin(r); err != nil {
			l.Kill()
			return nil, fmt.Errorf("start load: %w", err)
		}
		l.jobs = append(l.jobs, r)
	}
	return l, nil
}

func (l *Load) begin(r *running) error {
	stdin, err := r.cmd.StdinPipe()
	if err != nil {
		return err
	}
	r.stdin = stdin
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	r.cmd.Stderr = r.cmd.Stdout
	if err := r.cmd.Start(); err != nil {
		return err
	}
	go func() {
		defer close(r.over)
		ready, done := false, false
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			word, rest, _ := strings.Cut(lines.Text(), " ")
			switch {
			case word == "ready" && !ready:
				ready = true
				close(r.ready)
			case word == "did":
				done = true
				n, _ := strconv.ParseInt(rest, 10, 64)
				l.mu.Lock()
				l.report.Done[strings.SplitN(r.name, "-", 2)[0]] += n
				l.mu.Unlock()
			case word == "gap":
				var g Gap
				if _, err := fmt.Sscan(rest, &g.Kind, (*int64)(&g.Start), (*int64)(&g.End)); err == nil {
					l.mu.Lock()
					l.report.Gaps = append(l.report.Gaps, g)
					l.mu.Unlock()
				}
			default:
				l.fault(r.name, lines.Text())
			}
		}
		if err := r.cmd.Wait(); err != nil {
			l.fault(r.name, err.Error())
		} else if !done {
			l.fault(r.name, "ended without a word")
		}
		if !ready {
			close(r.ready)
		}
	}()
	return nil
}

func (l *Load) fault(who, what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.report.Errors) < maxErrors {
		l.report.Errors = append(l.report.Errors, who+": "+strings.TrimPrefix(what, "error "))
	}
}

// maxErrors is the maximum number of errors that are recorded, because one fault can cause many errors.
const maxErrors = 200

// Ready waits until all jobs have started their operations, at most for the duration patience.
func (l *Load) Ready(patience time.Duration) error {
	limit := time.After(patience)
	for _, r := range l.jobs {
		select {
		case <-r.ready:
		case <-limit:
			return fmt.Errorf("start load: %s has not started its operations after %s: %s", r.name, patience, r.where())
		}
	}
	return nil
}

// Errors returns the errors that were reported so far.
func (l *Load) Errors() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.report.Errors)
}

// Gaps returns the gaps that were reported so far.
func (l *Load) Gaps() []Gap {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.report.Gaps)
}

// Stop makes the jobs check everything once more and end, and returns the results. A job that has not ended after the
// duration patience is reported as an error.
func (l *Load) Stop(patience time.Duration) Report {
	for _, r := range l.jobs {
		r.stdin.Close()
	}
	limit := time.After(patience)
	for _, r := range l.jobs {
		select {
		case <-r.over:
		case <-limit:
			expired := make(chan time.Time)
			close(expired)
			limit = expired
			l.fault(r.name, fmt.Sprintf("hangs, %s after it should end: %s", patience, r.where()))
		}
	}
	l.Kill()
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.SortFunc(l.report.Gaps, func(a, b Gap) int { return int(a.Start - b.Start) })
	return l.report
}

// Kill kills the jobs that are still running, with their children. It does not wait for their end, because a process
// may be blocked in the mount.
func (l *Load) Kill() {
	for _, r := range l.jobs {
		select {
		case <-r.over:
		default:
			syscall.Kill(-r.cmd.Process.Pid, syscall.SIGKILL)
		}
	}
}

// where returns, as text, the kernel stacks of the threads of the job and its children that wait in the mount.
func (r *running) where() string {
	var waits []string
	threads, _ := filepath.Glob("/proc/[0-9]*/task/[0-9]*")
	for _, t := range threads {
		stat, _ := os.ReadFile(filepath.Join(t, "stat"))
		_, rest, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(rest) // the first fields are state, parent and process group
		if len(fields) < 3 || fields[2] != strconv.Itoa(r.cmd.Process.Pid) || fields[0] == "Z" {
			continue
		}
		stack, _ := os.ReadFile(filepath.Join(t, "stack"))
		if s := string(stack); fields[0] == "D" || strings.Contains(s, "fuse_") {
			comm, _ := os.ReadFile(filepath.Join(t, "comm"))
			waits = append(waits, fmt.Sprintf("%s of %s (%s): %s", filepath.Base(t), strings.TrimSpace(string(comm)), fields[0],
				strings.Join(strings.Fields(s), " ")))
		}
	}
	if len(waits) == 0 {
		return "not in the mount"
	}
	return strings.Join(waits, "; ")
}
