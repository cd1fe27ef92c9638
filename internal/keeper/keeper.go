// Package keeper implements the protocol between a worker, which serves mounts, and the supervisor, which holds its descriptors so that
// a successor can continue with them: the syntax of sd_notify(3) over a SOCK_SEQPACKET pair.
//
// A message consists of lines KEY=VALUE, and of descriptors. The worker sends
//
//	FDSTORE=1 FDNAME=n        and a descriptor: keep it, in place of one of the same name
//	FDSTOREREMOVE=1 FDNAME=n  forget it
//	X_WAITING=1 X_VERSION=v   it has started and waits for its START
//	READY=1                   it serves
//	WATCHDOG=1                it is well
//	STATUS=text               for people
//	STOPPING=1                all is unmounted; its end is no accident
//	X_UPGRADE=/abs/exe        asks for a successor from that executable
//
// and the supervisor sends
//
//	FDNAME=n:n                and as many descriptors: everything that it holds
//	START=1 X_REASON=why X_COUNT=n ...  serve, see Start
//	X_REASON=why              how the predecessor ended, if that was not known at START
//	STOP=1                    unmount everything and end
//	X_UPGRADE_FAILED=why      the upgrade asked for is not made
//
// Promises: messages arrive whole, in order, and also when their sender died right after sending, so nothing is
// acknowledged. A Conn never changes a file status flag (O_NONBLOCK) of what it sends or receives: the flags are shared
// by all who hold the same open file.
package keeper

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxMessage = 32 << 10 // bytes
	maxName    = 255      // bytes of an FDNAME, see sd_pid_notify_with_fds(3)
	maxFiles   = 100      // of a message; the kernel takes 253 (SCM_MAX_FD), and their names must fit
	sendTime   = 3 * time.Second
)

// Keys of messages.
const (
	Store         = "FDSTORE"
	Remove        = "FDSTOREREMOVE"
	Name          = "FDNAME"
	Waiting       = "X_WAITING"
	Version       = "X_VERSION"
	Ready         = "READY"
	Watchdog      = "WATCHDOG"
	Status        = "STATUS"
	Stopping      = "STOPPING"
	Upgrade       = "X_UPGRADE"
	Begin         = "START"
	Reason        = "X_REASON"
	Count         = "X_COUNT"
	Managed       = "X_MANAGED"
	Supervisor    = "X_SUPERVISOR"
	UpgradeFailed = "X_UPGRADE_FAILED"
	Stop          = "STOP"
	Adopted       = "X_ADOPTED"
)

// Kept is a descriptor with the name under which it is held.
type Kept struct {
	Name string
	File *os.File
}

// Message holds the lines of one message, values by keys.
type Message map[string]string

// Encode returns the message in the syntax of sd_notify(3), its lines sorted by key. A line feed in a value becomes a space.
func (m Message) Encode() ([]byte, error) {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(&b, "%s=%s\n", key, strings.ReplaceAll(m[key], "\n", " "))
	}
	if b.Len() > maxMessage {
		return nil, fmt.Errorf("encode message: %d bytes, limit is %d", b.Len(), maxMessage)
	}
	return []byte(b.String()), nil
}

// Parse parses a message. A line that is not KEY=VALUE is an error; an unknown key is not.
func Parse(b []byte) (Message, error) {
	m := Message{}
	for line := range strings.Lines(string(b)) {
		key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("read message: %.40q is no KEY=VALUE", line)
		}
		m[key] = value
	}
	return m, nil
}

// ValidName returns an error if a descriptor cannot be held under name, here and in a service manager's store.
func ValidName(name string) error {
	bad := func(r rune) bool { return r <= ' ' || r >= 0x7f || r == ':' }
	if name == "" || len(name) > maxName || strings.ContainsFunc(name, bad) {
		return fmt.Errorf("name descriptor: %.40q: not 1 to %d printable ASCII characters without colon", name, maxName)
	}
	return nil
}

// Conn is one end of the conversation. Its methods may be called concurrently, but for Receive and what calls it.
type Conn struct {
	c           *net.UnixConn
	buf, rights []byte // of Receive

	mu   sync.Mutex
	kept map[string]*os.File // copies of what was given to Keep or received, see All
}

// Pair returns the two ends of a connection; peer is for a child process.
func Pair() (c *Conn, peer *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make socket pair: %w", err)
	}
	peer = os.NewFile(uintptr(fds[1]), "keeper")
	if c, err = Open(fds[0]); err != nil {
		peer.Close()
		return nil, nil, err
	}
	return c, peer, nil
}

// Open makes a Conn of an inherited descriptor, which is its own from now on, whatever it returns.
func Open(fd int) (*Conn, error) {
	f := os.NewFile(uintptr(fd), "keeper")
	if f == nil {
		return nil, errors.New("open keeper: no descriptor")
	}
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("open keeper: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, errors.New("open keeper: not a unix socket")
	}
	return &Conn{
		c: u, buf: make([]byte, maxMessage+1), rights: make([]byte, unix.CmsgSpace(4*maxFiles)),
		kept: map[string]*os.File{},
	}, nil
}

// Send sends a message with descriptors.
func (c *Conn) Send(m Message, fds ...int) error {
	b, err := m.Encode()
	if err != nil {
		return err
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	c.c.SetWriteDeadline(time.Now().Add(sendTime)) // whoever does not read is wedged
	if _, _, err := c.c.WriteMsgUnix(b, rights, nil); err != nil {
		return fmt.Errorf("send message: %w", err)
	}
	return nil
}

// SendKept sends what is held, many descriptors in each message: a thousand messages would take longer than the rest of a takeover.
func (c *Conn) SendKept(kept map[string]int) error {
	for names := range slices.Chunk(slices.Sorted(maps.Keys(kept)), maxFiles) {
		fds := make([]int, len(names))
		for i, name := range names {
			fds[i] = kept[name]
		}
		if err := c.Send(Message{Name: strings.Join(names, ":")}, fds...); err != nil {
			return err
		}
	}
	return nil
}

// Receive returns the next message with its descriptors, which the caller closes. The error is io.EOF if the other end is closed.
func (c *Conn) Receive() (m Message, fds []int, err error) {
	n, nr, flags, _, err := c.c.ReadMsgUnix(c.buf, c.rights)
	switch {
	case errors.Is(err, unix.ECONNRESET):
		return nil, nil, io.EOF
	case err != nil:
		return nil, nil, err
	}
	fds, err = parseRights(c.rights[:nr])
	if err == nil && n == 0 && len(fds) == 0 {
		return nil, nil, io.EOF // no message of ours is empty
	}
	if err == nil && (flags&unix.MSG_CTRUNC != 0 || n > maxMessage) {
		err = fmt.Errorf("read message: cut off at %d descriptors, %d bytes", len(fds), n)
	}
	if err == nil {
		m, err = Parse(c.buf[:n])
	}
	if err != nil {
		closeAll(fds)
		return nil, nil, err
	}
	return m, fds, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// SetReadDeadline makes Receive fail with os.ErrDeadlineExceeded after a time.
func (c *Conn) SetReadDeadline(t time.Time) { c.c.SetReadDeadline(t) }

// Dup returns a copy of the descriptor of this end, close-on-exec.
func (c *Conn) Dup() (int, error) {
	raw, err := c.c.SyscallConn()
	if err != nil {
		return -1, err
	}
	return dup(raw)
}

func parseRights(b []byte) (fds []int, err error) {
	messages, err := unix.ParseSocketControlMessage(b)
	if err != nil {
		return nil, fmt.Errorf("read message: %w", err)
	}
	for i := range messages {
		more, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return fds, fmt.Errorf("read message: %w", err)
		}
		fds = append(fds, more...)
	}
	return fds, nil
}

// Close closes the connection and the copies of descriptors.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.kept {
		f.Close()
	}
	clear(c.kept)
	return c.c.Close()
}
