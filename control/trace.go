package control

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"
)

// TraceRequest requests a message for each request that a mount answers, until the caller leaves or
// the mount ends.
type TraceRequest struct {
	Dir string `json:"dir"` // absolute mount directory
	All bool   `json:"all"` // false: reads, and whatever had to wait for the remote
}

func (r TraceRequest) validate() error {
	return UnmountRequest{Dir: r.Dir}.validate()
}

// TraceSource says where missing data came from.
type TraceSource string

const (
	TraceHit       TraceSource = "hit"       // it was on this host
	TraceFetched   TraceSource = "fetched"   // contents were fetched from the remote
	TraceListed    TraceSource = "listed"    // directory listings were fetched from the remote
	TraceSized     TraceSource = "sized"     // sizes were fetched from the remote
	TraceConverted TraceSource = "converted" // a filter had to run
)

// TraceEvent is one answered request. `trace --json` prints one a line.
type TraceEvent struct {
	Time    time.Time   `json:"time"`
	PID     int         `json:"pid"`     // 0: the kernel itself, writing back or reading ahead
	Command string      `json:"command"` // name of the process; "" if it has gone
	Op      string      `json:"op"`      // the kernel's name of the request, in lower case
	Path    string      `json:"path"`    // relative to the mount; "" is its root
	To      string      `json:"to,omitempty"`
	Offset  int64       `json:"offset"` // of the range that was read or written, in bytes
	Size    int64       `json:"size"`   // of the range that was read or written, in bytes
	Source  TraceSource `json:"source"`
	Blobs   int64       `json:"blobs"`           // that the request to the remote asked for, this one among them
	Bytes   int64       `json:"bytes"`           // bytes of contents that were received for this request
	Wait    int64       `json:"wait_us"`         // until the answer, in microseconds
	Error   string      `json:"error,omitempty"` // an errno's name, such as ENOENT
}

// Trace is some events, or a sign that the stream has begun.
type Trace struct {
	PID    int          `json:"pid"`  // of the process that serves the mount
	Lost   int64        `json:"lost"` // events that were not sent because the asker was slow
	Events []TraceEvent `json:"events"`
}

// Trace calls each with the requests of a mount, from this goroutine, until ctx ends, which is no
// error, or the mount ends. ErrNoServer means that the process ended: another may have taken the
// mount over.
func (c *Client) Trace(ctx context.Context, r TraceRequest, each func(Trace) error) error {
	line, err := encodeRequest(opTrace, r)
	if err != nil {
		return err
	}
	conn, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	err = readTrace(conn, line, each)
	var e *Error
	switch {
	case ctx.Err() != nil:
		return nil
	case err == nil, errors.As(err, &e), errors.Is(err, ErrNoServer):
		return err
	}
	return fmt.Errorf("ask %s: %w", c.name(), err)
}

// readTrace sends the request and calls each for every message, until the connection ends or each
// returns an error.
func readTrace(conn *net.UnixConn, line []byte, each func(Trace) error) error {
	conn.SetWriteDeadline(time.Now().Add(requestTime))
	// EPIPE means that the server has refused the request already; its error is read below.
	if _, err := conn.Write(line); err != nil && !errors.Is(err, syscall.EPIPE) {
		return fmt.Errorf("send request: %w", err)
	}
	for r := bufio.NewReader(conn); ; {
		line, err := readLine(r, maxMessage)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
			return ErrNoServer
		case err != nil:
			return fmt.Errorf("read answer: %w", err)
		}
		m, err := decodeMessage(line)
		switch {
		case err != nil:
			return err
		case !readable(m.Version):
			return otherVersion(conn, m.Version)
		case m.Error != nil:
			return m.Error
		case m.Result != nil:
			return nil
		case m.Trace != nil:
			if err := each(*m.Trace); err != nil {
				return err
			}
		}
	}
}

// trace sends a message of a stream and waits until the caller reads it: a caller that stops
// reading, as with Ctrl-Z, may continue.
func (s *sender) trace(ctx context.Context, t Trace) error {
	defer context.AfterFunc(ctx, func() { s.conn.SetWriteDeadline(time.Now()) })()
	return s.sendBy(message{Trace: &t}, time.Time{})
}
