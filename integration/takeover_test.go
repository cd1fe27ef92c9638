package integration

import (
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
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/integration/harness/gittest"
	"github.com/artifactfs/artifactfs/integration/harness/torture"
)

func init() { torture.Main() }

// takeoverKills is how often the worker is killed under the whole load; `make bench BENCH=-takeover` does it more
// often.
var takeoverKills = envInt("AFS_TAKEOVER_KILLS", 6)

// victim returns the world's daemon as the target of signals.
func (w *world) victim() torture.Victim { return torture.Victim{State: w.state, Command: "worker"} }

// daemonStatus returns the daemon's status.
func (w *world) daemonStatus() control.DaemonStatus {
	w.Helper()
	var st control.Status
	if out := w.ok("status", "--json"); json.Unmarshal([]byte(out), &st) != nil {
		w.Fatalf("status printed %q", out)
	}
	return st.Daemon
}

// tortured is a mount under load.
type tortured struct {
	*world
	m      mounted
	plain  string
	load   *torture.Load
	rnd    *rand.Rand
	before control.DaemonStatus
	blows  []torture.Blow
	told   int // number of errors of the load that the test has reported
	since  time.Time
}

// tortureFiles creates a repository with files for all kinds of jobs.
func tortureFiles(w *world, r *gittest.Repo) {
	w.Helper()
	must[object.ID](w)(r.Sized(30, 30))
	files := map[string]gittest.File{"big": {Data: randomBytes(3 << 20)}, ".gitignore": {Data: []byte("/load/\n")}}
	for i := range 1500 {
		files[fmt.Sprintf("wide/entry-%04d", i)] = gittest.File{Data: fmt.Appendf(nil, "%d\n", i%100)}
	}
	for i := range 10 {
		files[fmt.Sprintf("%s/file%d", torture.WorkDir, i)] = gittest.File{Data: []byte(lines(20, "work"))}
	}
	w.commit(r, files)
	w.commit(r, map[string]gittest.File{torture.WorkDir + "/file0": {Data: []byte(lines(30, "more work"))}})
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

// torture mounts and starts a load in the mount.
func (w *world) torture(jobs []string, flags ...string) *tortured {
	w.Helper()
	r := w.repo("torture.git", object.SHA1)
	tortureFiles(w, r)
	s := w.serve(gittest.ServerOptions{RTT: 2 * time.Millisecond})
	x := &tortured{world: w, m: w.mount(s.URL("torture.git"), flags...), plain: w.clone("file://" + r.Path),
		rnd: rand.New(rand.NewPCG(uint64(modelSeed), 3))}
	x.since = time.Now()
	x.begin(jobs)
	x.Logf("the load has begun after %v", time.Since(x.since).Round(time.Second))
	x.before = w.daemonStatus()
	if x.before.Supervisor == 0 {
		w.Fatalf("the daemon has no supervisor: %+v", x.before)
	}
	return x
}

func (x *tortured) begin(jobs []string) {
	x.Helper()
	scratch := x.place("scratch")
	check2(x, os.Mkdir(scratch, 0o755))
	x.load = must[*torture.Load](x)(torture.Start(torture.Options{Mount: x.m.Dir, Plain: x.plain, Scratch: scratch,
		Jobs: jobs, Seed: uint64(modelSeed)}))
	x.Cleanup(x.load.Kill)
	check2(x, x.load.Ready(patience))
}

func check2(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// allJobs returns one job of each kind, and the given number of readers.
func allJobs(readers int) []string {
	jobs := torture.Jobs()
	for range readers {
		jobs = append(jobs, "reader")
	}
	return jobs
}

// calm fails the test if a program of the load has reported an error since the previous call.
func (x *tortured) calm(what string) {
	x.Helper()
	all := x.load.Errors()
	for _, e := range all[x.told:] {
		x.Errorf("%s: a program in the mount failed: %s", what, e)
	}
	x.told = len(all)
}

// broken reports whether a program of the load has failed, which makes it useless to continue.
func (x *tortured) broken() bool { return len(x.load.Errors()) > 0 }

// strike sends signals to the worker.
func (x *tortured) strike(n int, sig syscall.Signal, longest time.Duration) {
	x.Helper()
	blows, err := x.victim().Strike(n, sig, longest, x.rnd, x.broken)
	x.blows = append(x.blows, blows...)
	if err == nil && len(blows) > 0 {
		_, err = x.victim().Await(patience, blows[len(blows)-1].PID)
	}
	if err != nil {
		x.Errorf("send signal %s: %v", sig, err)
	}
	x.works(sig.String())
	x.Logf("%v: %d times, %v after the start", sig, len(blows), time.Since(x.since).Round(time.Second))
}

// works waits until a lookup in the mount is answered.
func (x *tortured) works(what string) {
	x.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := os.Lstat(x.m.path(fmt.Sprint("nothing", x.rnd.Uint64())))
		done <- err
	}()
	select {
	case err := <-done:
		if !errors.Is(err, os.ErrNotExist) {
			x.Errorf("%s: got %v, want no such file", what, err)
		}
	case <-time.After(patience):
		x.Errorf("%s: a lookup in the mount is not answered", what)
	}
	x.calm(what)
}

// end stops the load, reports, and compares the tree before and after it is mounted again.
func (x *tortured) end() torture.Report {
	x.Helper()
	report := x.load.Stop(patience)
	x.calm("at the end")
	log, _ := os.ReadFile(x.logFile())
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, "serve request") {
			x.Errorf("log of the daemon has the line: %s", line)
		}
	}
	x.Logf("%d blows, %v", len(x.blows), report.Done)
	if stalls := torture.Stalls(report.Gaps, torture.Moments(x.blows)); len(stalls) > 0 && report.Done["meter"] > 0 {
		slices.Sort(stalls)
		x.Logf("stalls: median %v, longest %v", stalls[len(stalls)/2].Round(time.Millisecond),
			stalls[len(stalls)-1].Round(time.Millisecond))
	}
	return report
}

// Programs in a mount are not affected if the worker is killed, crashes, hangs, or is replaced.
func TestTakeover(t *testing.T) {
	w := newWorld(t)
	version := filepath.Join(w.root, "next", "artifactfs")
	check(t, os.Mkdir(filepath.Dir(version), 0o755))
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-ldflags", "-X main.version=next", "-o", version,
		"../cmd/artifactfs").CombinedOutput(); err != nil {
		t.Fatalf("go build failed: %v\n%s", err, out)
	}
	x := w.torture(allJobs(8))
	x.strike(takeoverKills, syscall.SIGKILL, 400*time.Millisecond)
	for _, sig := range []syscall.Signal{syscall.SIGABRT, syscall.SIGSEGV, syscall.SIGQUIT, syscall.SIGBUS,
		syscall.SIGSTOP} {
		x.strike(1, sig, 200*time.Millisecond)
	}
	st := w.daemonStatus()
	if got := st.Takeovers - x.before.Takeovers; got < len(x.blows) {
		t.Errorf("status reports %d takeovers after %d kills", got, len(x.blows))
	}
	if st.Reason == "" || st.Supervisor != x.before.Supervisor {
		t.Errorf("status after the takeovers: got %+v, before it was %+v", st, x.before)
	}
	x.upgrade(version, "next")
	x.failedUpgrade()
	x.strike(3, syscall.SIGKILL, 200*time.Millisecond) // the upgraded worker can be killed, too
	x.orphan()
	x.strike(2, syscall.SIGKILL, 200*time.Millisecond)
	x.end()
	if t.Failed() {
		return
	}
	if st := x.m.status(); st.State != control.StateMounted {
		t.Errorf("status after the upgrade: got %+v", st)
	}
	want := w.faces(x.m.path("load"))
	w.unmount(x.m)
	w.ok("mount", x.m.Remote, x.m.Dir)
	w.sameFaces("after unmount and mount", w.faces(x.m.path("load")), want)
}

// upgrade replaces the program by another build.
func (x *tortured) upgrade(executable, version string) {
	x.Helper()
	old := x.victim().Worker()
	start := time.Now()
	cmd := exec.Command(executable, "--state", x.state, "daemon", "--upgrade")
	cmd.Dir = x.root
	if out, err := cmd.CombinedOutput(); err != nil {
		x.Errorf("daemon upgrade failed: %v: %s", err, out)
		return
	}
	x.Logf("upgrade: %v", time.Since(start).Round(time.Millisecond))
	if st := x.daemonStatus(); st.Version != version || st.PID == old || st.UpgradeFailed != "" {
		x.Errorf("status after the upgrade: got %+v", st)
	}
	x.works("upgrade")
}

// failedUpgrade upgrades to executables that cannot serve: the previous worker continues, and status reports the cause.
func (x *tortured) failedUpgrade() {
	x.Helper()
	source, crasher := filepath.Join(x.root, "crasher.go"), filepath.Join(x.root, "crasher")
	check2(x, os.WriteFile(source, []byte(crasherSource), 0o644))
	if out, err := exec.Command("go", "build", "-o", crasher, source).CombinedOutput(); err != nil {
		x.Fatalf("go build failed: %v\n%s", err, out)
	}
	fake := filepath.Join(x.root, "fake")
	check2(x, os.WriteFile(fake, []byte("#!/bin/sh\nexit 7\n"), 0o755))
	for what, executable := range map[string]string{"ends at once": fake, "crashes when it shall serve": crasher} {
		was := x.daemonStatus()
		client := must[*control.Client](x)(control.Dial(x.Context(), control.DaemonSocket(x.state)))
		err := client.Upgrade(x.Context(), control.UpgradeRequest{Executable: executable})
		x.Logf("upgrade to what %s: %v", what, err)
		x.until("status reports the failed upgrade",
			func() bool { return strings.Contains(x.daemonStatus().UpgradeFailed, executable) })
		if st := x.daemonStatus(); st.Version != was.Version {
			x.Errorf("status after an upgrade to an executable that %s: %+v", what, st)
		}
		x.works("an upgrade to what " + what)
	}
}

// crasherSource is the source of a program that starts like a worker, and exits as soon as the supervisor orders it to
// serve.
const crasherSource = `package main

import (
	"os"
	"strings"
	"syscall"
)

func main() {
	syscall.Write(3, []byte("X_WAITING=1\\nX_VERSION=crasher"))
	b := make([]byte, 1<<16)
	for {
		n, _, _, _, err := syscall.Recvmsg(3, b, make([]byte, 4096), 0)
		if err != nil || n == 0 {
			os.Exit(1)
		}
		if strings.Contains(string(b[:n]), "START=1") {
			panic("a successor that crashes")
		}
	}
}
`

// orphan kills only the supervisor. There is no service manager, so the worker starts another supervisor.
func (x *tortured) orphan() {
	x.Helper()
	old := x.victim().Supervisor()
	if old == 0 {
		x.Error("the daemon has no supervisor")
		return
	}
	check2(x, syscall.Kill(old, syscall.SIGKILL))
	x.until("another supervisor runs", func() bool {
		pid := x.victim().Supervisor()
		return pid != 0 && pid != old && x.victim().Serving() != 0
	})
	x.works("supervisor killed")
	x.until("status reports the new supervisor", func() bool { // the worker of the old supervisor may answer once more
		st := x.daemonStatus()
		return st.Supervisor != old && st.Supervisor != 0
	})
}

// If all processes are killed at once, the mounts fail with ENOTCONN, and mounting again shows the same tree.
func TestEverythingKilled(t *testing.T) {
	w := newWorld(t)
	x := w.torture([]string{"names", "blocks", "git", "deleted"})
	x.strike(5, syscall.SIGKILL, 200*time.Millisecond)
	x.end()
	x.m.flushed()
	want := w.faces(x.m.Dir)
	head := w.git(x.m.Dir, "rev-parse", "HEAD")
	w.killDaemon()
	if _, err := os.Lstat(x.m.path("big")); !errors.Is(err, syscall.ENOTCONN) && err != nil {
		t.Errorf("stat in the dead mount: got %v", err)
	}
	w.ok("mount", x.m.Remote, x.m.Dir)
	w.sameFaces("after everything was killed", w.faces(x.m.Dir), want)
	if got := w.git(x.m.Dir, "rev-parse", "HEAD"); got != head {
		t.Errorf("HEAD after mounting again: got %s, want %s", got, head)
	}
	if out := w.git(x.m.Dir, "status", "--porcelain"); out != "" {
		t.Errorf("git status printed %q", out)
	}
}

// The model test runs while the worker is killed repeatedly. It checks the operations that the programs of TestTakeover
// do not use. Each operation that a killed worker had begun must be done exactly once.
func TestModelUnderKills(t *testing.T) {
	w := newWorld(t)
	mm := newModelMount(w, modelSeed)
	stop := make(chan struct{})
	type outcome struct {
		blows []torture.Blow
		err   error
	}
	over := make(chan outcome)
	go func() {
		blows, err := w.victim().Strike(1<<30, syscall.SIGKILL, 60*time.Millisecond,
			rand.New(rand.NewPCG(uint64(modelSeed), 4)), func() bool {
				select {
				case <-stop:
					return true
				default:
					return false
				}
			})
		over <- outcome{blows, err}
	}()
	err := mm.run(modelSteps/3, 300)
	close(stop)
	o := <-over
	if err != nil {
		t.Errorf("AFS_MODEL_SEED=%d AFS_MODEL_STEPS=%d: %v", modelSeed, modelSteps, err)
	}
	if o.err != nil {
		t.Error(o.err)
	}
	if err == nil {
		if err := mm.compareAll(); err != nil {
			t.Errorf("AFS_MODEL_SEED=%d: compare at the end: %v", modelSeed, err)
		}
		if err := mm.unmount(); err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d steps, %d kills, %v", mm.step, len(o.blows), mm.kinds)
	if len(o.blows) < 5 {
		t.Errorf("the worker was killed only %d times", len(o.blows))
	}
}

// A daemon whose workers cannot start any more detaches its mounts, and the next mount prints the reason.
func TestGivesUpCleanly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.commit(w.repo("r.git", object.SHA1), sample("gives up"))
	m := w.bare(w.serve(gittest.ServerOptions{}).URL("r.git"))
	// No worker becomes ready, because the test gets the lock that a worker needs as soon as the first worker is dead. A
	// worker that became ready would reset the supervisor's count of failures.
	table := must[*os.File](t)(os.OpenFile(filepath.Join(w.state, "mounts", m.ID, "inodes"), os.O_RDWR, 0))
	defer table.Close()
	go func() {
		for syscall.Flock(int(table.Fd()), syscall.LOCK_EX) == syscall.EINTR {
		}
	}()
	var deaths int
	w.until("the daemon has given up", func() bool {
		for _, p := range w.victim().Processes() {
			if p.Worker {
				syscall.Kill(p.PID, syscall.SIGKILL)
				deaths++
			}
		}
		return len(w.victim().Processes()) == 0
	})
	t.Logf("%d workers killed", deaths)
	w.until("nothing is mounted", func() bool { return len(mountsBelow(w.root)) == 0 })
	check(t, syscall.Flock(int(table.Fd()), syscall.LOCK_UN))
	r := w.afs("mount", m.Remote, m.Dir)
	if r.code != 0 || !strings.Contains(r.stderr, "the previous mount at this directory failed") ||
		!strings.Contains(r.stderr, "workers failed one after the other") {
		t.Errorf("the next mount does not print what happened: %s", r)
	}
	if n := readAll(t, m.Dir, sample("gives up")); n > 0 {
		t.Errorf("%d reads failed", n)
	}
}
