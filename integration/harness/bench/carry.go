package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/integration/harness/torture"
	"github.com/artifactfs/artifactfs/integration/harness/workday"
)

// The session benchmarks push changes to session remotes, resume sessions from there, and check the results. Each
// measured value is printed beside its goal, and a wrong result makes the run fail.

type carryOptions struct {
	only     *regexp.Regexp
	kills    int
	kinds    string
	outage   time.Duration
	files    int
	forge    string
	seed     uint64
	crowd    int
	crowdFor time.Duration
	repos    []string // repositories whose trees the session benchmark "link" joins into one repository
}

// carryFlags declares the flags that only the mode -session has. The result is reports whether the user has passed
// -session.
func carryFlags() (o *carryOptions, is *bool) {
	o = &carryOptions{}
	is = flag.Bool("session", false,
		"measure how sessions are pushed to session remotes and resumed from there (-only commit|kills|checkpoints|outage|forks|resume|link|seed|crowd)")
	flag.DurationVar(&o.outage, "outage", 30*time.Second,
		"with -session: time during which the session remote is unreachable")
	flag.IntVar(&o.files, "session-files", 110_000, "with -session: number of files of the large repository")
	flag.IntVar(&o.crowd, "crowd", 20,
		"with -session: number of sessions that use one session remote at the same time; a quarter of them are killed")
	flag.DurationVar(&o.crowdFor, "crowd-for", time.Minute, "with -session: time during which these sessions work")
	flag.StringVar(&o.kinds, "kinds", "http,embedded,path",
		"with -session: kinds of session `remotes` for the benchmark that kills all processes")
	flag.StringVar(&o.forge, "forge", "",
		"with -session: `source` directory of gitea that contains the built program gitea, which then is one more session remote")
	return o, is
}

// rig is the environment of one session benchmark: a remote, a state directory, and directories for other files.
type rig struct {
	*bench
	dir    string
	state  string
	repo   string // path of the bare repository that is mounted
	server *gittest.Server
	url    string
	env    []string
	joined []string // repositories whose trees are joined into repo; if empty, repo is generated
	places int
	table  *tabwriter.Writer
	failed *bool
}

// carries runs the session benchmarks.
func (b *bench) carries(o carryOptions) error {
	table := tabwriter.NewWriter(os.Stdout, 2, 8, 2, ' ', 0)
	fmt.Fprintf(table, "session\twhat\tmeasured\tgoal\t\n")
	failed := false
	for i, c := range []struct {
		name  string
		files int
		rtt   time.Duration
		run   func(*rig, carryOptions) error
	}{
		{"commit", 2000, 0, (*rig).commits},
		{"kills", 300, 0, (*rig).kills},
		{"checkpoints", o.files, 0, (*rig).checkpoints},
		{"outage", 2000, 0, (*rig).outage},
		{"forks", o.files, 0, (*rig).forks},
		{"resume", 5000, b.rtt, (*rig).resume},
		{"link", o.files, b.rtt, (*rig).links},
		{"seed", 5000, b.rtt, (*rig).seeding},
		{"crowd", 500, 0, (*rig).crowd},
	} {
		if !o.only.MatchString(c.name) {
			continue
		}
		r := &rig{bench: b, dir: filepath.Join(b.work, fmt.Sprint("r", i)), table: table, failed: &failed}
		if c.name == "link" {
			r.joined = o.repos
		}
		if err := r.run(c.files, c.rtt, func() error { return c.run(r, o) }); err != nil {
			log.Printf("%s: %v", c.name, err)
			r.printLog()
			failed = true
		}
		table.Flush()
	}
	if failed {
		return errors.New("run session benchmarks: a result is wrong")
	}
	return nil
}

// run creates the remote and the state directory, calls do, and then removes both.
func (r *rig) run(files int, rtt time.Duration, do func() error) (err error) {
	r.state, r.repo = filepath.Join(r.dir, "state"), filepath.Join(r.dir, "origin", "r.git")
	if err := os.MkdirAll(filepath.Dir(r.repo), 0o755); err != nil {
		return err
	}
	make := func() error { return makeFlat(r.repo, files) }
	if len(r.joined) > 0 {
		make = func() error { return join(r.repo, r.joined) }
	}
	if err := make(); err != nil {
		return fmt.Errorf("make repository: %w", err)
	}
	if r.server, err = gittest.Serve(gittest.ServerOptions{Root: filepath.Dir(r.repo), RTT: rtt, Stderr: os.Stderr,
		Cheap: files > 10_000}); err != nil {
		return err
	}
	defer r.server.Close()
	r.url = r.server.URL("r.git")
	defer func() { err = errors.Join(err, r.end(r.state)) }()
	return do()
}

// end unmounts all mounts of a state directory and waits until its daemon has ended.
func (r *rig) end(state string) error {
	out, err := r.command(state, "unmount", "--all", "--timeout", "1s").CombinedOutput()
	var exit *exec.ExitError
	// exit status 5: some refs were not pushed, which the benchmark may cause
	if errors.As(err, &exit) && exit.ExitCode() == 5 {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("unmount --all: %w: %.300s", err, out)
	}
	victim := torture.Victim{State: state, Command: "worker"}
	for deadline := time.Now().Add(time.Minute); len(victim.Processes()) > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("end daemon: processes still run: %v", victim.Processes())
		}
	}
	return nil
}

// printLog prints the end of the daemon's log to stderr, without lines of the level info. It is called after a
// benchmark has failed.
func (r *rig) printLog() {
	text, _ := os.ReadFile(filepath.Join(r.state, "log", "daemon.log"))
	text = regexp.MustCompile(`(?m)^\S+\sinfo\s.*\n`).ReplaceAll(text, nil)
	os.Stderr.Write(text[max(0, len(text)-8<<10):])
}

// makeFlat adds small files, in directories as makeRepository creates them, and a few commits to a bare repository.
func makeFlat(path string, files int) error {
	r, err := gittest.New(path, gittest.RepoOptions{})
	if err != nil {
		return err
	}
	all := map[string]gittest.File{".gitignore": {Data: []byte("build/\n")}}
	for i := range files {
		all[filePath(i)] = gittest.File{Data: fmt.Appendf(nil, "file %d\n%s\n", i, strings.Repeat("some text of it ", 1+i%9))}
	}
	if _, err := r.Commit("main", all, "All files"); err != nil {
		return err
	}
	_, err = r.History(20)
	return err
}

func (r *rig) path(what string) string {
	r.places++
	return filepath.Join(r.dir, fmt.Sprint(what, r.places))
}

func (r *rig) command(state string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(r.bin, "artifactfs"), append([]string{"--state", state}, args...)...)
	cmd.Dir, cmd.Env = r.dir, append(gittest.Env(), r.env...)
	cmd.WaitDelay = time.Second // a daemon that the command has started may keep the output of the command open
	return cmd
}

// afs runs artifactfs with a state directory and returns how long this took. Unless into is nil, it decodes the output
// as JSON into the value that into points to.
func (r *rig) afs(state string, into any, args ...string) (time.Duration, error) {
	if into != nil {
		args = append(args, "--json")
	}
	cmd := r.command(state, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	start := time.Now()
	err := cmd.Run()
	took := time.Since(start)
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return took, fmt.Errorf("artifactfs %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	if into == nil {
		return took, nil
	}
	if err := json.Unmarshal(stdout.Bytes(), into); err != nil {
		return took, fmt.Errorf("artifactfs %s printed %.80q: %w", strings.Join(args, " "), stdout.Bytes(), err)
	}
	return took, nil
}

// sh runs a shell script, which may call stock git, in a directory, and returns its output.
func (r *rig) sh(dir, script string) (string, error) {
	cmd := exec.Command("sh", "-ec", script)
	cmd.Dir, cmd.Env = dir, append(append(gittest.Env(), "GIT_EDITOR=true"), r.env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%.200s: %w: %.300s", script, err, out)
	}
	return strings.TrimSuffix(string(out), "\n"), err
}

// row prints a measured value beside its goal. If ok is false, it marks the value as wrong, and the run fails.
func (r *rig) row(what, detail, measured, goal string, ok bool) {
	verdict := ""
	if !ok {
		verdict = "MISSED"
	}
	fmt.Fprintf(r.table, "%s\t%s\t%s\t%s\t%s\n", what, detail, measured, goal, verdict)
	r.table.Flush()
}

// wrong records an error that makes the run fail.
func (r *rig) wrong(format string, args ...any) {
	log.Printf(format, args...)
	*r.failed = true
}

// carriedMount and the next two types hold the fields of the JSON output of artifactfs that the benchmarks use.
type carriedMount struct {
	ID, Dir, Session string
	Resumed          bool
}

type madeCheckpoint struct {
	ID, Commit, Tree, Head, Branch string
	Made, Synced                   bool
	Changed, Bytes                 int64
	Paused                         float64 `json:"paused_ms"`
	Took                           float64 `json:"took_ms"`
}

type carriedStatus struct {
	Network    struct{ Requests, Blobs int64 }
	Operations struct{ Total int64 }
	Session    struct {
		Mode, Error string
		Pending     int64
		Checkpoints int64
		Diverged    []string
	}
}

func (r *rig) status(state, dir string) (carriedStatus, error) {
	var st carriedStatus
	_, err := r.afs(state, &st, "status", dir)
	return st, err
}

func (r *rig) mount(state string, flags ...string) (carriedMount, time.Duration, error) {
	var m carriedMount
	took, err := r.afs(state, &m, append([]string{"mount", r.url, r.path("m")}, flags...)...)
	return m, took, err
}

func (r *rig) look(dir string) (workday.State, error) { return workday.Look(context.Background(), dir) }

// receiver creates a session remote that is served over HTTP. If base is true, the session remote contains the history
// of the mounted remote; otherwise it is empty.
func (r *rig) receiver(base bool, rtt time.Duration) (*gittest.Receiver, *gittest.Server, string, error) {
	dir := r.path("remote")
	c, err := gittest.NewReceiver(filepath.Join(dir, "s.git"), gittest.RepoOptions{})
	if err != nil {
		return nil, nil, "", err
	}
	if base {
		if _, err := r.sh(c.Path, "git fetch -q "+r.repo+" 'refs/heads/*:refs/heads/*'"); err != nil {
			return nil, nil, "", err
		}
	}
	s, err := gittest.Serve(gittest.ServerOptions{Root: dir, RTT: rtt, Cheap: true, Stderr: os.Stderr})
	if err != nil {
		return nil, nil, "", err
	}
	return c, s, s.URL("s.git"), nil
}

// refAt returns the value of a ref of a repository. It reads the files of the repository instead of running git,
// because it is called often.
func refAt(dir, ref string) string {
	if id, err := os.ReadFile(filepath.Join(dir, ref)); err == nil {
		return strings.TrimSpace(string(id))
	}
	packed, _ := os.ReadFile(filepath.Join(dir, "packed-refs"))
	for line := range strings.Lines(string(packed)) {
		if id, name, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name == ref {
			return id
		}
	}
	return ""
}

// await waits until a ref of the repository at dir has the value want, at most for the duration patience. It returns
// how long that took.
func await(dir, ref, want string, patience time.Duration) (time.Duration, error) {
	start := time.Now()
	for refAt(dir, ref) != want {
		if time.Since(start) > patience {
			return 0, fmt.Errorf("%s of %s is %q after %s, want %s", ref, dir, refAt(dir, ref), patience, want)
		}
		time.Sleep(time.Millisecond)
	}
	return time.Since(start), nil
}

// checkRepo returns an error if stock git finds damage in a repository (git fsck).
func (r *rig) checkRepo(dir string) error {
	out, err := r.sh(dir, "git fsck --full --no-dangling --no-progress 2>&1 | grep -v '^notice: ' || true")
	if err == nil && out != "" {
		err = fmt.Errorf("git fsck of %s: %.300s", dir, out)
	}
	return err
}

// checkOrder returns an error unless a branch of c was moved to the given commits in this order, to each of them at
// most once, and to the last one at the end.
func checkOrder(c *gittest.Receiver, ref string, commits []string) error {
	all, err := c.Updates()
	if err != nil {
		return err
	}
	var last object.ID
	at := 0
	for _, u := range all {
		if u.Ref != ref {
			continue
		}
		if !last.IsZero() && u.Old != last {
			return fmt.Errorf("%s went from %s to %s, but was %s", ref, u.Old, u.New, last)
		}
		i := slices.Index(commits[at:], u.New.String())
		if i < 0 {
			return fmt.Errorf("%s was moved to %s out of order, or twice", ref, u.New)
		}
		at, last = at+i+1, u.New
	}
	if last.String() != commits[len(commits)-1] {
		return fmt.Errorf("%s ends at %s", ref, last)
	}
	return nil
}
