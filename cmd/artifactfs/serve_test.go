package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/cmd/artifactfs/cli"
	"github.com/artifactfs/artifactfs/cmd/artifactfs/serving"
	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/daemon"
	"github.com/artifactfs/artifactfs/internal/keeper"
	"github.com/artifactfs/artifactfs/internal/proc"
)

// newServing returns an app whose mounts are those of f.
func newServing(t *testing.T, f *fakeDaemon) (*cli.App, *os.File) {
	t.Helper()
	dir := t.TempDir()
	out, err := os.Create(filepath.Join(dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	return &cli.App{
		Stdout: out, Stderr: out, State: filepath.Join(dir, "state"), LogFormat: "console",
		NewHost: func(daemon.Config) (cli.Host, error) { return f, nil },
	}, out
}

func foregroundRequest() control.MountRequest {
	return control.MountRequest{Remote: "/r", Dir: "/m",
		MountFetch: control.MountFetch{History: control.HistoryNone, Prefetch: control.PrefetchNone, Wait: control.WaitTree}}
}

// awaitMount waits until the daemon at socket reports a mount.
func awaitMount(t *testing.T, socket string) *control.Client {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		c, err := control.Dial(t.Context(), socket)
		if err != nil {
			continue
		}
		if s, err := c.Status(t.Context()); err == nil && len(s.Mounts) == 1 {
			return c
		}
	}
	t.Fatalf("no mount after %v", patience)
	return nil
}

func TestForegroundEndsWithItsMount(t *testing.T) {
	for _, how := range []string{"unmount", "signal"} {
		t.Run(how, func(t *testing.T) {
			f := newFakeDaemon()
			a, out := newServing(t, f)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- serving.ServeMount(ctx, a, foregroundRequest(), justMounted) }()
			client := awaitMount(t, control.MountSocket(a.State, os.Getpid()))
			if how == "signal" {
				cancel()
			} else if _, err := client.Unmount(t.Context(), control.UnmountRequest{Dir: "/m"}); err != nil {
				t.Errorf("unmount got no reply: %v", err)
			}
			if err := await(t, ended); err != nil {
				t.Error(err)
			}
			printed, _ := os.ReadFile(out.Name())
			if !f.closed || !strings.HasPrefix(string(printed), "mounted /r at /m (main, ") {
				t.Errorf("foreground mount after unmount: got closed %v, printed %q", f.closed, printed)
			}
			if left, _ := filepath.Glob(filepath.Join(a.State, "run", "*")); len(left) > 0 {
				t.Errorf("files after the end: got %v", left)
			}
		})
	}
}

func TestForegroundMountThatFailsLeavesNothing(t *testing.T) {
	f := newFakeDaemon()
	f.set(func() {
		f.mount = func(context.Context, control.MountRequest, func(control.Progress)) (control.MountReply, error) {
			return control.MountReply{}, errors.New("no luck")
		}
	})
	a, _ := newServing(t, f)
	err := serving.ServeMount(t.Context(), a, foregroundRequest(), justMounted)
	if e := control.AsError(err); e.Error() != "mount /m: no luck" || !f.closed {
		t.Errorf("end of the worker: got %v, closed %v", err, f.closed)
	}
}

// attend acts as the supervisor of a worker that runs in this process: it sends Start and collects the worker's
// messages.
type attend struct {
	conn  *keeper.Conn
	ended chan error // error of the worker
	heard chan keeper.Message
}

func startWorker(t *testing.T, a *cli.App, f serving.DaemonFlags, start keeper.Start) *attend {
	t.Helper()
	conn, peer, err := keeper.Pair()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Dup(int(peer.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	peer.Close()
	other, err := keeper.Open(fd)
	if err != nil {
		t.Fatal(err)
	}
	w := &attend{conn: conn, ended: make(chan error, 1), heard: make(chan keeper.Message, 1000)}
	go func() { w.ended <- serving.RunWorker(t.Context(), a, other, f) }()
	if err := conn.Send(start.Message()); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for {
			m, fds, err := conn.Receive()
			if err != nil {
				return
			}
			for _, fd := range fds {
				unix.Close(fd)
			}
			w.heard <- m
		}
	}()
	t.Cleanup(func() { other.Close(); <-read; conn.Close() })
	return w
}

// hears waits for a message that contains a key.
func (w *attend) hears(t *testing.T, key string) keeper.Message {
	t.Helper()
	for {
		if m := await(t, w.heard); m[key] != "" {
			return m
		}
	}
}

func TestWorkerEndsWhenIdle(t *testing.T) {
	f := newFakeDaemon(control.MountStatus{ID: "m0", Dir: "/before"}) // otherwise it may end before the first mount
	a, _ := newServing(t, f)
	w := startWorker(t, a, serving.DaemonFlags{Idle: 200 * time.Millisecond}, keeper.Start{})
	var client *control.Client
	for deadline := time.Now().Add(patience); client == nil && time.Now().Before(deadline); {
		client, _ = control.Dial(t.Context(), a.DaemonSocket())
	}
	if _, err := client.Mount(t.Context(), foregroundRequest(), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Unmount(t.Context(), control.UnmountRequest{Dir: "/before"}); err != nil {
		t.Fatal(err)
	}
	w.hears(t, keeper.Ready)
	select {
	case <-w.ended:
		t.Fatal("the worker ended although it has a mount")
	case <-time.After(600 * time.Millisecond): // three times its idle time
	}
	w.hears(t, keeper.Watchdog)
	if _, err := client.Unmount(t.Context(), control.UnmountRequest{Dir: "/m"}); err != nil {
		t.Fatal(err)
	}
	if err := await(t, w.ended); err != nil || !f.closed {
		t.Errorf("end of the worker: got %v, closed %v", err, f.closed)
	}
	// in this order: clients that wait at the socket must not wait for this process
	for _, want := range []string{serving.SocketDescriptor, serving.LockDescriptor} {
		if m := w.hears(t, keeper.Remove); m[keeper.Name] != want {
			t.Errorf("released %s before %s", m[keeper.Name], want)
		}
	}
	w.hears(t, keeper.Stopping)
}

func TestWorkerEndsWhenToldTo(t *testing.T) {
	f := newFakeDaemon()
	a, _ := newServing(t, f)
	w := startWorker(t, a, serving.DaemonFlags{}, keeper.Start{Reason: "it was tired", Count: 3, Supervisor: 7})
	w.hears(t, keeper.Ready)
	client, err := control.Dial(t.Context(), a.DaemonSocket())
	if err != nil {
		t.Fatal(err)
	}
	s, err := client.Status(t.Context())
	if d := s.Daemon; err != nil || d.PID != os.Getpid() || d.Supervisor != 7 || d.Takeovers != 3 ||
		d.Reason != "it was tired" || d.Version == "" {
		t.Errorf("status of the daemon: got %+v, %v", d, err)
	}
	w.conn.SendKey(keeper.Stop, "1")
	w.hears(t, keeper.Stopping)
	if err := await(t, w.ended); err != nil || !f.closed {
		t.Errorf("end of the worker: got %v, closed %v", err, f.closed)
	}
}

func TestUpgradeThatFailsIsTold(t *testing.T) {
	a, _ := newServing(t, newFakeDaemon())
	w := startWorker(t, a, serving.DaemonFlags{}, keeper.Start{})
	w.hears(t, keeper.Ready)
	client, err := control.Dial(t.Context(), a.DaemonSocket())
	if err != nil {
		t.Fatal(err)
	}
	answer := make(chan error, 1)
	go func() { answer <- client.Upgrade(t.Context(), control.UpgradeRequest{Executable: "/proc/self/exe"}) }()
	if m := w.hears(t, keeper.Upgrade); m[keeper.Upgrade] != "/proc/self/exe" {
		t.Errorf("upgrade request: got %v", m)
	}
	w.conn.SendKey(keeper.UpgradeFailed, "it is too new")
	if err := await(t, answer); err == nil || err.Error() != "upgrade daemon: it is too new" {
		t.Errorf("reply to upgrade: got %v", err)
	}
	if s, err := client.Status(t.Context()); err != nil || s.Daemon.UpgradeFailed != "it is too new" {
		t.Errorf("status after the failed upgrade: got %+v, %v", s.Daemon, err)
	}
	w.conn.SendKey(keeper.Stop, "1")
	await(t, w.ended)
}

func TestSecondWorkerIsRefused(t *testing.T) {
	f := newFakeDaemon()
	a, _ := newServing(t, f)
	serve(t, a.DaemonSocket(), newFakeDaemon())
	w := startWorker(t, a, serving.DaemonFlags{}, keeper.Start{})
	if err := await(t, w.ended); !errors.Is(err, control.ErrInUse) || !f.closed {
		t.Errorf("end of the worker: got %v, closed %v", err, f.closed)
	}
	w.hears(t, keeper.Stopping)
}

func TestSpareWorkerThatIsNotNeededEnds(t *testing.T) {
	a, _ := newServing(t, newFakeDaemon())
	conn, peer, err := keeper.Pair()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Dup(int(peer.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	peer.Close()
	other, err := keeper.Open(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	conn.Close()
	if err := serving.RunWorker(t.Context(), a, other, serving.DaemonFlags{}); err != nil {
		t.Errorf("run the worker without a supervisor: %v", err)
	}
	if _, err := os.Lstat(a.State); err == nil {
		t.Error("the worker changed the state directory")
	}
}

func TestExecutableInAMountIsRefused(t *testing.T) {
	if err := serving.CheckExecutable("/proc/self/exe"); err != nil {
		t.Error(err)
	}
}

func TestServiceIsFound(t *testing.T) {
	for table, want := range map[string]string{
		"0::/system.slice/artifactfs.service\n":                                    "artifactfs.service",
		"0::/user.slice/user-1000.slice/user@1000.service/app.slice/afs.service\n": "afs.service user",
		"12:pids:/x.service\n1:name=systemd:/system.slice/a@b.service\n":           "a@b.service",
		"0::/system.slice/system-artifactfs.slice/artifactfs@x.service/worker\n":   "artifactfs@x.service",
		"0::/user.slice/user-0.slice/session-1.scope\n":                            "",
		"0::/\n": "",
	} {
		unit, user := serving.UnitOf(proc.ParseCgroups(table))
		if user {
			unit += " user"
		}
		if unit != want {
			t.Errorf("unit in %q: got %q, want %q", table, unit, want)
		}
	}
	jobs := "  12 other.service       restart waiting\n 345 artifactfs.service  restart running\n"
	if !serving.HasRestart(jobs, "artifactfs.service") || serving.HasRestart(jobs, "a.service") ||
		serving.HasRestart("1 a.service stop running\n", "a.service") ||
		serving.HasRestart("No jobs running.\n", "a.service") {
		t.Error("the list of jobs was parsed wrongly")
	}
}

func TestRepositoryOfTheCallerIsForgotten(t *testing.T) {
	t.Setenv("GIT_DIR", "/elsewhere")
	t.Setenv("GIT_SSH_COMMAND", "ssh -v")
	serving.ForgetRepository()
	if _, set := os.LookupEnv("GIT_DIR"); set || os.Getenv("GIT_SSH_COMMAND") == "" {
		t.Error("the wrong variables were removed")
	}
}

func TestSignalsOurParentIgnoresStayIgnored(t *testing.T) {
	for _, s := range deadlySignals() {
		if s == syscall.SIGTERM {
			return
		}
	}
	t.Error("SIGTERM did not end the process")
}

// justMounted is the function that ServeMount calls in tests.
func justMounted(context.Context, *control.MountReply) error { return nil }
