package supervisor

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/host/supervisor/early"
	"github.com/artifactfs/artifactfs/internal/keeper"
)

const patience = 30 * time.Second

// try is a supervisor that the test runs as a separate process.
type try struct {
	*testing.T
	dir string
	cmd *exec.Cmd
	end chan error
}

func newTry(t *testing.T, env ...string) *try {
	t.Helper()
	y := &try{T: t, dir: t.TempDir()}
	t.Cleanup(y.clean)
	y.launch(exec.Command("/proc/self/exe"), env...)
	return y
}

// launch starts the supervisor with the command cmd, to which it adds the arguments.
func (y *try) launch(cmd *exec.Cmd, env ...string) {
	y.Helper()
	exe, err := os.Executable()
	if err != nil {
		y.Fatal(err)
	}
	if len(cmd.Args) == 1 {
		cmd.Path, cmd.Args = exe, []string{exe}
	}
	cmd.Args = append(cmd.Args, "supervisor", y.dir)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Start(); err != nil {
		y.Fatal(err)
	}
	end := make(chan error, 1)
	y.cmd, y.end = cmd, end
	go func() { end <- cmd.Wait() }()
}

// clean kills all processes of the try. It repeats this until none is left, because a process may start another one
// before it is killed.
func (y *try) clean() {
	y.until("all processes have ended", func() bool {
		pids := y.processes()
		for _, pid := range pids {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		return len(pids) == 0
	})
}

// processes returns the IDs of the running processes that have the directory of the try among their arguments.
func (y *try) processes() (pids []int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		y.Fatal(err)
	}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && pid != os.Getpid() && ours(pid, y.dir) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// ours reports whether a process belongs to the try with the directory dir.
func ours(pid int, dir string) bool {
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && strings.Contains(string(args), dir)
}

// events returns the events that were recorded so far. It ignores an incomplete line.
func (y *try) events() (all []happening) {
	text, _ := os.ReadFile(filepath.Join(y.dir, "events"))
	for line := range bytes.Lines(text) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break
		}
		var h happening
		if err := json.Unmarshal(line, &h); err != nil {
			y.Fatalf("parse event %q: %v", line, err)
		}
		all = append(all, h)
	}
	return all
}

func (y *try) of(what string) (all []happening) {
	for _, h := range y.events() {
		if h.What == what {
			all = append(all, h)
		}
	}
	return all
}

func (y *try) until(what string, done func() bool) {
	y.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			y.Fatalf("not so after %v: %s\n%+v", patience, what, y.events())
		}
	}
}

// reason returns the reason of a takeover, which the new worker learns at its start, or later if the exit status of its
// predecessor was not yet known.
func (y *try) reason(serving happening) string {
	if serving.Start.Reason != "worker was lost" {
		return serving.Start.Reason
	}
	return y.awaitEvent("reason", 1).Reason
}

// awaitEvent waits for the n-th event of a kind, counted from 1, and returns it.
func (y *try) awaitEvent(what string, n int) happening {
	y.Helper()
	y.until(fmt.Sprintf("%d times %s", n, what), func() bool { return len(y.of(what)) >= n })
	return y.of(what)[n-1]
}

func (y *try) set(name string, n int) {
	y.Helper()
	if err := os.WriteFile(filepath.Join(y.dir, name), []byte(strconv.Itoa(n)), 0o600); err != nil {
		y.Fatal(err)
	}
}

// ask sends a command to the worker and returns its answer, or "" if the worker ended without an answer.
func (y *try) ask(line string) string {
	y.Helper()
	c, err := net.Dial("unix", filepath.Join(y.dir, "sock"))
	if err != nil {
		y.Fatal(err) // some process always listens, so an error is a failure
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	fmt.Fprintln(c, line)
	answer, _ := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(answer)
}

func (y *try) kill(pid int, s syscall.Signal) {
	y.Helper()
	if err := syscall.Kill(pid, s); err != nil {
		y.Fatal(err)
	}
}

// code waits until the supervisor has ended, and returns its exit code.
func (y *try) code() int {
	y.Helper()
	select {
	case err := <-y.end:
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return exit.ExitCode()
		}
		return 0
	case <-time.After(patience):
		y.Fatalf("the supervisor does not end\n%+v", y.events())
		return 0
	}
}

// copyExe copies the executable to a file with another name and returns the path. The behavior of the program depends
// on its name.
func (y *try) copyExe(name string) string {
	y.Helper()
	exe, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(filepath.Join(y.dir, name), exe, 0o755)
	}
	if err != nil {
		y.Fatal(err)
	}
	return filepath.Join(y.dir, name)
}

func TestAnotherWorkerGoesOn(t *testing.T) {
	for name, die := range map[string]struct {
		how    func(y *try, pid int)
		reason string
	}{
		"kill":    {func(y *try, pid int) { y.kill(pid, syscall.SIGKILL) }, "killed"},
		"crash":   {func(y *try, pid int) { y.ask("exit 2") }, "exited with code 2"},
		"exit":    {func(y *try, pid int) { y.ask("exit 0") }, "exited with code 0"},
		"stop":    {func(y *try, pid int) { y.kill(pid, syscall.SIGSTOP) }, "did not respond"},
		"silence": {func(y *try, pid int) { y.ask("silence") }, "did not respond"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			y := newTry(t, "FAKE_WATCHDOG=1500ms")
			first := y.awaitEvent("serving", 1)
			if first.Start.Count != 0 || first.Start.Reason != "" || first.Start.Supervisor != y.cmd.Process.Pid ||
				len(first.Names) > 0 {
				t.Errorf("first worker: got %+v, want no takeovers, no reason and no descriptors", first)
			}
			die.how(y, first.PID)
			second := y.awaitEvent("serving", 2)
			slices.Sort(second.Names)
			reason := y.reason(second)
			if second.Start.Count != 1 || !strings.Contains(reason, die.reason) || second.Mounts != 2 ||
				!slices.Equal(second.Names, []string{fakeMount, "control"}) {
				t.Errorf("second worker: got %+v with reason %q, want one takeover, 2 mounts and a reason with %q", second,
					reason, die.reason)
			}
			if got := y.ask("pid"); got != strconv.Itoa(second.PID) {
				t.Errorf("process that answers: got %s, want %d", got, second.PID)
			}
			hung := 0
			if die.reason == "did not respond" {
				hung = 1
			}
			// The count is also kept if the supervisor is replaced by another one.
			y.kill(y.cmd.Process.Pid, syscall.SIGKILL)
			third := y.awaitEvent("serving", 3)
			if second.Start.Hung != hung || third.Start.Hung != hung {
				t.Errorf("workers that the watchdog has killed: got %d and %d, want %d", second.Start.Hung, third.Start.Hung, hung)
			}
		})
	}
}

func TestManyKills(t *testing.T) {
	for _, spare := range []string{"", "1"} {
		y := newTry(t, "FAKE_SPARE="+spare)
		for n := 1; n <= 30; n++ {
			y.kill(y.awaitEvent("serving", n).PID, syscall.SIGKILL)
		}
		if last := y.awaitEvent("serving", 31); last.Start.Count != 30 || last.Mounts != 31 {
			t.Errorf("last worker: got %+v, want 30 takeovers and 31 mounts", last)
		}
	}
}

func TestSpareGoesOn(t *testing.T) {
	y := newTry(t, "FAKE_SPARE=1")
	first := y.awaitEvent("serving", 1)
	spare := y.awaitEvent("waiting", 2)
	if spare.PID == first.PID {
		t.Fatal("no spare worker waits")
	}
	y.kill(first.PID, syscall.SIGKILL)
	if second := y.awaitEvent("serving", 2); second.PID != spare.PID {
		t.Errorf("worker after the first one was killed: got %+v, want the spare worker, PID %d", second, spare.PID)
	}
	third := y.awaitEvent("waiting", 3)
	y.kill(third.PID, syscall.SIGKILL) // the end of a spare worker has no effect
	y.ask("unmount")
	y.until("no spare worker waits", func() bool {
		return !slices.ContainsFunc(y.of("waiting")[2:], func(h happening) bool { return ours(h.PID, y.dir) })
	})
	y.kill(spare.PID, syscall.SIGKILL)
	if got := y.awaitEvent("serving", 3); got.Mounts != 1 {
		t.Errorf("third worker: got %+v, want 1 mount", got)
	}
}

func TestWorkersThatCannotStartAreRetried(t *testing.T) {
	y := newTry(t)
	first := y.awaitEvent("serving", 1)
	y.set("crash", 3)
	y.kill(first.PID, syscall.SIGKILL)
	second := y.awaitEvent("serving", 2)
	reason := y.reason(second)
	if n := len(y.of("crashed")); n != 3 || second.Mounts != 2 || second.Start.Count != 4 ||
		!strings.Contains(reason, "exited with code 3") {
		t.Errorf("after %d crashes: got worker %+v with reason %q, want 3 crashes, 2 mounts and 4 takeovers", n, second, reason)
	}
}

func TestGivingUpDetachesWhatIsKept(t *testing.T) {
	y := newTry(t)
	first := y.awaitEvent("serving", 1)
	y.set("crash", 1000)
	y.kill(first.PID, syscall.SIGKILL)
	if code := y.code(); code != 1 {
		t.Errorf("exit code after too many failures: got %d, want 1", code)
	}
	h := y.awaitEvent("gave up", 1)
	if n := len(y.of("crashed")); n != giveUpAfter || !slices.Contains(h.Names, fakeMount) ||
		!strings.Contains(h.Reason, "exited with code 3") {
		t.Errorf("after %d crashes: got %+v, want %d crashes and the mount detached", n, h, giveUpAfter)
	}
}

func TestRefusalOfTheFirstIsTheEnd(t *testing.T) {
	t.Parallel()
	y := &try{T: t, dir: t.TempDir()}
	y.set("refuse", 1)
	t.Cleanup(y.clean)
	y.launch(exec.Command("/proc/self/exe"))
	if code := y.code(); code != 4 || len(y.of("gave up")) > 0 || len(y.of("refused")) != 1 {
		t.Errorf("first worker refuses to serve: got exit code %d and events %+v, want exit code 4", code, y.events())
	}
}

func TestEndOnPurposeIsTheEnd(t *testing.T) {
	for _, how := range []string{"by itself", "told", "told, and it dies once"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			y := newTry(t, "FAKE_SPARE=1")
			y.awaitEvent("serving", 1)
			y.awaitEvent("waiting", 2)
			switch how {
			case "by itself":
				y.ask("end")
			case "told, and it dies once":
				y.set("crash at stop", 1)
				fallthrough
			default:
				y.kill(y.cmd.Process.Pid, syscall.SIGTERM)
			}
			if code := y.code(); code != 0 || len(y.of("stopped")) != 1 || len(y.of("gave up")) > 0 {
				t.Errorf("end on purpose: got exit code %d and events %+v, want exit code 0 and one worker that stopped",
					code, y.events())
			}
			y.until("all processes have ended", func() bool { return len(y.processes()) == 0 })
		})
	}
}

func TestStopThatFailsDetaches(t *testing.T) {
	y := newTry(t)
	y.awaitEvent("serving", 1)
	y.set("crash at stop", 1000)
	y.kill(y.cmd.Process.Pid, syscall.SIGTERM)
	if code := y.code(); code != 1 || !slices.Contains(y.awaitEvent("gave up", 1).Names, fakeMount) {
		t.Errorf("workers crash while they stop: got exit code %d and events %+v, want exit code 1 and the mount detached",
			code, y.events())
	}
}

func TestUpgrade(t *testing.T) {
	y := newTry(t, "FAKE_SPARE=1")
	y.awaitEvent("serving", 1)
	y.awaitEvent("waiting", 2)
	exe := y.copyExe("better")
	y.ask("upgrade " + exe)
	second := y.awaitEvent("serving", 2)
	if second.Version != "better" || second.Mounts != 2 || second.Start.UpgradeFailed != "" ||
		!strings.Contains(second.Start.Reason, "upgrade to better") {
		t.Errorf("worker after the upgrade: got %+v, want version better and 2 mounts", second)
	}
	again := y.awaitEvent("supervisor", 2)
	if again.PID != y.cmd.Process.Pid || again.Exe != exe {
		t.Errorf("supervisor after the upgrade: got %+v, want the same process with executable %s", again, exe)
	}
	os.Remove(exe) // must still work, because workers are started from the open file
	for n := 2; n < 5; n++ {
		y.kill(y.awaitEvent("serving", n).PID, syscall.SIGKILL)
		if h := y.awaitEvent("serving", n+1); !strings.HasPrefix(h.Version, "better") || h.Mounts != n+1 {
			t.Errorf("worker after the executable was removed: got %+v", h)
		}
	}
	y.kill(y.cmd.Process.Pid, syscall.SIGTERM)
	if code := y.code(); code != 0 {
		t.Errorf("exit code: got %d, want 0", code)
	}
}

// TestStopDuringUpgrade checks that a signal that asks the daemon to exit, and arrives while another executable replaces
// that of the supervisor, stops the daemon.
func TestStopDuringUpgrade(t *testing.T) {
	y := newTry(t)
	y.awaitEvent("serving", 1)
	y.set("term at exec", 1)
	y.ask("upgrade " + y.copyExe("better"))
	if code := y.code(); code != 0 {
		t.Errorf("exit code: got %d, want 0", code)
	}
	if n := len(y.of("supervisor")); n != 2 {
		t.Errorf("supervisors that have started: got %d, want 2", n)
	}
}

// TestNoUpgradeAfterStop checks that a supervisor that was asked to exit does not replace its executable, which would
// not know that.
func TestNoUpgradeAfterStop(t *testing.T) {
	conn, peer, err := keeper.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	defer conn.Close()
	file, err := os.Open("/bin/false")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	asked := make(chan struct{})
	close(asked)
	process, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	s := &supervisor{store: store{}, exit: exit{asked: asked}}
	if err := s.exec(file, &worker{process: process, conn: conn}); !errors.Is(err, errAsked) {
		t.Errorf("replace the executable of a supervisor that was asked to exit: got %v, want %v", err, errAsked)
	}
	// The context has not ended yet, but the signal has arrived.
	early.Watch()
	if err := process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); len(early.Asked()) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("signal was not recorded")
		}
	}
	s.exit.asked = nil
	if err := s.exec(file, &worker{process: process, conn: conn}); !errors.Is(err, errAsked) {
		t.Errorf("replace the executable of a supervisor with a signal: got %v, want %v", err, errAsked)
	}
	<-early.Asked()
}

func TestUpgradeThatFailsIsTakenBack(t *testing.T) {
	for name, crashes := range map[string]int{"refusing": 0, "crashing": upgradeTries} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			y := newTry(t)
			first := y.awaitEvent("serving", 1)
			y.ask("upgrade " + y.copyExe(name))
			var reason string
			if crashes == 0 { // no worker of the new version has received the order to serve
				reason = y.awaitEvent("upgrade failed", 1).Reason
				if got := y.ask("pid"); got != strconv.Itoa(first.PID) {
					t.Errorf("process that answers: got %s, want %d", got, first.PID)
				}
			} else {
				second := y.awaitEvent("serving", 2)
				reason = second.Start.UpgradeFailed
				if second.Version != first.Version || second.Mounts != 2 {
					t.Errorf("worker after the failed upgrade: got %+v, want version %s and 2 mounts", second, first.Version)
				}
			}
			if n := len(y.of("crashed")); n != crashes || !strings.Contains(reason, name) {
				t.Errorf("failed upgrade: got %d crashes and reason %q, want %d crashes and a reason with %q", n, reason,
					crashes, name)
			}
			if n := len(y.of("supervisor")); n != 1 {
				t.Errorf("supervisors that were started: got %d, want 1", n)
			}
			y.ask("upgrade " + y.copyExe("better")) // the next upgrade succeeds
			y.until("the next upgrade succeeds", func() bool {
				return slices.ContainsFunc(y.of("serving"), func(h happening) bool { return h.Version == "better" })
			})
		})
	}
}

func TestLostSupervisorIsReplaced(t *testing.T) {
	y := newTry(t, "FAKE_SPARE=1")
	y.awaitEvent("waiting", 2)
	for n := 1; n <= 3; n++ {
		y.kill(y.awaitEvent("supervisor", n).PID, syscall.SIGKILL)
		h := y.awaitEvent("serving", n+1)
		next := y.awaitEvent("supervisor", n+1)
		if h.Mounts != n+1 || h.Start.Supervisor != next.PID || h.Start.Count != n ||
			!strings.Contains(h.Start.Reason, "supervisor") {
			t.Errorf("worker after the supervisor was killed: got %+v", h)
		}
		y.kill(h.PID, 0)
	}
	if got := y.ask("pid"); got != strconv.Itoa(y.awaitEvent("serving", 4).PID) {
		t.Errorf("process that answers: got %s, want the fourth worker; events:\n%+v", got, y.events())
	}
	y.kill(y.awaitEvent("supervisor", 4).PID, syscall.SIGTERM)
	y.awaitEvent("stopped", 1)
	y.until("all processes have ended", func() bool { return len(y.processes()) == 0 })
}
