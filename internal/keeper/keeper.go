// Package keeper implements the protocol between a worker, which serves mounts, and the supervisor, which holds the worker's
// descriptors so that a successor can continue with them. The protocol uses the syntax of sd_notify(3) over a SOCK_SEQPACKET
// socket pair.
//
// A message consists of lines KEY=VALUE and of descriptors. The worker sends
//
//	FDSTORE=1 FDNAME=n        and a descriptor, to be held in place of one of the same name
//	FDSTOREREMOVE=1 FDNAME=n  the held descriptor is to be closed
//	X_WAITING=1 X_VERSION=v   the worker has started and waits for START
//	READY=1                   the worker serves
//	WATCHDOG=1                the worker is alive
//	STATUS=text               a status for people
//	STOPPING=1                everything is unmounted and the worker ends: no successor is needed
//	X_UPGRADE=/abs/exe        a successor is to be started from that executable
//
// and the supervisor sends
//
//	FDNAME=n:n                and as many descriptors: all that the supervisor holds
//	START=1 X_REASON=why X_COUNT=n ...  the worker has to serve; see Start
//	X_REASON=why              how the predecessor ended, if that was not known at START
//	STOP=1                    the worker has to unmount everything and end
//	X_UPGRADE_FAILED=why      the requested upgrade has failed
//
// Messages arrive whole and in order, even if the sender dies right after sending, so they are not acknowledged. A Conn never
// changes the file status flags (O_NONBLOCK) of a descriptor that it sends or receives, because all processes that have the
// same open file description share the flags.
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

// Limits of messages.
const (
	maxMessage = 32 << 10        // bytes
	maxName    = 255             // bytes of an FDNAME; see sd_pid_notify_with_fds(3)
	maxFiles   = 100             // descriptors of one message: the kernel permits 253 (SCM_MAX_FD), and their names must fit too
	sendTime   = 3 * time.Second // time after which Send fails if the other end does not read
)

// Keys of messages, each with its value.
const (
	Store         = "FDSTORE"          // "1": hold the attached descriptor
	Remove        = "FDSTOREREMOVE"    // "1": close a held descriptor
	Name          = "FDNAME"           // names of descriptors, separated by colons
	Waiting       = "X_WAITING"        // "1": the worker waits for Begin
	Version       = "X_VERSION"        // version of the worker
	Ready         = "READY"            // "1": the worker serves
	Watchdog      = "WATCHDOG"         // "1": the worker is alive
	Status        = "STATUS"           // text for people
	Stopping      = "STOPPING"         // "1": the worker has unmounted everything and ends
	Upgrade       = "X_UPGRADE"        // absolute path of the executable of a successor
	StartServing  = "START"            // "1": the worker has to serve; see Start
	Reason        = "X_REASON"         // Start.Reason
	Count         = "X_COUNT"          // Start.Count
	Managed       = "X_MANAGED"        // Start.Managed, "1"
	Supervisor    = "X_SUPERVISOR"     // Start.Supervisor
	UpgradeFailed = "X_UPGRADE_FAILED" // Start.UpgradeFailed
	Stop          = "STOP"             // "1": the worker has to unmount everything and end
	Adopted       = "X_ADOPTED"        // reply to HandOver: the descriptors have been taken
)

// Descriptor is a held descriptor with its name.
type Descriptor struct {
	Name string   // see ValidName
	File *os.File // owned by the receiver
}

// Message holds the lines of one message as values by key.
type Message map[string]string

// Encode returns the message in the syntax of sd_notify(3), with its lines sorted by key. Line feeds in values become
// spaces. It returns an error if the message exceeds maxMessage bytes.
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

// ValidName returns an error unless a descriptor can be held under name, both by the supervisor and by a service
// manager (1 to 255 printable ASCII characters without colon).
func ValidName(name string) error {
	bad := func(r rune) bool { return r <= ' ' || r >= 0x7f || r == ':' }
	if name == "" || len(name) > maxName || strings.ContainsFunc(name, bad) {
		return fmt.Errorf("name descriptor: %.40q: not 1 to %d printable ASCII characters without colon", name, maxName)
	}
	return nil
}

// Conn is one end of a connection between worker and supervisor. Its methods may be called concurrently, except
// Receive and the methods that call it: AwaitStart, and HandOver for its argument.
type Conn struct {
	c           *net.UnixConn
	buf, rights []byte // buffers of Receive

	mu   sync.Mutex
	held map[string]*os.File // copies of the descriptors passed to Keep or received by AwaitStart, by name; guarded by mu
}

// Pair returns the two ends of a new connection. peer is to be passed to a child process, and then closed by the
// caller.
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

// Open returns a Conn that uses the inherited descriptor fd. Open takes ownership of fd, also if it returns an error.
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
		held: map[string]*os.File{},
	}, nil
}

// Send sends a message with copies of descriptors. It returns an error after sendTime if the other end does not read.
func (c *Conn) Send(m Message, fds ...int) error {
	b, err := m.Encode()
	if err != nil {
		return err
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	c.c.SetWriteDeadline(time.Now().Add(sendTime)) // a process that does not read hangs
	if _, _, err := c.c.WriteMsgUnix(b, rights, nil); err != nil {
		return fmt.Errorf("send message: %w", err)
	}
	return nil
}

// SendDescriptors sends held descriptors, by name, with many in each message: one message for each would take longer than
// the rest of a takeover.
func (c *Conn) SendDescriptors(descriptors map[string]int) error {
	for names := range slices.Chunk(slices.Sorted(maps.Keys(descriptors)), maxFiles) {
		fds := make([]int, len(names))
		for i, name := range names {
			fds[i] = descriptors[name]
		}
		if err := c.Send(Message{Name: strings.Join(names, ":")}, fds...); err != nil {
			return err
		}
	}
	return nil
}

// Receive returns the next message with its descriptors, which the caller must close. The error is io.EOF if the
// other end is closed.
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
		return nil, nil, io.EOF // no valid message is empty
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

// closeAll closes descriptors.
func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// SetReadDeadline makes Receive fail with os.ErrDeadlineExceeded after t.
func (c *Conn) SetReadDeadline(t time.Time) { c.c.SetReadDeadline(t) }

// Dup returns a close-on-exec copy of the connection's descriptor.
func (c *Conn) Dup() (int, error) {
	raw, err := c.c.SyscallConn()
	if err != nil {
		return -1, err
	}
	return dup(raw)
}

// parseRights returns the descriptors of a control message (SCM_RIGHTS), also if it returns an error.
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

// Close closes the connection and the local copies of descriptors.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.held {
		f.Close()
	}
	clear(c.held)
	return c.c.Close()
}
