package daemon

import (
	"context"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	raw "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/internal/metrics"
	"github.com/artifactfs/artifactfs/internal/signal"
)

const (
	traceRoom  = 8192    // maximum number of events in the buffer for a client that reads slowly
	tracePaths = 4 << 20 // maximum length, in bytes, of all paths of the events in the buffer
	// traceParts is the number by which the limits above are divided to get those of one message. The messages are
	// smaller than the buffer, because the JSON encoding makes the paths longer.
	traceParts = 8
	tracePause = 20 * time.Millisecond // time in which events are collected for one message
)

// Trace passes the requests that the kernel sends to a mount to the function emit, until the mount ends. The mount does
// not wait for emit: if the buffer is full, events are dropped and counted.
func (d *Daemon) Trace(ctx context.Context, r control.TraceRequest, emit func(control.Trace) error) error {
	m, err := d.servedMount("trace", r.Dir)
	if err != nil {
		return err
	}
	server, tree, ok := m.Observed()
	if !ok {
		return fault.NotMounted("trace", r.Dir)
	}
	if r.Map != nil {
		return traceMap(ctx, server, tree, *r.Map, m.Ended(), emit)
	}
	l := &listener{all: r.All, wake: make(chan struct{}, 1)}
	// Recording starts before the first message is sent, so that no event after that message is missed.
	defer server.Trace(l.add, true)()
	for {
		t, more := l.take() // the first message may be empty; it shows the client that the stream has begun
		if err := emit(t); err != nil {
			return err
		}
		if more {
			continue
		}
		select {
		case <-l.wake:
		case <-ctx.Done(): // the client has disconnected, or the daemon exits
			return nil
		case <-m.Ended():
			// The remaining events are sent before the stream ends.
			for more := true; more; {
				t, more = l.take()
				if err := emit(t); err != nil {
					return err
				}
			}
			return nil
		}
		select {
		case <-time.After(tracePause):
		case <-ctx.Done():
			return nil
		}
	}
}

// listener buffers the events of a mount for one call of Trace. mu protects the fields that follow it.
type listener struct {
	all  bool
	wake chan struct{} // signals that there are new events; has the capacity 1

	mu     sync.Mutex
	events []control.TraceEvent
	paths  int // total length, in bytes, of the paths in events
	lost   int64
}

// add buffers an event, or counts it as lost if the buffer is full. If l.all is not set, add ignores all events except
// reads and requests that had to wait for data.
func (l *listener) add(e fuse.Event) {
	if !l.all && e.Op != "READ" && e.Source == 0 {
		return
	}
	l.mu.Lock()
	// A slow client must neither block the mount nor let the buffer grow without limit.
	if len(l.events) < traceRoom && l.paths < tracePaths {
		l.events = append(l.events, traceEvent(e))
		l.paths += len(e.Path) + len(e.To)
	} else {
		l.lost++
	}
	l.mu.Unlock()
	signal.Send(l.wake)
}

// take removes events from the buffer and returns them as one message, which has at most the limits divided by
// traceParts. more is true if other events remain in the buffer.
func (l *listener) take() (t control.Trace, more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, paths := 0, 0
	for n < min(len(l.events), traceRoom/traceParts) && paths < tracePaths/traceParts {
		paths += len(l.events[n].Path) + len(l.events[n].To)
		n++
	}
	t = control.Trace{PID: os.Getpid(), Lost: l.lost, Events: l.events[:n:n]}
	l.events, l.paths, l.lost = l.events[n:], l.paths-paths, 0
	if len(l.events) == 0 {
		l.events = nil
	}
	return t, len(l.events) > 0
}

// traceEvent converts an event of package fuse to the type that messages contain. The field Wait is in microseconds.
func traceEvent(e fuse.Event) control.TraceEvent {
	t := control.TraceEvent{
		Time: e.Time, PID: e.PID, Command: e.Command, Op: strings.ToLower(e.Op), Path: e.Path, To: e.To,
		Offset: e.Offset, Size: e.Size,
		Source: traceSource(e.Source), Blobs: e.Blobs, Bytes: e.Bytes, Wait: e.Took.Microseconds(),
	}
	if e.Status != raw.OK {
		t.Error = unix.ErrnoName(syscall.Errno(e.Status))
	}
	return t
}

// traceSource returns the slowest of the data sources that a request needed, which are the bits of s.
func traceSource(s metrics.Source) control.TraceSource {
	switch {
	case s&metrics.Fetched != 0:
		return control.TraceFetched
	case s&metrics.Listed != 0:
		return control.TraceListed
	case s&metrics.Sized != 0:
		return control.TraceSized
	case s&metrics.Converted != 0:
		return control.TraceConverted
	}
	return control.TraceHit
}
