package keeper

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Start holds the information that the supervisor sends to a worker together with the order to serve.
type Start struct {
	Reason string // how the previous worker ended; "" for the first worker
	Count  int    // number of workers that have taken over, including this one
	Hung   int    // number of workers that the watchdog has killed
	// Managed is true if a service manager also holds the descriptors. The worker then ends if it loses the supervisor.
	Managed       bool
	Supervisor    int    // process ID of the supervisor
	UpgradeFailed string // reason why the last upgrade was reverted; "" if it was not reverted
}

// Keep passes a copy of a descriptor to the supervisor, which closes an earlier descriptor with the same name. The
// caller still owns f. Keep also returns nil if the supervisor has died, because HandOver later passes the descriptor
// to the next supervisor.
func (c *Conn) Keep(name string, f *os.File) error {
	if err := ValidName(name); err != nil {
		return err
	}
	dup, err := duplicate(name, f)
	if err != nil {
		return fmt.Errorf("store descriptor %s: %w", name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setHeld(name, dup)
	if err := c.send(Message{Store: "1", Name: name}, dup); err != nil && !isGone(err) {
		return fmt.Errorf("store descriptor %s: %w", name, err)
	}
	return nil
}

// Drop makes the supervisor close the descriptor with this name. It returns nil if there is no such descriptor, or if
// the supervisor has died.
func (c *Conn) Drop(name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setHeld(name, nil)
	if err := c.Send(Message{Remove: "1", Name: name}); err != nil && !isGone(err) {
		return fmt.Errorf("remove descriptor %s: %w", name, err)
	}
	return nil
}

// isGone reports whether an error of the socket means that the other process has closed the connection.
func isGone(err error) bool { return errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) }

// setHeld stores f as the local copy of the descriptor called name, or removes the copy if f is nil. The caller holds
// mu.
func (c *Conn) setHeld(name string, f *os.File) {
	if old := c.held[name]; old != nil {
		old.Close()
	}
	delete(c.held, name)
	if f != nil {
		c.held[name] = f
	}
}

// send sends a message with the descriptor of a file. It does not call File.Fd, because File.Fd would change the file
// status flags.
func (c *Conn) send(m Message, f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var sendErr error
	if err := raw.Control(func(fd uintptr) { sendErr = c.Send(m, int(fd)) }); err != nil {
		return err
	}
	return sendErr
}

// duplicate returns a copy of f that shares the open file description of f. It leaves the file status flags unchanged.
func duplicate(name string, f *os.File) (*os.File, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd, err := dup(raw)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// dup returns a copy of a descriptor with the flag close-on-exec.
func dup(raw syscall.RawConn) (int, error) {
	copied, dupErr := -1, error(nil)
	if err := raw.Control(func(fd uintptr) { copied, dupErr = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 3) }); err != nil {
		return -1, err
	}
	return copied, dupErr
}

// AwaitStart reports to the supervisor that the worker is waiting, and blocks until the order to serve arrives. It
// returns the Start and all held descriptors, which then belong to the caller. If the worker is not needed, the
// supervisor closes the connection, and AwaitStart returns io.EOF.
func (c *Conn) AwaitStart(version string) (Start, []Descriptor, error) {
	if err := c.Send(Message{Waiting: "1", Version: version}); err != nil {
		if isGone(err) {
			err = io.EOF
		}
		return Start{}, nil, err
	}
	var descriptors []Descriptor
	for {
		m, fds, err := c.Receive()
		if err != nil {
			return Start{}, nil, err
		}
		if m[StartServing] != "" {
			CloseAll(fds)
			return StartOf(m), descriptors, nil
		}
		names := strings.Split(m[Name], ":")
		if len(names) != len(fds) {
			CloseAll(fds)
			return Start{}, nil, fmt.Errorf("receive descriptors: got %d descriptors but %d names", len(fds), len(names))
		}
		for i, fd := range fds {
			f := os.NewFile(uintptr(fd), names[i])
			descriptors = append(descriptors, Descriptor{names[i], f})
			dup, err := duplicate(names[i], f)
			if err != nil {
				return Start{}, nil, fmt.Errorf("receive descriptor %s: %w", names[i], err)
			}
			c.mu.Lock()
			c.setHeld(names[i], dup)
			c.mu.Unlock()
		}
	}
}

// Message returns the message with which the supervisor sends s to a worker.
func (s Start) Message() Message {
	m := Message{StartServing: "1", Reason: s.Reason, Count: strconv.Itoa(s.Count),
		Hung: strconv.Itoa(s.Hung), Supervisor: strconv.Itoa(s.Supervisor)}
	if s.Managed {
		m[Managed] = "1"
	}
	if s.UpgradeFailed != "" {
		m[UpgradeFailed] = s.UpgradeFailed
	}
	return m
}

// StartOf returns the Start that is encoded in the message m, which was made by Start.Message.
func StartOf(m Message) Start {
	count, _ := strconv.Atoi(m[Count]) // no error is expected, because the supervisor has written the number
	supervisor, _ := strconv.Atoi(m[Supervisor])
	hung, _ := strconv.Atoi(m[Hung]) // the key is missing in messages of older supervisors
	return Start{
		Reason: m[Reason], Count: count, Hung: hung, Managed: m[Managed] != "", Supervisor: supervisor,
		UpgradeFailed: m[UpgradeFailed],
	}
}

// SendKey sends a message with the single line KEY=VALUE. The key is one of the constants of this package, such as
// Ready.
func (c *Conn) SendKey(key, value string) error { return c.Send(Message{key: value}) }

// HandOver sends all held descriptors and s to another supervisor through the connection to, and waits for the
// confirmation of that supervisor. It returns an error if the confirmation does not arrive.
func (c *Conn) HandOver(to *Conn, s Start) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, f := range c.held {
		if err := to.send(Message{Store: "1", Name: name}, f); err != nil {
			return fmt.Errorf("hand over descriptor %s: %w", name, err)
		}
	}
	if err := to.Send(s.Message()); err != nil {
		return fmt.Errorf("hand over descriptors: %w", err)
	}
	m, _, err := to.Receive()
	if errors.Is(err, io.EOF) || err == nil && m[Adopted] == "" {
		return errors.New("hand over descriptors: receiver did not accept them")
	}
	return err
}
