package fuse

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/internal/proc"
	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// until waits for a condition.
func (m *mounted) until(what string, ok func() bool) {
	m.Helper()
	await.Until(m, what, ok)
}

// start starts a command that will wait for the object at path, and returns when it waits.
func (m *mounted) start(path string, name string, args ...string) *exec.Cmd {
	m.Helper()
	before := m.src.Waiting(path)
	cmd := exec.Command(name, args...)
	cmd.Dir = m.dir
	if err := cmd.Start(); err != nil {
		m.Fatal(err)
	}
	m.until(name+" waits", func() bool { return m.src.Waiting(path) > before })
	return cmd
}

// A process that waits for a size ends at once on a signal. Other waiting processes are not affected.
func TestInterrupt(t *testing.T) {
	m := mount(t, map[string]worktreetest.File{"slow": {Data: "at last"}, "slow too": {Data: "at long last"},
		"quick": {Data: "now"}})
	release := make(chan struct{})
	m.src.Rule("slow", worktreetest.Rule{Block: release})
	m.src.Rule("slow too", worktreetest.Rule{Block: release})
	patient := make(chan string, 1)
	go func() { patient <- m.run("cat", "slow too") }()
	m.until("cat waits", func() bool { return m.src.Waiting("slow too") == 1 })
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
		cat := m.start("slow", "cat", "slow")
		m.endsBy(cat, sig)
		m.until(fmt.Sprint(sig, ": the request of the process has ended"), func() bool { return m.src.Waiting("slow") == 0 })
	}
	if out := m.run("cat", "quick"); out != "now" { // in the same directory
		t.Errorf("read a fetched file: got %q", out)
	}
	close(release)
	if out := <-patient; out != "at long last" {
		t.Errorf("the process that was not interrupted read %q", out)
	}
}

// endsBy sends a signal to a process and checks that the process dies of it, although the contents that it waits for do
// not arrive.
func (m *mounted) endsBy(cmd *exec.Cmd, sig syscall.Signal) {
	m.Helper()
	sent := time.Now()
	if err := cmd.Process.Signal(sig); err != nil {
		m.Error(err)
	}
	cmd.Wait()
	if took := time.Since(sent); took > await.Patience || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != sig {
		m.Errorf("after signal %v the process ended with %v after %v", sig, cmd.ProcessState, took)
	}
}

// While one process looks up a name, the kernel lets other lookups of the name wait uninterruptibly (fs/dcache.c,
// d_wait_lookup). They send their own requests when the first process gives up, so signals to all processes end all of
// them.
func TestInterruptAll(t *testing.T) {
	m := mount(t, map[string]worktreetest.File{"slow": {Data: "x"}})
	release := make(chan struct{})
	m.src.Rule("slow", worktreetest.Rule{Block: release})
	cats := []*exec.Cmd{m.start("slow", "cat", "slow")}
	for range 4 {
		cat := exec.Command("cat", "slow")
		cat.Dir = m.dir
		if err := cat.Start(); err != nil {
			t.Fatal(err)
		}
		m.until("the second process waits",
			func() bool { return strings.Contains(procStatus(t, cat.Process.Pid), "State:\tD") })
		cats = append(cats, cat)
	}
	for _, cat := range cats[1:] {
		cat.Process.Signal(syscall.SIGINT)
	}
	for _, cat := range cats {
		m.endsBy(cat, syscall.SIGINT)
	}
	close(release)
}

// The kernel sends no INTERRUPT for a reader of contents, because pages are read in the background, but the reader ends
// at once anyway.
func TestInterruptRead(t *testing.T) {
	m := mount(t, map[string]worktreetest.File{"slow": {Data: "at last"}})
	m.run("stat", "slow")
	release := make(chan struct{})
	m.src.Rule("slow", worktreetest.Rule{Block: release})
	m.endsBy(m.start("slow", "cat", "slow"), syscall.SIGINT)
	close(release)
	if out := m.run("cat", "slow"); out != "at last" {
		t.Errorf("read after the interrupt: got %q", out)
	}
}

// A timer signal does not make stat fail with EINTR, as on other file systems. A fatal signal that arrives after the
// timer signal still ends the wait.
func TestTimerSignals(t *testing.T) {
	m := mount(t, map[string]worktreetest.File{"slow": {Data: "at last"}})
	release := make(chan struct{})
	m.src.Rule("slow", worktreetest.Rule{Block: release})
	const script = `$SIG{ALRM} = sub { $n++ }; $SIG{INT} = sub { exit 7 };
		use Time::HiRes qw(ualarm); ualarm(20000, 20000);
		my @st = stat("slow") or die "stat: $!"; ualarm(0); print "size $st[7]\n";`
	if err := exec.Command("perl", "-MTime::HiRes", "-e", "1").Run(); err != nil {
		t.Skipf("no perl: %v", err)
	}
	ticked := m.start("slow", "perl", "-e", script)
	alarms := func(pid int) bool { // a SIGALRM is pending, so the kernel has sent INTERRUPT
		return strings.Contains(procStatus(t, pid), fmt.Sprintf("ShdPnd:\t%016x", 1<<(syscall.SIGALRM-1)))
	}
	m.until("the timer has fired", func() bool { return alarms(ticked.Process.Pid) })
	ticked.Process.Signal(syscall.SIGINT)
	ticked.Wait()
	if code := ticked.ProcessState.ExitCode(); code != 7 {
		t.Errorf("process with a timer after SIGINT: got %v, want exit code 7", ticked.ProcessState)
	}
	var out strings.Builder
	patient := exec.Command("perl", "-e", script)
	patient.Dir, patient.Stdout, patient.Stderr = m.dir, &out, &out
	if err := patient.Start(); err != nil {
		t.Fatal(err)
	}
	m.until("the timer has fired", func() bool { return alarms(patient.Process.Pid) })
	close(release)
	if err := patient.Wait(); err != nil || out.String() != "size 7\n" {
		t.Errorf("process with a timer ended with %v and printed %q, want \"size 7\"", err, &out)
	}
}

func procStatus(t *testing.T, pid int) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestPendingStop(t *testing.T) {
	const none, alarm, intr, kill = "0000000000000000", "0000000000002000", "0000000000000002", "0000000000000100"
	for _, c := range []struct {
		thread, shared, blocked string
		want                    bool
	}{
		{none, none, none, false},
		{none, alarm, none, false},
		{none, intr, none, true},
		{none, intr, intr, false},
		{kill, alarm, none, true},
		{"", "zzz", none, false},
	} {
		status := "Name:\tx\nSigPnd:\t" + c.thread + "\nShdPnd:\t" + c.shared + "\nSigBlk:\t" + c.blocked +
			"\nSigIgn:\t" + intr + "\n"
		if got := pendingStop(proc.ParseStatus([]byte(status))); got != c.want {
			t.Errorf("pendingStop(%q) = %v, want %v", status, got, c.want)
		}
	}
}

// More waiting requests than the kernel's default limit of background requests do not block the read of a fetched file.
func TestSlowReadsStallNobody(t *testing.T) {
	const slow = 100
	files := map[string]worktreetest.File{"quick": {Data: "now"}}
	for i := range slow {
		files[fmt.Sprintf("slow%d", i)] = worktreetest.File{Data: fmt.Sprint("at last ", i)}
	}
	m := mount(t, files)
	m.run("ls", "-l")
	release := make(chan struct{})
	for i := range slow {
		m.src.Rule(fmt.Sprintf("slow%d", i), worktreetest.Rule{Block: release})
	}
	done := make(chan string, 1)
	go func() { done <- m.run("sh", "-c", "for f in slow*; do cat $f >/dev/null & done; wait; cat slow*") }()
	m.until("all wait", func() bool {
		for i := range slow {
			if m.src.Waiting(fmt.Sprintf("slow%d", i)) == 0 {
				return false
			}
		}
		return true
	})
	if out := m.run("cat", "quick"); out != "now" {
		t.Errorf("read a fetched file: got %q", out)
	}
	close(release)
	if out := <-done; strings.Count(out, "at last") != slow {
		t.Errorf("read of the slow files: got %q", out)
	}
}

// A failed fetch of an object is an error of its file only, with the right errno, is logged with its cause, and can
// succeed later.
func TestErrors(t *testing.T) {
	m := mount(t, map[string]worktreetest.File{"dir/bad": {Data: "x"}, "dir/good": {Data: "y"}})
	secretless := errors.New("fetch 1 object from example.com: connection refused")
	for _, c := range []struct {
		rule worktreetest.Rule
		want error
	}{
		{worktreetest.Rule{Err: secretless}, syscall.EIO},
		{worktreetest.Rule{Err: fmt.Errorf("fetch: 403: %w", fs.ErrPermission)}, syscall.EACCES},
		{worktreetest.Rule{Err: fmt.Errorf("write blob: %w", syscall.ENOSPC)}, syscall.ENOSPC},
		{worktreetest.Rule{Err: os.ErrDeadlineExceeded}, syscall.EIO},
		{worktreetest.Rule{Panic: "a bug"}, syscall.EIO},
	} {
		m.src.Rule("dir/bad", c.rule)
		m.logs.TakeAll()
		var st unix.Stat_t
		if err := unix.Stat(m.path("dir/bad"), &st); !errors.Is(err, c.want) {
			t.Errorf("%+v: stat: got %v, want %v", c.rule, err, c.want)
		}
		logged := m.logs.TakeAll()
		if len(logged) != 1 {
			t.Errorf("%+v: logged %d lines: %v", c.rule, len(logged), logged)
		} else if cause := fmt.Sprint(logged[0].ContextMap()["error"]); c.rule.Err != nil && cause != c.rule.Err.Error() ||
			c.rule.Err == nil && cause != "panic: "+c.rule.Panic {
			t.Errorf("%+v: logged cause %q", c.rule, cause)
		}
		if out := m.run("cat", "dir/good"); out != "y" {
			t.Errorf("%+v: read of the other file: got %q", c.rule, out)
		}
	}
	m.src.Rule("dir/bad", worktreetest.Rule{})
	if out := m.run("cat", "dir/bad"); out != "x" {
		t.Errorf("read after the object can be fetched: got %q", out)
	}
}

// The same for contents: the kernel caches no page of a failed read.
func TestReadErrorsHeal(t *testing.T) {
	m := mount(t, map[string]worktreetest.File{"bad": {Data: "x"}})
	m.run("stat", "bad")
	m.src.Rule("bad", worktreetest.Rule{Err: errors.New("connection refused")})
	for range 2 {
		if _, err := os.ReadFile(m.path("bad")); !errors.Is(err, syscall.EIO) {
			t.Errorf("read: got %v, want EIO", err)
		}
	}
	m.src.Rule("bad", worktreetest.Rule{Panic: "a bug"})
	if _, err := os.ReadFile(m.path("bad")); !errors.Is(err, syscall.EIO) {
		t.Errorf("read: got %v, want EIO", err)
	}
	m.src.Rule("bad", worktreetest.Rule{})
	if got, err := os.ReadFile(m.path("bad")); err != nil || string(got) != "x" {
		t.Errorf("read after the object can be fetched: got %q, %v", got, err)
	}
}

// Many failed reads while the remote is unreachable do not flood the log.
func TestLogIsSampled(t *testing.T) {
	files := make(map[string]worktreetest.File)
	for i := range 200 {
		files[fmt.Sprintf("f%d", i)] = worktreetest.File{Data: fmt.Sprint(i)}
	}
	m := mount(t, files)
	for path := range files {
		m.src.Rule(path, worktreetest.Rule{Err: errors.New("connection refused")})
	}
	exec.Command("sh", "-c", "stat "+m.dir+"/*").Run()
	if n := m.logs.Len(); n == 0 || n > 100 {
		t.Errorf("log has %d lines for %d failures", n, len(files))
	}
}
