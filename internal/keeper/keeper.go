// Package keeper implements the protocol between a worker, which serves mounts, and the supervisor, which holds the
// worker's descriptors so that a successor of the worker can continue to use them. The protocol uses the syntax of
// sd_notify(3) over a SOCK_SEQPACKET socket pair.
//
// A message consists of lines of the form KEY=VALUE, and of descriptors. The worker sends
//
//	FDSTORE=1 FDNAME=n        and a descriptor: hold it in place of an earlier one with this name
//	FDSTOREREMOVE=1 FDNAME=n  close the held descriptor with this name
//	X_WAITING=1 X_VERSION=v   the worker has started and waits for START
//	READY=1                   the worker serves
//	WATCHDOG=1                the worker is alive
//	STATUS=text               a status for users to read
//	STOPPING=1                everything is unmounted and the worker ends: no successor is needed
//	X_UPGRADE=/abs/exe        start a successor from that executable, whose descriptor is attached
//
// The supervisor sends
//
//	FDNAME=n:n                and as many descriptors: all that the supervisor holds
//	START=1 X_REASON=why X_COUNT=n ...  the order to serve; see Start
//	X_REASON=why              how the predecessor ended, if that was not known at START
//	STOP=1                    unmount everything and end
//	X_UPGRADE_FAILED=why      the requested upgrade has failed
//
// A message arrives as a whole and in order, even if the sender dies immediately after sending it, so messages are not
// acknowledged. A Conn never changes the file status flags (such as O_NONBLOCK) of a descriptor that it sends or
// receives, because the flags belong to the open file description, which other processes share.
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

// Limits of messages and of the time to send them.
const (
	maxMessage = 32 << 10 // maximum length of a message in bytes
	maxName    = 255      // maximum length of a descriptor's name in bytes; see sd_pid_notify_with_fds(3)
	// maxFiles is the maximum number of descriptors in one message. The kernel permits 253 (SCM_MAX_FD), but the names of
	// the descriptors must also fit into the message.
	maxFiles = 100
	sendTime = 3 * time.Second // time after which Send fails if the receiver does not read
)

// These are the keys of messages. The comment beside each key states the meaning of its value.
const (
	Store         = "FDSTORE"          // "1": the receiver must hold the attached descriptor
	Remove        = "FDSTOREREMOVE"    // "1": the receiver must close a held descriptor
	Name          = "FDNAME"           // names of descriptors, separated by colons
	Waiting       = "X_WAITING"        // "1": the worker is waiting for StartServing
	Version       = "X_VERSION"        // version of the worker
	Ready         = "READY"            // "1": the worker serves
	Watchdog      = "WATCHDOG"         // "1": the worker is alive
	Status        = "STATUS"           // text for users to read
	Stopping      = "STOPPING"         // "1": the worker has unmounted everything and ends
	Upgrade       = "X_UPGRADE"        // absolute path of the executable of a successor
	StartServing  = "START"            // "1": the worker must serve; see Start
	Reason        = "X_REASON"         // value of Start.Reason
	Count         = "X_COUNT"          // value of Start.Count
	Hung          = "X_HUNG"           // value of Start.Hung
	Managed       = "X_MANAGED"        // "1" if Start.Managed is true
	Supervisor    = "X_SUPERVISOR"     // value of Start.Supervisor
	UpgradeFailed = "X_UPGRADE_FAILED" // value of Start.UpgradeFailed
	Stop          = "STOP"             // "1": the worker must unmount everything and end
	Adopted       = "X_ADOPTED"        // "1": the supervisor has taken the descriptors of HandOver
)

// Descriptor is a held descriptor with its name.
type Descriptor struct {
	Name string   // name under which the descriptor is held; see ValidName
	File *os.File // the descriptor; it belongs to the receiver
}

// Message maps the keys of one message to their values.
type Message map[string]string

// Encode returns the message in the syntax of sd_notify(3), with its lines sorted by key. It replaces line feeds in
// values by spaces. It returns an error if the result is longer than maxMessage bytes.
func (m Message) Encode() ([]byte, error) {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(&b, "%s=%s\n", key, strings.ReplaceAll(m[key], "\n", " "))
	}
	if b.Len() > maxMessage {
		return nil, fmt.Errorf("encode message: message has %d bytes, limit is %d", b.Len(), maxMessage)
	}
	return []byte(b.String()), nil
}

// Parse parses a message. It returns an error for a line that does not have the form KEY=VALUE, but accepts unknown
// keys.
func Parse(b []byte) (Message, error) {
	m := Message{}
	for line := range strings.Lines(string(b)) {
		key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("read message: line %.40q does not have the form KEY=VALUE", line)
		}
		m[key] = value
	}
	return m, nil
}

// ValidName returns nil if both the supervisor and a service manager can hold a descriptor under this name. The name
// must have 1 to 255 printable ASCII characters and no colon.
func ValidName(name string) error {
	bad := func(r rune) bool { return r <= ' ' || r >= 0x7f || r == ':' }
	if name == "" || len(name) > maxName || strings.ContainsFunc(name, bad) {
		return fmt.Errorf("check name of descriptor %.40q: want 1 to %d printable ASCII characters without a colon",
			name, maxName)
	}
	return nil
}

// Conn is one end of a connection between a worker and the supervisor. Its methods may be called concurrently, except
// Receive and the methods that call Receive: AwaitStart, and HandOver for the Conn that is passed to it.
type Conn struct {
	c           *net.UnixConn
	buf, rights []byte // buffers of Receive for the message and its control messages

	mu sync.Mutex
	// held contains copies of the descriptors that were passed to Keep or received by AwaitStart, by name; protected by
	// mu.
	held map[string]*os.File
}

// Pair returns the two ends of a new connection. The caller must pass peer to a child process and then close it.
func Pair() (c *Conn, peer *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("create socket pair: %w", err)
	}
	peer = os.NewFile(uintptr(fds[1]), "keeper")
	if c, err = Open(fds[0]); err != nil {
		peer.Close()
		return nil, nil, err
	}
	return c, peer, nil
}

// Open returns a Conn that uses the inherited descriptor fd. Open takes ownership of fd, even if it returns an error.
func Open(fd int) (*Conn, error) {
	f := os.NewFile(uintptr(fd), "keeper")
	if f == nil {
		return nil, errors.New("open supervisor socket: invalid descriptor")
	}
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("open supervisor socket: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, errors.New("open supervisor socket: descriptor is not a unix socket")
	}
	return &Conn{
		c: u, buf: make([]byte, maxMessage+1), rights: make([]byte, unix.CmsgSpace(4*maxFiles)),
		held: map[string]*os.File{},
	}, nil
}

// Send sends a message with copies of descriptors. If the receiver does not read, Send returns an error after sendTime.
func (c *Conn) Send(m Message, fds ...int) error {
	b, err := m.Encode()
	if err != nil {
		return err
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	c.c.SetWriteDeadline(time.Now().Add(sendTime)) // a receiver that does not read must not block this process
	if _, _, err := c.c.WriteMsgUnix(b, rights, nil); err != nil {
		return fmt.Errorf("send message: %w", err)
	}
	return nil
}

// SendDescriptors sends the given descriptors with their names. It sends many of them in each message, because sending
// each descriptor in a separate message would take longer than the rest of a takeover.
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

// Receive returns the next message with its descriptors, which the caller must close. It returns io.EOF if the other
// process has closed the connection.
func (c *Conn) Receive() (m Message, fds []int, err error) {
	n, nr, flags, _, err := c.c.ReadMsgUnix(c.buf, c.rights)
	for errors.Is(err, unix.ECONNRESET) {
		// The other process has closed the connection before it has read all messages. Linux returns this error once, before
		// the messages that the other process has sent (unix_dgram_recvmsg in net/unix/af_unix.c).
		n, nr, flags, _, err = c.c.ReadMsgUnix(c.buf, c.rights)
	}
	if err != nil {
		return nil, nil, err
	}
	fds, err = parseRights(c.rights[:nr])
	if err == nil && n == 0 && len(fds) == 0 {
		return nil, nil, io.EOF // no valid message is empty, so the other process has closed the connection
	}
	if err == nil && (flags&unix.MSG_CTRUNC != 0 || n > maxMessage) {
		err = fmt.Errorf("read message: truncated to %d descriptors and %d bytes", len(fds), n)
	}
	if err == nil {
		m, err = Parse(c.buf[:n])
	}
	if err != nil {
		CloseAll(fds)
		return nil, nil, err
	}
	return m, fds, nil
}

// CloseAll closes all given descriptors.
func CloseAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// SetReadDeadline makes a call of Receive fail with os.ErrDeadlineExceeded if it has received no message at the time t.
func (c *Conn) SetReadDeadline(t time.Time) { c.c.SetReadDeadline(t) }

// Dup returns a close-on-exec copy of the connection's descriptor.
func (c *Conn) Dup() (int, error) {
	raw, err := c.c.SyscallConn()
	if err != nil {
		return -1, err
	}
	return dup(raw)
}

// parseRights returns the descriptors of a control message (SCM_RIGHTS). If it returns an error, it also returns the
// descriptors that it has found.
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

// Close closes the connection and the local copies of held descriptors.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.held {
		f.Close()
	}
	clear(c.held)
	return c.c.Close()
}
