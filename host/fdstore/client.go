package fdstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/internal/keeper"
)

// Client is the connection of a daemon to a Server, which keeps copies of the daemon's descriptors. Its methods may be
// called concurrently.
type Client struct {
	conn *keeper.Conn
	lost chan struct{} // closed when the connection has ended
	once sync.Once
}

// Daemon identifies a daemon that connects to a Server.
type Daemon struct {
	Name string // name of the daemon; a successor has the same name
	Life int    // read end of a pipe; every process of the daemon has the write end
	// After states that another daemon with this name runs. If the Server was just started, it waits until that daemon
	// has connected.
	After bool
}

// Connect connects a daemon to the Server at the socket, and returns the descriptors that the Server keeps under the
// daemon's name. They then belong to the caller. While processes of an earlier daemon with this name run, Connect calls
// wait once and blocks until they have ended or ctx ends.
func Connect(ctx context.Context, socket string, d Daemon, wait func()) (*Client, map[string]int, error) {
	conn, err := dial(ctx, socket)
	if err != nil {
		return nil, nil, err
	}
	defer context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })()
	kept, err := enter(conn, d, wait)
	if err != nil {
		for _, fd := range kept {
			unix.Close(fd)
		}
		conn.Close()
		if ctx.Err() != nil {
			err = ctx.Err()
		} else if errors.Is(err, io.EOF) {
			err = errors.New("connection was closed")
		}
		return nil, nil, err
	}
	c := &Client{conn: conn, lost: make(chan struct{})}
	go c.watch()
	return c, kept, nil
}

// dial connects to the socket of a Server.
func dial(ctx context.Context, socket string) (*keeper.Conn, error) {
	var d net.Dialer
	u, err := d.DialContext(ctx, "unixpacket", socket)
	if err != nil {
		return nil, err
	}
	defer u.Close()
	file, err := u.(*net.UnixConn).File()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	return keeper.Open(fd)
}

// enter sends the first message of the daemon d, and receives the Server's answer. It returns the descriptors that have
// arrived, even after an error. It calls wait if the Server must wait for an earlier daemon.
func enter(conn *keeper.Conn, d Daemon, wait func()) (kept map[string]int, err error) {
	kept = map[string]int{}
	hello := keeper.Message{keyDaemon: d.Name}
	if d.After {
		hello[keyAfter] = "1"
	}
	if err := conn.Send(hello, d.Life); err != nil {
		return kept, err
	}
	for {
		m, fds, err := conn.Receive()
		if err != nil {
			return kept, err
		}
		names := strings.Split(m[keeper.Name], ":")
		switch {
		case m[keyWait] != "":
			wait()
		case m[keeper.StartServing] != "":
			return kept, nil
		case len(fds) != len(names):
			keeper.CloseAll(fds)
			return kept, fmt.Errorf("receive descriptors: got %d descriptors but %d names", len(fds), len(names))
		default:
			for i, fd := range fds {
				kept[names[i]] = fd
			}
		}
	}
}

// watch closes c.lost when the connection has ended. It closes descriptors that arrive before, because the Server must
// not send any then.
func (c *Client) watch() {
	defer close(c.lost)
	for {
		_, fds, err := c.conn.Receive()
		if err != nil {
			return
		}
		keeper.CloseAll(fds)
	}
}

// Lost returns a channel that is closed when the connection to the Server has ended.
func (c *Client) Lost() <-chan struct{} { return c.lost }

// Store makes the Server keep a copy of the descriptor fd, in place of an earlier one with the same name.
func (c *Client) Store(name string, fd int) error {
	return c.conn.Send(keeper.Message{keeper.Store: "1", keeper.Name: name}, fd)
}

// Remove makes the Server close the descriptor that it keeps under this name.
func (c *Client) Remove(name string) error {
	return c.conn.Send(keeper.Message{keeper.Remove: "1", keeper.Name: name})
}

// Complete makes the Server close all descriptors that were not stored through this connection.
func (c *Client) Complete() error { return c.conn.SendKey(keyComplete, "1") }

// Barrier waits until the Server has handled all earlier messages of this Client. It returns an error after the
// duration limit, and if the Server has ended.
func (c *Client) Barrier(limit time.Duration) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	err = c.conn.Send(keeper.Message{keyBarrier: "1"}, int(w.Fd()))
	w.Close()
	if err != nil {
		return err
	}
	r.SetReadDeadline(time.Now().Add(limit))
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		return fmt.Errorf("wait for descriptor store: %w", err)
	}
	// The pipe also ends if the Server ends before it has handled the message. The kernel shuts the connection down before
	// it closes the descriptors in unread messages, so another message then fails.
	if err := c.conn.Send(keeper.Message{keyBarrier: "1"}); err != nil {
		return fmt.Errorf("descriptor store has ended: %w", err)
	}
	return nil
}

// Close closes the connection. The Server keeps its copies of the descriptors.
func (c *Client) Close() { c.once.Do(func() { c.conn.Close() }) }

// Kept describes the descriptors that a Server keeps for one daemon.
type Kept struct {
	Daemon  string `json:"daemon"`  // name of the daemon: its state directory
	Files   int    `json:"files"`   // number of descriptors
	Mounts  int    `json:"mounts"`  // number of mounts to which the descriptors belong
	Running bool   `json:"running"` // whether processes of the daemon run
	Waiting int    `json:"waiting"` // number of daemons that wait for the end of these processes
}

// List returns descriptions of all descriptors that the Server at the socket keeps, one element for each daemon.
func List(ctx context.Context, socket string) ([]Kept, error) {
	conn, err := dial(ctx, socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	conn.SetReadDeadline(time.Now().Add(helloTime))
	if err := conn.SendKey(keyList, "1"); err != nil {
		return nil, err
	}
	all := []Kept{}
	for {
		m, fds, err := conn.Receive()
		keeper.CloseAll(fds)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		k := Kept{Daemon: m[keyDaemon], Running: m[keyRunning] != ""}
		k.Files, _ = strconv.Atoi(m[keyFiles]) // the Server has written the numbers, so they are valid
		k.Mounts, _ = strconv.Atoi(m[keyMounts])
		k.Waiting, _ = strconv.Atoi(m[keyWaiting])
		all = append(all, k)
	}
}
