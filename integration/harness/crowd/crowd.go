// Package crowd runs many sessions that use one session remote at the same time, each in a separate state directory. It
// checks that nothing is lost, that no session blocks another, and that branches and tags of the repository's users are
// not changed.
package crowd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Options describes a run.
type Options struct {
	Program  string   // path of artifactfs
	Dir      string   // directory for state directories and mounts
	URL      string   // URL of the mounted repository, which is also the session remote
	Repo     string   // path of the same repository on disk
	Env      []string // environment of all processes
	Sessions int
	Killed   int           // number of sessions whose daemons are killed during the run
	For      time.Duration // duration of the run
	Rest     time.Duration // pause of each session between two commits
}

// Report contains the results of a run and the problems that were found.
type Report struct {
	Commits, Notes, Checkpoints, Kills int
	Diverged                           []string // refs below refs/afs/diverged/
	Failed                             []string // commands that failed, with their errors
	Lost                               []string // commits, notes and checkpoints that are missing on the session remote
	// branches and tags of the repository's users that were changed; "" if none
	Moved   string
	Fsck    string
	Slowest time.Duration // longest time of the final sync of one session
}

// Err returns an error that lists all problems, or nil if there are none.
func (r Report) Err() error {
	var errs []error
	for _, list := range [][]string{r.Diverged, r.Failed, r.Lost} {
		for _, text := range list {
			errs = append(errs, errors.New(text))
		}
	}
	if r.Moved != "" {
		errs = append(errs, fmt.Errorf("check branches and tags of users: changed: %s", r.Moved))
	}
	if r.Fsck != "" {
		errs = append(errs, fmt.Errorf("git fsck: %s", r.Fsck))
	}
	return errors.Join(errs...)
}

// worker runs one session and records what it has done.
type worker struct {
	o                Options
	name, state, dir string
	env              []string
	commits          []string
	checkpoints      []string
	noted            map[string]bool // commits on which the session wrote a note
	notes            int             // number of notes on the commit from which all sessions started
	begun            string
	failed           []string
	slowest          time.Duration
	kill, killed     bool
}

// Run runs the sessions and checks the session remote afterwards. Problems of sessions are in the Report. The error is
// not nil if the run itself could not be carried out.
func Run(ctx context.Context, o Options) (Report, error) {
	var r Report
	before, err := git(ctx, o.Repo, "for-each-ref", "--format=%(refname) %(objectname)", "refs/heads", "refs/tags")
	if err != nil {
		return r, err
	}
	base, err := git(ctx, o.Repo, "rev-parse", "HEAD")
	if err != nil {
		return r, err
	}
	var all []*worker
	var working sync.WaitGroup
	for i := range o.Sessions {
		w := &worker{o: o, name: fmt.Sprintf("s%02d", i), noted: map[string]bool{}, begun: base, kill: i < o.Killed}
		w.state, w.dir = filepath.Join(o.Dir, "state-"+w.name), filepath.Join(o.Dir, w.name)
		w.env = append(append(os.Environ(), o.Env...), "ARTIFACTFS_STATE="+w.state, "GIT_AUTHOR_NAME="+w.name,
			"GIT_AUTHOR_EMAIL="+w.name+"@localhost",
			"GIT_COMMITTER_NAME="+w.name, "GIT_COMMITTER_EMAIL="+w.name+"@localhost")
		all = append(all, w)
		working.Go(func() { w.work(ctx) })
	}
	working.Wait()
	for _, w := range all {
		r.Failed = append(r.Failed, w.failed...)
		r.Commits, r.Checkpoints, r.Notes = r.Commits+len(w.commits), r.Checkpoints+len(w.checkpoints),
			r.Notes+len(w.noted)+w.notes
		r.Slowest = max(r.Slowest, w.slowest)
		if w.killed {
			r.Kills++
		}
	}
	return r, r.look(ctx, o, all, before)
}

// look compares the session remote with the changes that the workers have made, and adds the differences to the report.
// before lists the branches and tags of users before the run.
func (r *Report) look(ctx context.Context, o Options, all []*worker, before string) error {
	reached, err := git(ctx, o.Repo, "rev-list", "--all")
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for id := range strings.SplitSeq(reached, "\n") {
		there[id] = true
	}
	list, err := git(ctx, o.Repo, "notes", "--ref=agent", "list")
	if err != nil {
		return err
	}
	noted := map[string]bool{}
	for line := range strings.SplitSeq(list, "\n") {
		_, commit, _ := strings.Cut(line, " ")
		noted[commit] = true
	}
	common, err := git(ctx, o.Repo, "notes", "--ref=agent", "show", all[0].begun)
	if err != nil {
		return err
	}
	for _, w := range all {
		for _, id := range append(slices.Clone(w.commits), w.checkpoints...) {
			if !there[id] {
				r.Lost = append(r.Lost, "commit "+id+" of session "+w.name)
			}
		}
		for id := range w.noted {
			if !noted[id] {
				r.Lost = append(r.Lost, "note on "+id+" of session "+w.name)
			}
		}
		if last := fmt.Sprintf("%q:%d", w.name, w.notes); w.notes > 0 && !strings.Contains(common, last) {
			r.Lost = append(r.Lost, "note "+last+" of session "+w.name+" on the commit that all began with")
		}
	}
	diverged, err := git(ctx, o.Repo, "for-each-ref", "refs/afs/diverged")
	if err != nil {
		return err
	}
	if diverged != "" {
		r.Diverged = strings.Split(diverged, "\n")
	}
	now, err := git(ctx, o.Repo, "for-each-ref", "--format=%(refname) %(objectname)", "refs/heads", "refs/tags")
	if err != nil {
		return err
	}
	plain := slices.DeleteFunc(strings.Split(now, "\n"),
		func(line string) bool { return strings.HasPrefix(line, "refs/heads/afs/") })
	if now = strings.Join(plain, "\n"); now != before {
		r.Moved = now
	}
	if out, err := git(ctx, o.Repo, "fsck", "--no-dangling", "--no-progress"); err != nil || out != "" {
		r.Fsck = fmt.Sprintf("%v: %s", err, out)
	}
	return nil
}

// work makes commits, notes and checkpoints for the duration of the run, and then waits until all of them are on the
// session remote.
func (w *worker) work(ctx context.Context) {
	if !w.mount(ctx) {
		return
	}
	start := time.Now()
	// on a busy machine one round may take long, so a worker that must be killed continues until that has happened
	for n := 1; (time.Since(start) < w.o.For || w.kill && !w.killed) && ctx.Err() == nil; n++ {
		if w.kill && !w.killed && time.Since(start) > w.o.For/2 && !w.die(ctx) {
			return
		}
		out, ok := w.run(ctx, "sh", "-ec",
			fmt.Sprintf("cd %q; echo %d >>%s.txt; git add -A; git commit -qm 'change %d'; git rev-parse HEAD", w.dir,
				n, w.name, n))
		if !ok {
			return
		}
		w.commits = append(w.commits, out)
		if _, ok := w.afs(ctx, "session", "note", "-C", w.dir, fmt.Sprintf(`{"session":%q,"change":%d}`, w.name, n)); ok {
			w.noted[out] = true
		}
		if _, ok := w.afs(ctx, "session", "note", "-C", w.dir, w.begun, fmt.Sprintf("{%q:%d}", w.name, n)); ok {
			w.notes = n
		}
		if n%4 == 1 {
			var p struct{ Commit string }
			if out, ok := w.afs(ctx, "checkpoint", w.dir, "--json"); ok && json.Unmarshal([]byte(out), &p) == nil {
				w.checkpoints = append(w.checkpoints, p.Commit)
			}
		}
		select {
		case <-time.After(w.o.Rest):
		case <-ctx.Done():
		}
	}
	began := time.Now()
	w.afs(ctx, "sync", w.dir, "--timeout", "5m")
	w.slowest = time.Since(began)
	w.afs(ctx, "unmount", "--all") // without mounts the daemon ends
}

func (w *worker) mount(ctx context.Context) bool {
	_, ok := w.afs(ctx, "mount", w.o.URL, w.dir, "--session", w.name, "--session-remote", "origin", "--wait", "git",
		"--prefetch", "none")
	return ok
}

// die kills all processes that serve the mount of the session, and then mounts the session again.
func (w *worker) die(ctx context.Context) bool {
	w.killed = true
	var st struct{ PID int }
	out, ok := w.afs(ctx, "status", w.dir, "--json")
	if !ok {
		return false
	}
	if err := json.Unmarshal([]byte(out), &st); err != nil {
		w.failed = append(w.failed, w.name+": status: "+err.Error())
		return false
	}
	group, err := syscall.Getpgid(st.PID)
	if err == nil {
		err = syscall.Kill(-group, syscall.SIGKILL)
	}
	if err != nil {
		w.failed = append(w.failed, w.name+": kill: "+err.Error())
		return false
	}
	for deadline := time.Now().Add(time.Minute); syscall.Kill(-group, 0) == nil && time.Now().Before(deadline); {
		time.Sleep(5 * time.Millisecond) // poll, because the processes are not children of this process
	}
	return w.mount(ctx)
}

func (w *worker) afs(ctx context.Context, args ...string) (string, bool) {
	return w.run(ctx, w.o.Program, args...)
}

// run runs a command and records its failure. It returns the output, and whether the command succeeded.
func (w *worker) run(ctx context.Context, name string, args ...string) (string, bool) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = "/", w.env
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err != nil {
		w.failed = append(w.failed, fmt.Sprintf("%s: %s: %v: %.400s", w.name, strings.Join(args, " "), err, stderr.String()))
	}
	return strings.TrimSpace(stdout.String()), err == nil
}

func git(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("git %s: %w: %s", args[0], err, exit.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}

// Summary returns the numbers of a report in one line.
func (r Report) Summary() string {
	counts := map[string]int{"commits": r.Commits, "notes": r.Notes, "checkpoints": r.Checkpoints, "kills": r.Kills}
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[what], what))
	}
	return strings.Join(parts, ", ") + fmt.Sprintf("; %d diverged, %d commands failed, %d lost; slowest sync %s",
		len(r.Diverged), len(r.Failed), len(r.Lost), r.Slowest.Round(time.Millisecond))
}
