package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// watch ends an exchange when its context ends, when a read or write takes longer than stall, or when the remote is
// closed. To end the exchange, watch calls the function kill, which makes reads and writes that are blocked return.
type watch struct {
	stall time.Duration
	kill  func()
	timer *time.Timer
	leave func() bool // unregisters the watch from ctx
	owner *watches
	ctx   context.Context // net/http may notice the end of ctx before the watch does
	since atomic.Int64    // start of the current wait, in nanoseconds since 1970; 0 if no read or write waits
	// If tick is set, the stall clock counts ticks of this length instead of reading the time. A stall then takes as
	// many ticks as fit into the field stall. While this process gets no processor time, bytes may arrive unnoticed,
	// and no ticks are counted.
	tick  time.Duration
	ticks atomic.Int64 // number of ticks until the wait counts as a stall

	mu sync.Mutex
	// mu protects the fields below.
	cause error // reason why the exchange was ended; nil while the exchange runs
	over  bool  // whether the exchange was released, so that kill must not be called any more
}

// watches is the set of exchanges in progress.
type watches struct {
	mu     sync.Mutex
	active map[*watch]struct{}
	closed bool
}

// add registers an exchange. The function kill must make the reads and writes of the exchange return if they are
// blocked; it is called at most once. The stall clock does not run before arm is called.
func (s *watches) add(ctx context.Context, stall time.Duration, kill func()) *watch {
	w := &watch{ctx: ctx, stall: stall, kill: kill, owner: s}
	w.timer = time.AfterFunc(time.Hour, func() {
		if w.ticks.Add(-1) <= 0 {
			w.end(fmt.Errorf("%w: no data received for %s", ErrStalled, stall))
		} else if w.since.Load() != 0 {
			w.timer.Reset(w.tick)
		}
	})
	w.timer.Stop()
	s.mu.Lock()
	closed := s.closed
	if !closed {
		if s.active == nil {
			s.active = make(map[*watch]struct{})
		}
		s.active[w] = struct{}{}
	}
	s.mu.Unlock()
	// If the context has already ended, another goroutine calls the method end at once.
	w.leave = context.AfterFunc(ctx, func() { w.end(context.Cause(ctx)) })
	if closed {
		w.end(errClosed)
	}
	return w
}

// close ends every exchange in progress. Exchanges that are added later are ended at once.
func (s *watches) close() {
	s.mu.Lock()
	s.closed = true
	active := s.active
	s.active = nil
	s.mu.Unlock()
	for w := range active {
		w.end(errClosed)
	}
}

// end ends the exchange, unless it was already ended or released. It does not hold mu during the call of kill, because
// kill may block.
func (w *watch) end(cause error) {
	w.mu.Lock()
	first := w.cause == nil && !w.over
	if first {
		w.cause = cause
	}
	w.mu.Unlock()
	if first {
		w.kill()
	}
}

// arm starts the stall clock when a read or write begins to wait. disarm stops the clock when the wait ends. Between
// two reads the clock does not run, because the time that the caller takes is not a stall.
func (w *watch) arm() {
	w.since.Store(time.Now().UnixNano())
	if w.tick > 0 {
		w.ticks.Store(int64(w.stall / w.tick))
		w.timer.Reset(w.tick)
		return
	}
	w.timer.Reset(w.stall)
}

// disarm stops the clock.
func (w *watch) disarm() {
	w.since.Store(0)
	w.timer.Stop()
}

// quiet returns the length of the longest wait for a byte that is in progress.
func (s *watches) quiet(now time.Time) (longest time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.active {
		if since := w.since.Load(); since != 0 {
			longest = max(longest, now.Sub(time.Unix(0, since)))
		}
	}
	return longest
}

// release marks the exchange as finished, so that it can no longer be ended.
func (w *watch) release() {
	w.mu.Lock()
	w.over = true
	w.mu.Unlock()
	w.timer.Stop()
	w.leave()
	w.owner.mu.Lock()
	delete(w.owner.active, w)
	w.owner.mu.Unlock()
}

// ended returns the reason why the exchange was ended, or nil if it was not ended.
func (w *watch) ended() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cause
}

// explain returns the cause of err, an I/O error: the reason why the exchange was ended, or err itself if the exchange
// was not ended.
func (w *watch) explain(err error) error {
	cause := w.ended()
	if cause == nil && w.ctx.Err() != nil {
		cause = context.Cause(w.ctx)
	}
	if cause != nil {
		if isFault(cause) {
			return transient{error: cause}
		}
		return cause
	}
	return err
}

// watched is a stream whose reads are watched. Each exchange sets its own watch.
type watched struct {
	r io.Reader
	w *watch
}

// Read reads from the stream while the stall clock runs. If the exchange was ended, Read returns the reason for the end
// in place of the stream's error.
func (s *watched) Read(p []byte) (int, error) {
	s.w.arm()
	n, err := s.r.Read(p)
	s.w.disarm()
	switch {
	case err == nil:
	case err == io.EOF, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		err = s.w.explain(err) // the error of an aborted stream may be the same as at the end of a stream
	default:
		err = s.w.explain(fault(err))
	}
	return n, err
}

// counters holds the current values of Stats.
type counters struct {
	requests, connections, in, out atomic.Int64

	mu      sync.Mutex
	lastErr string
	lastAt  time.Time
}

// fail records err as the value of Stats.LastError.
func (c *counters) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastErr, c.lastAt = err.Error(), time.Now()
}

// snapshot returns the current values.
func (c *counters) snapshot() Stats {
	s := Stats{Requests: c.requests.Load(), Connections: c.connections.Load(), BytesIn: c.in.Load(),
		BytesOut: c.out.Load()}
	s.RoundTrips = s.Requests + s.Connections
	c.mu.Lock()
	defer c.mu.Unlock()
	s.LastError, s.LastErrorAt = c.lastErr, c.lastAt
	return s
}
