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

// Start is what a worker is told when it shall serve.
type Start struct {
	Reason        string // why the worker before this one ended; "" for the first
	Count         int    // workers that took over, this one included
	Managed       bool   // a service manager has the descriptors too: without a supervisor the worker just ends
	Supervisor    int    // process id
	UpgradeFailed string // why the last upgrade was taken back
}

// Keep has a descriptor kept, in place of one with the same name. The caller's own stays the caller's. It is no error if
// the keeper is gone: then HandOver gives it to the next.
func (c *Conn) Keep(name string, f *os.File) error {
	if err := ValidName(name); err != nil {
		return err
	}
	dup, err := duplicate(name, f)
	if err != nil {
		return fmt.Errorf("keep %s: %w", name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remember(name, dup)
	if err := c.send(Message{Store: "1", Name: name}, dup); err != nil && !isGone(err) {
		return fmt.Errorf("keep %s: %w", name, err)
	}
	return nil
}

// Drop has a descriptor forgotten; one that is not kept is no error.
func (c *Conn) Drop(name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remember(name, nil)
	if err := c.Send(Message{Remove: "1", Name: name}); err != nil && !isGone(err) {
		return fmt.Errorf("drop %s: %w", name, err)
	}
	return nil
}

func isGone(err error) bool { return errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) }

// remember needs mu.
func (c *Conn) remember(name string, f *os.File) {
	if old := c.kept[name]; old != nil {
		old.Close()
	}
	delete(c.kept, name)
	if f != nil {
		c.kept[name] = f
	}
}

// send is Send of a file, whose flags Fd would change.
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

// duplicate leaves the flags of f as they are.
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

func dup(raw syscall.RawConn) (int, error) {
	copied, dupErr := -1, error(nil)
	if err := raw.Control(func(fd uintptr) { copied, dupErr = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 3) }); err != nil {
		return -1, err
	}
	return copied, dupErr
}

// AwaitStart says that the worker waits and returns when it shall serve, with everything that is kept. io.EOF: nobody
// needs it.
func (c *Conn) AwaitStart(version string) (Start, []Kept, error) {
	if err := c.Send(Message{Waiting: "1", Version: version}); err != nil {
		if isGone(err) {
			err = io.EOF
		}
		return Start{}, nil, err
	}
	var kept []Kept
	for {
		m, fds, err := c.Receive()
		if err != nil {
			return Start{}, nil, err
		}
		if m[Begin] != "" {
			closeAll(fds)
			return StartOf(m), kept, nil
		}
		names := strings.Split(m[Name], ":")
		if len(names) != len(fds) {
			closeAll(fds)
			return Start{}, nil, fmt.Errorf("receive descriptors: %d of them and %d names", len(fds), len(names))
		}
		for i, fd := range fds {
			f := os.NewFile(uintptr(fd), names[i])
			kept = append(kept, Kept{names[i], f})
			dup, err := duplicate(names[i], f)
			if err != nil {
				return Start{}, nil, fmt.Errorf("receive %s: %w", names[i], err)
			}
			c.mu.Lock()
			c.remember(names[i], dup)
			c.mu.Unlock()
		}
	}
}

// Message is how a Start is told.
func (s Start) Message() Message {
	m := Message{Begin: "1", Reason: s.Reason, Count: strconv.Itoa(s.Count), Supervisor: strconv.Itoa(s.Supervisor)}
	if s.Managed {
		m[Managed] = "1"
	}
	if s.UpgradeFailed != "" {
		m[UpgradeFailed] = s.UpgradeFailed
	}
	return m
}

// StartOf reads what Message wrote.
func StartOf(m Message) Start {
	count, _ := strconv.Atoi(m[Count]) // of our own making
	supervisor, _ := strconv.Atoi(m[Supervisor])
	return Start{Reason: m[Reason], Count: count, Managed: m[Managed] != "", Supervisor: supervisor, UpgradeFailed: m[UpgradeFailed]}
}

// Tell sends a message of one line, such as Ready.
func (c *Conn) Tell(key, value string) error { return c.Send(Message{key: value}) }

// HandOver gives everything that is kept to the other end of another conversation and waits until that has it.
func (c *Conn) HandOver(to *Conn, s Start) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, f := range c.kept {
		if err := to.send(Message{Store: "1", Name: name}, f); err != nil {
			return fmt.Errorf("hand over %s: %w", name, err)
		}
	}
	if err := to.Send(s.Message()); err != nil {
		return fmt.Errorf("hand over: %w", err)
	}
	m, _, err := to.Receive()
	if errors.Is(err, io.EOF) || err == nil && m[Adopted] == "" {
		return errors.New("hand over: not taken")
	}
	return err
}
