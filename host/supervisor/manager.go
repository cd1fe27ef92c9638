package supervisor

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/keeper"
)

// Time limits for the communication with the service manager.
const (
	// barrierTime is the maximum wait until the service manager or the descriptor store has handled all messages.
	barrierTime = 5 * time.Second
	notifyTime  = time.Second // maximum wait for sending one message to a service manager that does not read
)

// manager sends messages to the service manager that started this process (see sd_notify(3) and systemd.exec(5)). A nil
// manager means that no service manager started this process. All methods accept a nil manager.
type manager struct {
	// fd is the socket from which messages are sent to addr, the address of the service manager.
	fd    int
	addr  unix.Sockaddr
	keep  bool          // whether the manager stores descriptors for this process
	every time.Duration // interval of the manager's watchdog; 0 if the manager does not watch this process
}

// newManager returns a manager for the service manager that the environment names, or nil if the environment names
// none. The environment variable FDSTORE states how many descriptors the service manager stores. Before version 254,
// systemd does not set FDSTORE, so the unit file must set this variable.
func newManager() *manager {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	// The socket's name is a path, or an abstract name that begins with @. In an abstract name the kernel expects a zero
	// byte in place of the @; unix.SockaddrUnix makes this replacement.
	if path[0] != '/' && path[0] != '@' {
		return nil
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	timeout := unix.NsecToTimeval(notifyTime.Nanoseconds())
	// The supervisor must be able to replace workers at any time, so the timeout bounds how long a manager that does not
	// read can block the supervisor.
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout)
	m := &manager{fd: fd, addr: &unix.SockaddrUnix{Name: path}}
	m.keep = Stores()
	usec, _ := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	if pid := os.Getenv("WATCHDOG_PID"); usec > 0 && (pid == "" || pid == strconv.Itoa(os.Getpid())) {
		m.every = time.Duration(usec) * time.Microsecond
	}
	return m
}

// Stores reports whether a service manager with a descriptor store has started this process.
func Stores() bool {
	size, _ := strconv.Atoi(os.Getenv("FDSTORE"))
	return size > 0 && os.Getenv("NOTIFY_SOCKET") != ""
}

// keeps reports whether the manager stores descriptors for this process.
func (m *manager) keeps() bool { return m != nil && m.keep }

// period returns the interval at which the supervisor reports to the service manager's watchdog: tick, or half of the
// watchdog's interval if that is shorter.
func (m *manager) period(tick time.Duration) time.Duration {
	if m == nil || m.every == 0 {
		return tick
	}
	return max(min(tick, m.every/2), time.Millisecond)
}

// alive reports to the manager's watchdog that this process is alive. It does nothing if the manager does not watch
// this process.
func (m *manager) alive() {
	if m != nil && m.every > 0 {
		m.notify(keeper.Message{keeper.Watchdog: "1"})
	}
}

// notify sends a message, with copies of the descriptors fds, to the service manager. It ignores errors, because the
// supervisor also works without the manager.
func (m *manager) notify(msg keeper.Message, fds ...int) {
	if m == nil {
		return
	}
	b, err := msg.Encode()
	if err != nil {
		return
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	for errors.Is(unix.Sendmsg(m.fd, b, rights, m.addr, unix.MSG_NOSIGNAL), unix.EINTR) {
	}
}

// store puts a copy of a descriptor into the service manager's descriptor store, so that the descriptor survives the
// end of this process.
func (m *manager) store(name string, fd int) {
	if m.keeps() {
		m.notify(keeper.Message{keeper.Store: "1", keeper.Name: name}, fd)
	}
}

// remove removes the descriptor called name from the service manager's store, if s has a descriptor with this name. It
// is called before a descriptor is replaced, because the service manager can store two descriptors with the same name.
func (m *manager) remove(s store, name string) {
	if _, ok := s[name]; ok && m.keeps() {
		m.notify(keeper.Message{keeper.Remove: "1", keeper.Name: name})
	}
}

// barrier waits until the service manager has read all messages of this process, for at most barrierTime. A process
// must wait before it exits, because the manager ignores the messages of a process that has died.
func (m *manager) barrier() {
	if m == nil {
		return
	}
	p := make([]int, 2)
	if err := unix.Pipe2(p, unix.O_CLOEXEC); err != nil {
		return
	}
	// The manager closes its copy of the pipe's write end when it reads the message. After that no write end is open, and
	// the poll below reports the end of the pipe.
	defer unix.Close(p[0])
	m.notify(keeper.Message{"BARRIER": "1"}, p[1])
	unix.Close(p[1])
	for end := time.Now().Add(barrierTime); ; {
		left := time.Until(end)
		if left <= 0 {
			return
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(p[0])}}, int(left.Milliseconds())+1)
		if err != nil && !errors.Is(err, unix.EINTR) || n > 0 {
			return
		}
	}
}

// close closes the socket from which messages are sent to the service manager.
func (m *manager) close() {
	if m != nil {
		unix.Close(m.fd)
	}
}

// passed returns the descriptors that the service manager has passed to this process from its descriptor store (see
// sd_listen_fds(3)), and removes the environment variables that describe them.
func passed() store {
	s := store{}
	defer func() {
		for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
			os.Unsetenv(name)
		}
	}()
	// If LISTEN_PID names another process, this process has inherited the variables by mistake, and the descriptors are
	// not meant for it.
	if os.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) {
		return s
	}
	n, _ := strconv.Atoi(os.Getenv("LISTEN_FDS"))
	names := strings.Split(os.Getenv("LISTEN_FDNAMES"), ":")
	for i := range n {
		fd := firstPassed + i
		unix.CloseOnExec(fd)
		if i >= len(names) || keeper.ValidName(names[i]) != nil {
			unix.Close(fd)
			continue
		}
		s.put(names[i], fd)
	}
	return s
}

const firstPassed = 3 // number of the first descriptor that a service manager passes (SD_LISTEN_FDS_START)
