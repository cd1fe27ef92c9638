package workday

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
)

// Options are the options of a worker.
type Options struct {
	Dir    string // working tree
	Ledger string // path of the ledger, to which the worker appends; it need not exist
	// command and arguments of the program that saves the tree, such as `artifactfs --state DIR`; if empty, nothing is
	// saved
	Program []string
	Seed    uint64        // seed of the random choices
	Steps   int           // number of steps; if 0, the worker continues until it is killed
	Pause   time.Duration // maximum pause between two steps
}

const workerVar = "ARTIFACTFS_WORKDAY" // environment variable that contains the Options in the process of a worker

// Main must be called at the start of a program that uses this package. In the process of a worker it does not return.
func Main() {
	spec := os.Getenv(workerVar)
	if spec == "" {
		return
	}
	os.Unsetenv(workerVar)
	var o Options
	err := json.Unmarshal([]byte(spec), &o)
	if err == nil {
		err = work(context.Background(), o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Worker is a running worker.
type Worker struct {
	cmd    *exec.Cmd
	stderr strings.Builder
}

// Start starts a worker.
func Start(o Options) (*Worker, error) {
	spec, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("start worker: %w", err)
	}
	w := &Worker{cmd: exec.Command("/proc/self/exe")}
	// name that ps shows for the process
	w.cmd.Args[0] = "workday"
	// a killed worker leaves its temporary files in this directory
	w.cmd.Env = append(gittest.Env(), workerVar+"="+string(spec), "TMPDIR="+filepath.Dir(o.Ledger))
	// not the tree: the worker changes its directory itself, because this process must not wait for the tree
	w.cmd.Dir, w.cmd.Stderr = "/", &w.stderr
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	w.cmd.WaitDelay = time.Second
	if err := w.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start worker: %w", err)
	}
	return w, nil
}

// Kill kills the worker and all processes that it has started.
func (w *Worker) Kill() {
	syscall.Kill(-w.cmd.Process.Pid, syscall.SIGKILL)
	w.cmd.Wait()
}

// ended reports whether the worker has ended by itself. It does not reap the process.
func (w *Worker) ended() bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, w.cmd.Process.Pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err == nil && info.Signo != 0
}

// Wait waits until a worker with a limited number of steps has ended.
func (w *Worker) Wait() error {
	if err := w.cmd.Wait(); err != nil {
		return fmt.Errorf("work: %w: %s", err, w.stderr.String())
	}
	return nil
}

// working is the state of a worker, in the process of the worker.
type working struct {
	Options
	ctx    context.Context
	rnd    *rand.Rand
	ledger ledger
	made   int // number of names that were created so far, used to create new names
	state  State
	since  time.Time // time from which the tree is in this state
}

func work(ctx context.Context, o Options) error {
	f, err := os.OpenFile(o.Ledger, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("work: %w", err)
	}
	defer f.Close()
	if err := os.Chdir(o.Dir); err != nil {
		return fmt.Errorf("work: %w", err)
	}
	w := &working{Options: o, ctx: ctx, rnd: rand.New(rand.NewPCG(o.Seed, 11)), ledger: ledger{f}}
	// starts with a number from the clock, so that names differ from those of earlier workers
	w.made = int(time.Now().Unix() % 1_000_000)
	if err := w.look("begin", ""); err != nil {
		return err
	}
	for n := 0; o.Steps == 0 || n < o.Steps; n++ {
		if err := w.step(); err != nil {
			return fmt.Errorf("work: %w", err)
		}
		if o.Pause > 0 {
			time.Sleep(time.Duration(w.rnd.Int64N(int64(o.Pause))))
		}
	}
	return nil
}

// look determines the State after a step and adds it to the ledger.
func (w *working) look(step, fault string) error {
	s, err := Look(w.ctx, w.Dir)
	if err != nil {
		fault += err.Error()
		s = w.state
	}
	w.state, w.since = s, time.Now()
	return errors.Join(w.ledger.add(Entry{At: w.since, Step: step, State: s, Fault: fault}), err)
}

func (w *working) step() error {
	if len(w.Program) > 0 && w.rnd.IntN(6) == 0 {
		return w.save()
	}
	name, script := w.choose()
	e := Entry{At: time.Now(), Step: name, Begins: true, Script: script, Moment: time.Now().Unix()}
	if err := w.ledger.add(e); err != nil {
		return err
	}
	out, err := e.command(w.ctx, w.Dir).CombinedOutput()
	if err == nil { // an error is not a fault, because git may refuse a command
		out = nil
	}
	return w.look(name, trouble(string(out)))
}

// command returns the shell command of a step. It has the same effect in all trees with the same state.
func (e Entry) command(ctx context.Context, dir string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", "-c", e.Script)
	at := fmt.Sprintf("%d +0000", e.Moment)
	cmd.Dir, cmd.Env = dir, append(gittest.Env(), "GIT_EDITOR=true", "GIT_SEQUENCE_EDITOR=true", "GIT_MERGE_AUTOEDIT=no",
		"GIT_AUTHOR_DATE="+at, "GIT_COMMITTER_DATE="+at)
	return cmd
}

// trouble returns the first line of a command's output that reports damage, or "" if there is none. Other lines are
// normal, because git may refuse a command.
func trouble(said string) string {
	for line := range strings.Lines(said) {
		for _, sign := range []string{"nput/output error", "tale file handle", "not connected", "corrupt", "bad object",
			"unable to read", "is missing", "invalid object", "not a valid object", "could not parse", "lost"} {
			if strings.Contains(line, sign) {
				return strings.TrimSpace(line)
			}
		}
	}
	return ""
}

// save runs a command of the program that saves the tree, and then adds a promise to the ledger.
func (w *working) save() error {
	way := [][]string{{"checkpoint", w.Dir, "--json"}, {"checkpoint", w.Dir, "--json", "--sync"},
		{"sync", w.Dir, "--json"}}[w.rnd.IntN(3)]
	name := strings.Join(append(way[:1:1], way[2:]...), " ")
	cmd := exec.CommandContext(w.ctx, w.Program[0], append(append([]string(nil), w.Program[1:]...), way...)...)
	cmd.Dir, cmd.Env = filepath.Dir(w.Dir), gittest.Env()
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	e := Entry{At: time.Now(), Step: name, State: w.state, Since: w.since}
	if err != nil {
		e.Fault = fmt.Sprintf("%s: %v: %s", name, err, strings.TrimSpace(stderr.String()))
		return w.ledger.add(e)
	}
	var said struct {
		ID   string `json:"id"`
		Tree string `json:"tree"`
		Made bool   `json:"made"`
	}
	if err := json.Unmarshal(out, &said); err != nil {
		e.Fault = fmt.Sprintf("%s printed %.80q: %v", name, out, err)
	}
	e.Promise, e.Synced = true, way[0] == "sync" || len(way) == 4
	if way[0] == "checkpoint" {
		e.Checkpoint = said.ID
		switch files, err := filesOfCheckpoint(w.ctx, w.Dir, said.Tree); {
		case err != nil: // the daemon may have been killed after the command had returned
			e.At, e.Fault = time.Now(), fmt.Sprintf("%s: %v", name, err)
		case files != w.state.Tree:
			e.Fault = fmt.Sprintf("%s: tree %s, but stock git makes %s of the files", name, files, w.state.Tree)
		}
	}
	return w.ledger.add(e)
}
