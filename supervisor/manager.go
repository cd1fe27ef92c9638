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

// barrierTime bounds the wait for a manager that has not read all messages.
const (
	barrierTime = 5 * time.Second
	notifyTime  = time.Second // longest wait for a manager that does not read
)

// manager is the service manager that started this process, see sd_notify(3) and systemd.exec(5). A
// nil manager stands for none; all methods accept it.
type manager struct {
	fd    int
	addr  unix.Sockaddr
	keep  bool          // whether it stores descriptors for this process
	every time.Duration // interval of its watchdog; 0: none
}

// newManager reads the environment. FDSTORE is the size of the store; service managers before
// systemd 254 do not set it, so the unit has to.
func newManager() *manager {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	// The name is a path, or an abstract one that starts with @, which unix.SockaddrUnix converts
	// to the zero byte that the kernel expects.
	if path[0] != '/' && path[0] != '@' {
		return nil
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	timeout := unix.NsecToTimeval(notifyTime.Nanoseconds())
	// A manager that does not read must not block the supervisor, which has to replace workers.
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout)
	m := &manager{fd: fd, addr: &unix.SockaddrUnix{Name: path}}
	size, _ := strconv.Atoi(os.Getenv("FDSTORE"))
	m.keep = size > 0
	usec, _ := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	if pid := os.Getenv("WATCHDOG_PID"); usec > 0 && (pid == "" || pid == strconv.Itoa(os.Getpid())) {
		m.every = time.Duration(usec) * time.Microsecond
	}
	return m
}

// keeps reports whether the manager stores descriptors for this process.
func (m *manager) keeps() bool { return m != nil && m.keep }

// period returns the interval of notices to the manager: tick, or half of its watchdog's interval
// if that is shorter.
func (m *manager) period(tick time.Duration) time.Duration {
	if m == nil || m.every == 0 {
		return tick
	}
	return max(min(tick, m.every/2), time.Millisecond)
}

// alive resets the manager's watchdog, if it has one for this process.
func (m *manager) alive() {
	if m != nil && m.every > 0 {
		m.notify(keeper.Message{keeper.Watchdog: "1"})
	}
}

// notify sends a message to the manager. Errors are ignored: the supervisor does not depend on it.
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

// store puts a copy of a descriptor into the manager's store, so that it survives the end of this
// process.
func (m *manager) store(name string, fd int) {
	if m.keeps() {
		m.notify(keeper.Message{keeper.Store: "1", keeper.Name: name}, fd)
	}
}

// remove removes descriptors from the manager's store, which would otherwise keep two of one name.
func (m *manager) remove(s store, name string) {
	if _, ok := s[name]; ok && m.keeps() {
		m.notify(keeper.Message{keeper.Remove: "1", keeper.Name: name})
	}
}

// barrier waits until the manager has read all messages: it ignores messages of dead processes.
func (m *manager) barrier() {
	if m == nil {
		return
	}
	p := make([]int, 2)
	if err := unix.Pipe2(p, unix.O_CLOEXEC); err != nil {
		return
	}
	// The manager closes its copy of the pipe when it reads the message. The poll below sees that
	// as the end of the pipe.
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

// close closes the socket to the manager.
func (m *manager) close() {
	if m != nil {
		unix.Close(m.fd)
	}
}

// passed returns the descriptors that the manager passed to us (sd_listen_fds(3)), which were in
// its store.
func passed() store {
	s := store{}
	defer func() {
		for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
			os.Unsetenv(name)
		}
	}()
	// Variables for another process were inherited by mistake: the descriptors are not ours.
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

const firstPassed = 3 // number of the first descriptor that a manager passes (SD_LISTEN_FDS_START)
