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

	"github.com/artifactfs/artifactfs/fetch/fetchmap"
)

// TraceRequest requests a message for each request that a mount answers, until the caller closes the connection or the
// mount ends.
type TraceRequest struct {
	Dir string `json:"dir"` // absolute directory of the mount
	// report all requests; false: only reads, and requests that had to wait for the remote
	All bool `json:"all"`
	// request the state of the tree, about once a second, instead of events
	Map *fetchmap.MapRequest `json:"map,omitempty"`
}

// validate returns an error if the directory is not absolute.
func (r TraceRequest) validate() error { return UnmountRequest{Dir: r.Dir}.validate() }

// TraceSource states from where the data of an answer came.
type TraceSource string

const (
	TraceHit       TraceSource = "hit"       // everything was on this host
	TraceFetched   TraceSource = "fetched"   // contents were fetched from the remote
	TraceListed    TraceSource = "listed"    // trees were fetched from the remote
	TraceSized     TraceSource = "sized"     // sizes were fetched from the remote
	TraceConverted TraceSource = "converted" // a filter program converted the contents
)

// TraceEvent describes one request that a mount has answered. `trace --json` prints one event per line.
type TraceEvent struct {
	Time time.Time `json:"time"` // time at which the request arrived
	// process that caused the request; 0: the kernel, by writing back or reading ahead
	PID     int    `json:"pid"`
	Command string `json:"command"`      // name of the process; "": the process has ended
	Op      string `json:"op"`           // name of the request in the kernel, in lower case
	Path    string `json:"path"`         // path relative to the mount; "": the root
	To      string `json:"to,omitempty"` // new path of a rename, relative to the mount
	Offset  int64  `json:"offset"`       // offset of the range that was read or written, in bytes
	Size    int64  `json:"size"`         // size of the range that was read or written, in bytes
	// Source is "hit" (on this host), "fetched", "listed" (trees were fetched), "sized" (sizes were fetched) or
	// "converted".
	Source TraceSource `json:"source"`
	// number of blobs that were requested from the remote together with this request
	Blobs int64  `json:"blobs"`
	Bytes int64  `json:"bytes"`           // number of bytes of contents that were received for this request
	Wait  int64  `json:"wait_us"`         // time until the answer, in microseconds
	Error string `json:"error,omitempty"` // name of an errno, such as ENOENT
}

// Trace is a message of a stream of events. The first message may contain no events; it then shows that the stream has
// started.
type Trace struct {
	PID    int           `json:"pid"`           // process that serves the mount
	Lost   int64         `json:"lost"`          // number of events that were dropped because the caller read too slowly
	Events []TraceEvent  `json:"events"`        // events, oldest first
	Map    *fetchmap.Map `json:"map,omitempty"` // state of the tree, if the request asks for it
}

// Trace passes every message of a mount's stream of events to the function each, in the goroutine of the caller. Trace
// returns nil when ctx or the mount ends. If the function each returns an error, Trace returns that error. ErrNoServer
// means that the process that serves the mount has ended; a successor may have taken over the mount.
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
	return fmt.Errorf("trace %s: %w", c.name(), err)
}

// readTrace sends the request line and passes every message of the answer to the function each. It returns when the
// stream ends, or when the function each returns an error.
func readTrace(conn *net.UnixConn, line []byte, each func(Trace) error) error {
	conn.SetWriteDeadline(time.Now().Add(requestTime))
	// EPIPE means that the server has refused the request without reading it. The server's error is read below.
	if _, err := conn.Write(line); err != nil && !errors.Is(err, syscall.EPIPE) {
		return fmt.Errorf("send request: %w", err)
	}
	for r := bufio.NewReader(conn); ; {
		line, err := readLine(r, maxMessage)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
			return ErrNoServer
		case err != nil:
			return fmt.Errorf("read reply: %w", err)
		}
		m, err := decodeMessage(line)
		switch {
		case err != nil:
			return err
		case m.Version != Protocol:
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

// trace sends a message of a stream. It waits without a timeout until the caller reads the message, because a caller
// that was stopped, as by Ctrl-Z, may be continued later.
func (s *sender) trace(ctx context.Context, t Trace) error {
	defer context.AfterFunc(ctx, func() { s.conn.SetWriteDeadline(time.Now()) })()
	return s.sendBy(message{Trace: &t}, time.Time{})
}
