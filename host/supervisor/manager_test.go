package supervisor

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/host/fdstore"
	"github.com/artifactfs/artifactfs/internal/keeper"
)

// standIn replaces a service manager with a descriptor store. It receives the messages of sd_notify(3), such as
// FDSTORE=1, and passes the descriptors to the next process as described in systemd.exec(5).
type standIn struct {
	*testing.T
	socket *net.UnixConn
	path   string

	mu    sync.Mutex
	store []keeper.Descriptor // as in systemd, two descriptors may have the same name
	heard []keeper.Message
}

func newStandIn(t *testing.T) *standIn {
	t.Helper()
	m := &standIn{T: t, path: filepath.Join(t.TempDir(), "notify")}
	var err error
	if m.socket, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.path, Net: "unixgram"}); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		m.socket.Close()
		<-done
		for _, k := range m.store {
			k.File.Close()
		}
	})
	go func() {
		defer close(done)
		m.read()
	}()
	return m
}

func (m *standIn) read() {
	buf, rights := make([]byte, 4096), make([]byte, 1024)
	for {
		n, nr, _, _, err := m.socket.ReadMsgUnix(buf, rights)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			m.Error(err)
			return
		}
		var fds []int
		controls, _ := unix.ParseSocketControlMessage(rights[:nr])
		for i := range controls {
			more, _ := unix.ParseUnixRights(&controls[i])
			fds = append(fds, more...)
		}
		msg, err := keeper.Parse(buf[:n])
		if err != nil {
			m.Error(err)
		}
		m.mu.Lock()
		m.heard = append(m.heard, msg)
		switch name := msg[keeper.Name]; {
		case msg[keeper.Store] != "" && len(fds) == 1:
			m.store = append(m.store, keeper.Descriptor{Name: name, File: os.NewFile(uintptr(fds[0]), name)})
			fds = nil
		case msg[keeper.Remove] != "":
			m.store = slices.DeleteFunc(m.store, func(k keeper.Descriptor) bool {
				if k.Name == name {
					k.File.Close()
				}
				return k.Name == name
			})
		}
		m.mu.Unlock()
		for _, fd := range fds { // the sender of a barrier message waits until its descriptor is closed
			unix.Close(fd)
		}
	}
}

func (m *standIn) names() (names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range m.store {
		names = append(names, k.Name)
	}
	slices.Sort(names)
	return names
}

func (m *standIn) times(key string) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, h := range m.heard {
		if h[key] != "" {
			n++
		}
	}
	return n
}

// start starts the service and passes the descriptors in the store to it.
func (m *standIn) start(y *try, env ...string) {
	m.Helper()
	exe, err := os.Executable()
	if err != nil {
		m.Fatal(err)
	}
	// The environment must contain the process ID of the service itself, so a shell sets the variables and then calls
	// exec(2).
	cmd := exec.Command("/bin/sh", "-c", `LISTEN_PID=$$ WATCHDOG_PID=$$ exec "$0" "$@"`, exe)
	m.mu.Lock()
	var names []string
	for _, k := range m.store {
		names = append(names, k.Name)
		cmd.ExtraFiles = append(cmd.ExtraFiles, k.File)
	}
	m.mu.Unlock()
	y.launch(cmd, append(env, "NOTIFY_SOCKET="+m.path, "FDSTORE=100", "WATCHDOG_USEC=400000",
		fmt.Sprintf("LISTEN_FDS=%d", len(names)), "LISTEN_FDNAMES="+strings.Join(names, ":"))...)
}

func TestServiceManagerHasWhatIsKept(t *testing.T) {
	m := newStandIn(t)
	y := &try{T: t, dir: t.TempDir()}
	t.Cleanup(y.clean)
	m.start(y)
	first := y.awaitEvent("serving", 1)
	if !first.Start.Managed {
		t.Error("the start message does not report the service manager")
	}
	both := []string{fakeMount, "control"}
	y.until("the service manager has received READY=1", func() bool { return m.times(keeper.Ready) == 1 })
	if got := m.names(); !slices.Equal(got, both) {
		t.Errorf("descriptors in the store of the service manager: got %v, want %v", got, both)
	}
	y.until("the service manager has received 3 watchdog messages", func() bool { return m.times(keeper.Watchdog) >= 3 })

	// The supervisor is killed, and then its worker ends. The service manager starts another supervisor.
	y.kill(y.cmd.Process.Pid, syscall.SIGKILL)
	y.code()
	y.until("the worker has ended", func() bool { return !ours(first.PID, y.dir) })
	m.start(y)
	second := y.awaitEvent("serving", 2)
	if second.Mounts != 2 || second.Start.Reason == "" {
		t.Errorf("worker of the second supervisor: got %+v, want 2 mounts and a reason", second)
	}
	if got := m.names(); !slices.Equal(got, both) {
		t.Errorf("descriptors in the store of the service manager: got %v, want %v", got, both)
	}

	// An upgrade keeps the process of the supervisor.
	y.ask("upgrade " + y.copyExe("better"))
	y.awaitEvent("serving", 3)
	again := y.awaitEvent("supervisor", 3)
	if again.PID != y.cmd.Process.Pid {
		t.Errorf("supervisor after the upgrade: got %+v, want PID %d", again, y.cmd.Process.Pid)
	}
	y.kill(y.awaitEvent("serving", 3).PID, syscall.SIGKILL)
	if h := y.awaitEvent("serving", 4); h.Mounts != 4 || h.Version != "better" {
		t.Errorf("fourth worker: got %+v, want 4 mounts and version better", h)
	}
	beats := m.times(keeper.Watchdog)
	y.until("the service manager has received 3 watchdog messages after the upgrade",
		func() bool { return m.times(keeper.Watchdog) >= beats+3 })

	// When the supervisor is asked to exit, it removes all descriptors from the store.
	y.kill(y.cmd.Process.Pid, syscall.SIGTERM)
	if code := y.code(); code != 0 || len(y.of("stopped")) != 1 {
		t.Errorf("exit after SIGTERM: got exit code %d and events %+v, want exit code 0", code, y.events())
	}
	y.until("the store is empty", func() bool { return len(m.names()) == 0 })
	if m.times(keeper.Stopping) != 1 || m.times(keeper.Ready) != 2 {
		t.Errorf("messages to the service manager: got %v, want one STOPPING and two READY", m.heard)
	}
}

func TestRestartLeavesMountsToTheServiceManager(t *testing.T) {
	m := newStandIn(t)
	y := &try{T: t, dir: t.TempDir()}
	t.Cleanup(y.clean)
	for n := 1; n <= 3; n++ {
		m.start(y, "FAKE_LEAVE=1", "FAKE_SPARE=1")
		h := y.awaitEvent("serving", n)
		if h.Mounts != n {
			t.Errorf("worker after a restart: got %+v, want %d mounts", h, n)
		}
		y.until("the service manager has received READY=1", func() bool { return m.times(keeper.Ready) == n })
		y.kill(y.cmd.Process.Pid, syscall.SIGTERM)
		if code := y.code(); code != 0 {
			t.Errorf("exit code: got %d, want 0", code)
		}
		if m.times("BARRIER") != n || len(y.of("stopped")) > 0 || len(m.names()) != 2 {
			t.Errorf("service manager after a restart: got descriptors %v and messages %v, want 2 descriptors and %d barriers",
				m.names(), m.heard, n)
		}
	}
}

func TestManagerThatDoesNotReadIsNotWaitedFor(t *testing.T) {
	m := newStandIn(t)
	m.socket.Close()
	y := &try{T: t, dir: t.TempDir()}
	t.Cleanup(y.clean)
	m.start(y)
	y.kill(y.awaitEvent("serving", 1).PID, syscall.SIGKILL)
	start := time.Now()
	if h := y.awaitEvent("serving", 2); h.Mounts != 2 || time.Since(start) > 10*time.Second {
		t.Errorf("second worker: got %+v, want 2 mounts within 10 seconds", h)
	}
}

// TestDescriptorStore checks that a descriptor store keeps the descriptors when all processes of the daemon are killed,
// when the daemon leaves its mounts in the store, and when the store itself is replaced.
func TestDescriptorStore(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "keep")
	serve := func() (end func()) {
		cmd := exec.Command(os.Args[0], "keep", socket)
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return func() {
			cmd.Process.Kill()
			cmd.Wait()
		}
	}
	end := serve()
	defer func() { end() }()
	y := &try{T: t, dir: t.TempDir()}
	t.Cleanup(y.clean)
	start := func(env ...string) {
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		y.launch(exec.Command(exe, "supervisor", y.dir), append(env, "FAKE_STORE="+socket, "FAKE_SPARE=1")...)
	}
	files := func() (n int) {
		all, _ := fdstore.List(t.Context(), socket)
		for _, k := range all {
			n += k.Files
		}
		return n
	}
	start()
	y.awaitEvent("serving", 1)
	y.until("the store has the mount and the socket", func() bool { return files() == 2 })
	for _, pid := range append(y.processes(), y.cmd.Process.Pid) {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	y.code()

	start("FAKE_LEAVE=1")
	if h := y.awaitEvent("serving", 2); h.Mounts != 2 || h.Start.Reason == "" {
		t.Errorf("after all processes were killed: got %+v, want 2 mounts and a reason", h)
	}
	// The store is replaced. The daemon stores all descriptors in the new store.
	end()
	end = serve()
	y.until("the next store has the mount and the socket", func() bool { return files() == 2 })
	// An upgrade replaces the process of the supervisor; the store recognises the daemon.
	better := y.copyExe("better")
	y.ask("upgrade " + better)
	y.awaitEvent("serving", 3)
	// A signal during exec(2) would be lost, so wait for the end of exec(2). The number of supervisors does not show
	// it, because the worker that was killed last may also have started a supervisor.
	y.until("the supervisor has been replaced", func() bool {
		return slices.ContainsFunc(y.of("supervisor"),
			func(h happening) bool { return h.PID == y.cmd.Process.Pid && h.Exe == better })
	})
	y.kill(y.cmd.Process.Pid, syscall.SIGTERM)
	if code := y.code(); code != 0 || len(y.of("stopped")) != 0 {
		t.Errorf("exit of a daemon that leaves its mounts: got exit code %d and events %+v", code, y.events())
	}
	start()
	if h := y.awaitEvent("serving", 4); h.Mounts != 4 {
		t.Errorf("after the daemon has left its mounts: got %+v, want 4 mounts", h)
	}
	y.kill(y.cmd.Process.Pid, syscall.SIGTERM)
	if code := y.code(); code != 0 || len(y.of("stopped")) != 1 {
		t.Errorf("exit after SIGTERM: got exit code %d and events %+v, want exit code 0", code, y.events())
	}
	y.until("the store is empty", func() bool { return files() == 0 })
}
