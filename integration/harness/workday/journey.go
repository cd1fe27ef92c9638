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
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/integration/harness/torture"
)

// Journey is work in a mount that is interrupted repeatedly by killing all processes. After each kill, the session is
// resumed in a new state directory. The restored state is then compared with the ledger, with the checkpoint as stock
// git reads it, and with the result of the same steps on a plain file system.
type Journey struct {
	Binary  string // path of artifactfs
	Base    string // an empty directory for all files of the journey; its path must be short
	Remote  string // remote that is mounted
	Session string

	// Saved is the session remote. If it is "", the embedded session remote is used. Its path is passed to the next
	// state directory, and each kill ends a session.
	Saved string

	// Objects lists the object directories of bare repositories: that of the mounted remote and, unless the session
	// remote is embedded, that of the session remote.
	Objects []string
	Copy    string // path of the session remote's repository; "" if the session remote is embedded

	Flags    []string // flags of the mount command
	Seed     uint64
	Longest  time.Duration // maximum time from a mount until the next kill
	Interval time.Duration // interval of the checkpoint policy, plus an allowance for delays of a busy machine
	Log      func(format string, args ...any)

	rnd   *rand.Rand
	hops  int
	tally Tally
}

// Tally contains the results of a Journey.
type Tally struct {
	Kills    int
	Bare     int             // number of kills before the first checkpoint
	Found    map[Finding]int // number of restored states by the result of the oracle
	Recorded int             // number of restored states that are equal to their checkpoint as stock git reads it
	Promises int             // number of promises that were checked
	Steps    int             // number of steps that workers have made
	Lost     time.Duration   // longest time whose work was lost by one kill
	Behind   time.Duration   // maximum age of a ref update that was not restored
	Resume   []time.Duration
	Faults   []string
	Commits  []string // commits that branches named at some time before a kill
}

// Exact returns the number of restored states for which it is proved that they existed.
func (t Tally) Exact() int { return t.Found[Between] + t.Found[Moment] }

func (t Tally) String() string {
	return fmt.Sprintf("%d kills in %d steps: %d came back exactly (%d of between steps, %d of a moment within one), %d of several moments of a step, %d undecided, %d never were so; %d are as recorded, %d were before any checkpoint; "+
		"%d promises held; at most %s of work and %s of moved refs lost",
		t.Kills, t.Steps, t.Exact(), t.Found[Between], t.Found[Moment], t.Found[Blend], t.Found[Undecided], t.Found[Never],
		t.Recorded, t.Bare, t.Promises, t.Lost.Round(time.Millisecond), t.Behind.Round(time.Millisecond))
}

// hop is one state directory of a Journey, with its mount.
type hop struct {
	state, dir, ledger string
	id, session        string // name of the mount's home directory, and name of its session
	begin              State
	took               time.Duration
}

func (h *hop) beginning() string { return h.ledger + ".git" }
func (h *hop) repo() string      { return filepath.Join(h.state, "mounts", h.id, "session.git") }

// maxFaults is the number of faults after which Run ends.
const maxFaults = 20

// Run works in the mount and kills all processes the given number of times, and returns the results.
func (j *Journey) Run(ctx context.Context, kills int) (Tally, error) {
	j.rnd = rand.New(rand.NewPCG(j.Seed, 17))
	j.tally.Found = map[Finding]int{}
	h, err := j.mount(ctx, j.Saved)
	if err != nil {
		return j.tally, err
	}
	if h.begin, err = Look(ctx, h.dir); err != nil {
		return j.tally, err
	}
	fresh := h.begin
	defer func() { j.discard(ctx, h) }()
	for j.tally.Kills < kills {
		killed, err := j.work(ctx, h)
		if err != nil {
			return j.tally, err
		}
		from := j.Saved
		if from == "" {
			// If the kill was before the first checkpoint, there is no session repository.
			if from = h.repo(); !exists(filepath.Join(from, "HEAD")) {
				from = ""
			}
		}
		next, err := j.mount(ctx, from)
		if err != nil {
			return j.tally, fmt.Errorf("after kill %d: %w", j.tally.Kills, err)
		}
		faults := len(j.tally.Faults)
		if err := j.judge(ctx, h, next, killed); err != nil {
			return j.tally, err
		}
		if len(j.tally.Faults) >= maxFaults {
			h = next
			return j.tally, nil
		}
		if j.Saved == "" {
			if err := j.discard(ctx, next); err != nil {
				j.tally.Faults = append(j.tally.Faults, fmt.Sprintf("kill %d (%s, then %s): %v", j.tally.Kills, h.state,
					next.state, err))
			}
			if next, err = j.mount(ctx, ""); err != nil {
				return j.tally, err
			}
			next.begin = fresh
		}
		if faults < len(j.tally.Faults) {
			j.Log("%s", next.warnings())
		} else { // a state directory with a fault is kept for examination
			if err := os.RemoveAll(h.state); err != nil {
				return j.tally, err
			}
		}
		h = next
	}
	return j.tally, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// afs runs artifactfs with the state directory of a hop and decodes its output as JSON into out.
func (j *Journey) afs(ctx context.Context, h *hop, out any, args ...string) error {
	cmd := exec.CommandContext(ctx, j.Binary, append([]string{"--state", h.state}, args...)...)
	cmd.Dir, cmd.Env = j.Base, gittest.Env()
	cmd.WaitDelay = time.Second // a daemon that the command has started may keep the output of the command open
	var stderr strings.Builder
	cmd.Stderr = &stderr
	printed, err := cmd.Output()
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return fmt.Errorf("artifactfs %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(printed, out); err != nil {
		return fmt.Errorf("artifactfs %s printed %.80q: %w", strings.Join(args, " "), printed, err)
	}
	return nil
}

// mount starts or resumes a session in a new state directory.
func (j *Journey) mount(ctx context.Context, saved string) (*hop, error) {
	j.hops++
	h := &hop{state: filepath.Join(j.Base, fmt.Sprintf("s%d", j.hops)),
		dir: filepath.Join(j.Base, fmt.Sprintf("m%d", j.hops)), ledger: filepath.Join(j.Base, fmt.Sprintf("l%d", j.hops))}
	session := j.Session
	if j.Saved == "" && saved == "" {
		session = fmt.Sprintf("%s%d", session, j.hops)
	} else if j.Saved == "" {
		session = filepath.Base(filepath.Dir(saved)) // the home directory has the name of the session
	}
	args := append([]string{"mount", j.Remote, h.dir, "--json", "--session", session}, j.Flags...)
	if saved != "" {
		args = append(args, "--session-remote", saved)
	}
	start := time.Now()
	var reply struct{ ID string }
	if err := j.afs(ctx, h, &reply, args...); err != nil {
		j.discard(ctx, h)
		return nil, err
	}
	h.id, h.session, h.took = reply.ID, session, time.Since(start)
	return h, nil
}

// work runs a worker in the mount until all processes are killed. It returns the time of the kill.
func (j *Journey) work(ctx context.Context, h *hop) (killed time.Time, err error) {
	// this command waits until the git directory exists
	if _, err := run(ctx, h.dir, nil, "git", "rev-parse", "--git-dir"); err != nil {
		return killed, err
	}
	if err := keepBeginning(ctx, h.dir, filepath.Join(h.state, "mounts", h.id, "git"), h.beginning()); err != nil {
		return killed, fmt.Errorf("save state at the beginning: %w", err)
	}
	w, err := Start(Options{Dir: h.dir, Ledger: h.ledger, Program: []string{j.Binary, "--state", h.state},
		Seed: j.rnd.Uint64(), Pause: 400 * time.Millisecond})
	if err != nil {
		return killed, err
	}
	wait := time.Duration(j.rnd.Int64N(int64(j.Longest)))
	select {
	case <-time.After(wait):
	case <-ctx.Done():
	}
	ended := w.ended()
	killed = time.Now()
	victim := torture.Victim{State: h.state, Command: "worker"}
	for _, p := range victim.Processes() {
		syscall.Kill(p.PID, syscall.SIGKILL)
	}
	w.Kill()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		left := victim.Processes()
		if len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			return killed, fmt.Errorf("kill daemon: processes %v still run", left)
		}
		for _, p := range left {
			syscall.Kill(p.PID, syscall.SIGKILL)
		}
	}
	// the worker must not end before the kill; after the kill it may end, because git finds no repository in a mount
	// without a daemon
	if ended {
		j.tally.Faults = append(j.tally.Faults, "the worker ended: "+w.stderr.String())
	}
	if err := unix.Unmount(h.dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		return killed, fmt.Errorf("unmount %s: %w", h.dir, err)
	}
	j.tally.Kills++
	return killed, ctx.Err()
}

// judge compares the restored state of after with the ledger of before, and records faults.
func (j *Journey) judge(ctx context.Context, before, after *hop, killed time.Time) error {
	ledger, err := ReadLedger(before.ledger)
	if err != nil {
		return err
	}
	ledger = alive(ledger, killed)
	if len(ledger) == 0 || ledger[0].Begins {
		ledger = slices.Insert(ledger, 0, Entry{Step: "begin", State: before.begin})
	}
	state, err := Look(ctx, after.dir)
	after.begin = state
	if err != nil {
		j.tally.Faults = append(j.tally.Faults, err.Error())
		return nil
	}
	var log struct {
		Checkpoints []struct {
			ID, Tree, Head, Branch string
		}
	}
	if err := j.afs(ctx, after, &log, "session", "log", after.dir, "--json"); err != nil {
		return err
	}
	// this command fails if a ref names an object that does not exist
	if _, err := run(ctx, after.dir, nil, "git", "for-each-ref", "--format=%(objecttype)"); err != nil {
		j.tally.Faults = append(j.tally.Faults, fmt.Sprintf("kill %d (%s, then %s): %v", j.tally.Kills, before.state,
			after.state, err))
	}
	s := Saved{State: state, Tree: state.Tree, Head: state.Head, Branch: trimHeads(state.Branch)}
	if len(log.Checkpoints) > 0 {
		p := log.Checkpoints[0]
		s.ID, s.Time, s.Head, s.Branch = p.ID, moment(p.ID), p.Head, p.Branch
		if s.Tree, err = filesOfCheckpoint(ctx, after.dir, p.Tree); err != nil {
			return err
		}
	} else {
		j.tally.Bare++
	}
	v := Judge(ledger, s, Limits{Killed: killed, Interval: j.Interval, Local: j.Saved == ""})
	finding, why, err := j.prove(ctx, before, ledger, s, &v)
	if err != nil {
		return err
	}
	j.tally.Found[finding]++
	if finding == Never {
		j.Log("ledger:\n%s", described(ledger))
	}
	for _, f := range v.Faults {
		j.Log("%s", f)
		j.tally.Faults = append(j.tally.Faults, fmt.Sprintf("kill %d (%s, then %s): %s", j.tally.Kills, before.state,
			after.state, f))
	}
	j.tally.Behind = max(j.tally.Behind, v.Behind)
	j.tally.Promises += v.Newer
	j.tally.Lost = max(j.tally.Lost, v.Lost)
	j.tally.Resume = append(j.tally.Resume, after.took)
	for _, e := range ledger {
		if !e.Begins {
			j.tally.Steps++
		}
	}
	for _, id := range Commits(ledger, killed.Add(-3*time.Second)) {
		if !slices.Contains(j.tally.Commits, id) {
			j.tally.Commits = append(j.tally.Commits, id)
		}
	}
	j.Log("kill %d: %d lines of the ledger, checkpoint %s %s %s, lost %v, refs %v, resumed in %v", j.tally.Kills,
		len(ledger), s.ID, finding, why, v.Lost.Round(time.Millisecond), v.Behind.Round(time.Millisecond),
		after.took.Round(time.Millisecond))
	return nil
}

// prove compares the restored state with the checkpoint as stock git reads it, and with a plain tree. It records
// differences as faults.
func (j *Journey) prove(ctx context.Context, before *hop, ledger []Entry, s Saved,
	v *Verdict) (Finding, string, error) {
	repo := j.Copy
	if repo == "" {
		repo = before.repo()
	}
	if s.ID != "" {
		id, was, err := recorded(ctx, repo, before.session)
		d := was.asRecorded(s.State)
		switch {
		case err != nil:
			return Undecided, "", err
		case id != s.ID:
			v.Faults = append(v.Faults, fmt.Sprintf("the newest checkpoint of %s is %s, and %s came back", repo, id, s.ID))
		case d != "":
			v.Faults = append(v.Faults, fmt.Sprintf("checkpoint %s is not what it recorded: %s", id, d))
		default:
			j.tally.Recorded++
		}
	}
	scratch, err := os.MkdirTemp("", "workday-*")
	if err != nil {
		return Undecided, "", err
	}
	defer os.RemoveAll(scratch)
	objects := filepath.Join(before.state, "mounts", before.id, "git", "objects")
	if err := dropDeadAlternates(objects); err != nil {
		return Undecided, "", err
	}
	o := oracle{scratch: scratch, beginning: before.beginning(), ledger: ledger,
		objects: append([]string{objects}, j.Objects...)}
	if exists(filepath.Join(before.repo(), "objects")) {
		o.objects = append(o.objects, filepath.Join(before.repo(), "objects"))
	}
	finding, why, err := o.ask(ctx, s, v.At)
	if err != nil {
		return Undecided, err.Error(), ctx.Err()
	}
	if finding == Never {
		v.Faults = append(v.Faults, fmt.Sprintf("checkpoint %s: %s", s.ID, why))
	}
	return finding, why, nil
}

// dropDeadAlternates removes the alternates of an object directory that do not exist, because git prints an error about
// each of them. One alternate is in the mount, whose daemon was killed.
func dropDeadAlternates(objects string) error {
	name := filepath.Join(objects, "info", "alternates")
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	kept := slices.DeleteFunc(lines(string(text)), func(dir string) bool { return !exists(dir) })
	return os.WriteFile(name, []byte(strings.Join(kept, "\n")+"\n"), 0o644)
}

// moment returns the time in a ULID. It has a resolution of milliseconds, and the times of commits have a resolution of
// seconds.
func moment(id string) time.Time {
	const digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
	var ms int64
	for _, c := range id[:min(len(id), 10)] {
		ms = ms<<5 | int64(max(0, strings.IndexRune(digits, c)))
	}
	return time.UnixMilli(ms)
}

// warnings returns the lines of the daemon's log with a level above info.
func (h *hop) warnings() string {
	text, _ := os.ReadFile(filepath.Join(h.state, "log", "daemon.log"))
	var kept strings.Builder
	for line := range strings.Lines(string(text)) {
		if !strings.Contains(line, "\tinfo\t") {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

// discard unmounts all mounts of a hop and removes its state directory.
func (j *Journey) discard(ctx context.Context, h *hop) error {
	err := j.afs(ctx, h, nil, "unmount", "--all")
	if err != nil {
		j.Log("%v", err)
		unix.Unmount(h.dir, unix.MNT_DETACH)
	}
	victim := torture.Victim{State: h.state, Command: "worker"}
	for deadline := time.Now().Add(30 * time.Second); len(victim.Processes()) > 0 &&
		time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
	}
	if len(j.tally.Faults) == 0 && err == nil {
		os.RemoveAll(h.state)
	}
	return err
}
