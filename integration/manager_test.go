package integration

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

	"github.com/artifactfs/artifactfs/integration/harness/torture"
)

// manager acts as a service manager for a daemon: it listens at NOTIFY_SOCKET, keeps descriptors (FDSTORE), and
// restarts the service when its main process ends, after killing the other processes of the service.
type manager struct {
	w      *world
	conn   *net.UnixConn
	socket string

	mu    sync.Mutex
	kept  []keptFile
	ready int // number of READY=1 messages
	cmd   *exec.Cmd
	over  chan error // of cmd
}

type keptFile struct {
	name string
	file *os.File
}

func (w *world) manager() *manager {
	w.Helper()
	m := &manager{w: w, socket: filepath.Join(w.root, "notify")}
	m.conn = must[*net.UnixConn](w)(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.socket, Net: "unixgram"}))
	go m.listen()
	w.Cleanup(func() {
		m.conn.Close()
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, k := range m.kept {
			k.file.Close()
		}
		if log, err := os.ReadFile(filepath.Join(w.root, "log")); err == nil && w.Failed() {
			w.Logf("the service's log:\n%s", log[max(0, len(log)-16<<10):])
		}
	})
	return m
}

// listen receives messages until the socket is closed.
func (m *manager) listen() {
	buf, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4*768))
	for {
		n, nOOB, flags, _, err := m.conn.ReadMsgUnix(buf, oob)
		if err != nil {
			return
		}
		if flags&unix.MSG_CTRUNC != 0 {
			m.w.Error("a message was truncated and lost descriptors")
		}
		var files []*os.File
		controls, _ := unix.ParseSocketControlMessage(oob[:nOOB])
		for _, c := range controls {
			fds, _ := unix.ParseUnixRights(&c)
			for _, fd := range fds {
				unix.CloseOnExec(fd)
				files = append(files, os.NewFile(uintptr(fd), "kept"))
			}
		}
		m.take(strings.Split(string(buf[:n]), "\n"), files)
	}
}

func (m *manager) take(lines []string, files []*os.File) {
	m.mu.Lock()
	defer m.mu.Unlock()
	name := "stored"
	for _, l := range lines {
		if n, ok := strings.CutPrefix(l, "FDNAME="); ok {
			name = n
		}
	}
	switch {
	case slices.Contains(lines, "FDSTORE=1"):
		for _, f := range files {
			// As in systemd, the same open file is kept once, and another open file of the same name is kept beside the first.
			if slices.ContainsFunc(m.kept, func(k keptFile) bool { return sameOpenFile(k.file, f) }) {
				f.Close()
				continue
			}
			m.kept = append(m.kept, keptFile{name, f})
		}
		return
	case slices.Contains(lines, "FDSTOREREMOVE=1"):
		m.kept = slices.DeleteFunc(m.kept, func(k keptFile) bool {
			if k.name == name {
				k.file.Close()
			}
			return k.name == name
		})
	}
	if slices.Contains(lines, "READY=1") {
		m.ready++
	}
	for _, f := range files { // of BARRIER=1: closing the descriptor is the reply
		f.Close()
	}
}

// sameOpenFile reports whether two descriptors refer to one open file.
func sameOpenFile(a, b *os.File) bool {
	const kcmpFile = 0
	pid := uintptr(os.Getpid())
	r, _, errno := unix.Syscall6(unix.SYS_KCMP, pid, pid, kcmpFile, a.Fd(), b.Fd(), 0)
	return errno == 0 && r == 0
}

// start starts the service with the kept descriptors, and waits until it is ready.
func (m *manager) start() {
	m.w.Helper()
	m.mu.Lock()
	var names []string
	var files []*os.File
	for _, k := range m.kept {
		names, files = append(names, k.name), append(files, k.file)
	}
	before := m.ready
	// LISTEN_PID must be the pid of the service, so the shell sets it and then executes the service.
	cmd := exec.Command("sh", "-c", `export LISTEN_PID=$$; exec "$0" --state "$1" daemon`, binary, m.w.state)
	cmd.Dir, cmd.ExtraFiles = m.w.root, files
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+m.socket, "FDSTORE=4096", fmt.Sprintf("LISTEN_FDS=%d", len(files)),
		"LISTEN_FDNAMES="+strings.Join(names, ":"))
	if len(files) == 0 {
		cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+m.socket, "FDSTORE=4096")
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	log := must[*os.File](m.w)(os.OpenFile(filepath.Join(m.w.root, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644))
	defer log.Close()
	cmd.Stderr = log
	m.cmd, m.over = cmd, make(chan error, 1)
	err := cmd.Start()
	m.mu.Unlock()
	if err != nil {
		m.w.Fatal(err)
	}
	over := m.over
	go func() { over <- cmd.Wait() }()
	m.w.until("the service is ready", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.ready > before
	})
}

// restart waits for the end of the main process, kills the other processes of the service, and starts it again.
func (m *manager) restart() {
	m.w.Helper()
	<-m.over
	for _, p := range m.w.victim().Processes() { // as KillMode=mixed does
		syscall.Kill(p.PID, syscall.SIGKILL)
	}
	m.w.dead()
	m.start()
}

// names returns the names of the kept descriptors, each once.
func (m *manager) names() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for _, k := range m.kept {
		names = append(names, k.name)
	}
	slices.Sort(names)
	return names
}

// Under a service manager that keeps descriptors the mounts outlive all processes.
func TestManagerKeepsMounts(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	m.start()
	x := w.torture([]string{"names", "blocks", "deleted", "reader", "reader", "locks", "tail", "watch", "meter", "git"})
	for i := range 4 {
		at := torture.Now()
		if i%2 == 0 {
			check(t, syscall.Kill(w.victim().Supervisor(), syscall.SIGKILL))
		} else {
			check(t, syscall.Kill(-w.victim().Supervisor(), syscall.SIGKILL))
		}
		x.blows = append(x.blows, torture.Blow{At: at})
		m.restart()
		x.works("the service has ended")
		x.strike(2, syscall.SIGKILL, 100*time.Millisecond)
		if names := m.names(); len(slices.Compact(slices.Clone(names))) != len(names) {
			t.Errorf("descriptors are kept twice: %q", names)
		}
	}
	x.end()
	w.unmount(x.m)
	w.until("no descriptor of a mount is kept", func() bool {
		return !slices.ContainsFunc(m.names(), func(n string) bool { return strings.HasSuffix(n, ".device") })
	})
	again := w.mount(x.m.Remote)
	// After a final stop no mount and no kept descriptor is left.
	check(t, m.cmd.Process.Signal(syscall.SIGTERM))
	if err := <-m.over; err != nil {
		t.Errorf("the service ended with %v", err)
	}
	w.dead()
	if _, err := os.Lstat(filepath.Join(again.Dir, "big")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("read the unmounted directory: %v", err)
	}
	if at := mountsBelow(w.root); len(at) > 0 {
		t.Errorf("still mounted: %s", at)
	}
}
