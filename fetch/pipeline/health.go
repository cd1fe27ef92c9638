package pipeline

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/artifactfs/artifactfs/git/transport"
)

// While requests to the remote fail, one request is repeated at intervals, so that the pipeline notices the end of the
// failure even if no process reads. The interval doubles each time. Its maximum is maxRetry; while a reader waits, the
// maximum is maxReaderProbe.
const (
	firstProbe     = 100 * time.Millisecond
	maxReaderProbe = time.Second
	firstRetry     = time.Second
	maxRetry       = 8 * time.Second
)

// Health is the state of the remote according to the requests of a pipeline: whether the remote is reachable, and when
// to try again if it is not. Callers that send requests themselves report the results with the methods of Health.
// shared.mu protects the fields.
//
// While the remote is unreachable, all requests wait except one, which is sent as a probe. When a probe is answered,
// all waiting requests are sent.
type Health struct {
	shared    *shared
	table     *table
	deadline  time.Duration // how long a reader waits for contents
	sendProbe func()        // sends a small request that shows whether the remote answers again; may be nil

	outage
	recovered      chan struct{} // closed and replaced by a new channel when a failure ends
	readersWaiting int           // number of readers that wait for the remote
	admitting      int           // number of calls of admit that wait because the remote is unreachable
	failures       int64         // number of failed requests
}

// outage describes the last failure since the last successful request, and when to try again. A successful request
// resets the outage to the zero value.
type outage struct {
	err   error
	at    time.Time
	retry func()      // repeats the request that failed
	timer *time.Timer // calls retryNow at the time next; nil if no call is scheduled
	pause time.Duration

	unreachable bool
	probing     bool          // true while the probe (see Health) is in flight
	next        time.Time     // time before which no request may be sent
	notBefore   time.Time     // time before which the remote does not want requests (HTTP Retry-After)
	changed     chan struct{} // closed when the waiting requests should check again; nil if no request waits
}

// AnswerError is an error that occurred after the remote had begun to answer: while the answer was read, verified or
// stored.
type AnswerError struct{ Err error }

func (e AnswerError) Error() string { return e.Err.Error() }
func (e AnswerError) Unwrap() error { return e.Err }

// SessionRemoteError is an error of a request to a session remote. It does not mean that the store's own remote is
// unreachable.
type SessionRemoteError struct{ Err error }

func (e SessionRemoteError) Error() string { return e.Err.Error() }
func (e SessionRemoteError) Unwrap() error { return e.Err }

// IsUnreachable reports whether err means that the remote cannot be reached, so that a later request may succeed. The
// causes of such errors are connections that are refused, reset or lost, requests that stall, and the HTTP status codes
// 5xx and 429.
func IsUnreachable(err error) bool {
	var limited transport.RateLimited
	var certificate *tls.CertificateVerificationError
	var second SessionRemoteError
	return !errors.As(err, &certificate) && !errors.As(err, &second) && !errors.Is(err, context.Canceled) &&
		(errors.Is(err, transport.ErrUnreachable) || errors.Is(err, transport.ErrStalled) || errors.As(err, &limited))
}

// Failure returns the error err of the last failure and the time at which it occurred. If no request has failed since
// the last successful request, err is nil.
func (h *Health) Failure() (at time.Time, err error) {
	h.shared.mu.Lock()
	defer h.shared.mu.Unlock()
	return h.at, h.err
}

// Failures returns the number of requests to the remote that have failed.
func (h *Health) Failures() int64 {
	h.shared.mu.Lock()
	defer h.shared.mu.Unlock()
	return h.failures
}

// ReportFailure records that a request to the remote has failed with the error err. The function retry, which is called
// later in the background, repeats the request.
func (h *Health) ReportFailure(err error, retry func()) {
	h.shared.mu.Lock()
	defer h.shared.mu.Unlock()
	h.failed(err, retry, false)
}

// failed does the same as ReportFailure. probe is true if the failed request was the probe. The caller holds shared.mu.
func (h *Health) failed(err error, retry func(), probe bool) {
	if probe {
		h.probing = false
	}
	if h.shared.closed || errors.Is(err, context.Canceled) || errors.Is(err, ErrClosed) {
		h.wakeAll()
		return
	}
	h.failures++
	now, unreachable := time.Now(), IsUnreachable(err)
	var limited transport.RateLimited
	if errors.As(err, &limited) && now.Add(limited.After).After(h.notBefore) {
		h.notBefore = now.Add(limited.After)
		if h.unreachable && !h.probing {
			h.schedule()
		}
	}
	// The remote is unreachable already, and the failed request is not the probe: it was sent earlier, or the deadline of
	// a reader has passed. Such a failure shows nothing new about the remote.
	if h.unreachable && !probe {
		return
	}
	h.err, h.at, h.retry = err, now, retry
	if h.timer != nil && !unreachable {
		return
	}
	h.unreachable = h.unreachable || unreachable
	first := firstRetry
	if unreachable {
		first = firstProbe
	}
	h.pause = min(max(2*h.pause, first), maxRetry)
	h.schedule()
}

// schedule sets the time of the next probe or retry, and starts the timer for it. The caller holds shared.mu.
func (h *Health) schedule() {
	pause := h.pause
	if h.unreachable && h.readersWaiting > 0 {
		pause = min(pause, maxReaderProbe)
	}
	h.next = h.at.Add(pause)
	if h.notBefore.After(h.next) && (h.readersWaiting == 0 || time.Until(h.notBefore) <= h.deadline) {
		// The condition excludes the case that the deadline of a waiting reader passes before the time notBefore. In that
		// case the next request is sent earlier.
		h.next = h.notBefore
	}
	if h.timer != nil {
		h.timer.Stop()
	}
	h.timer = time.AfterFunc(time.Until(h.next), h.retryNow)
}

// retryNow wakes the requests that wait for the remote, one of which becomes the probe. If no request waits, it repeats
// the request that has failed.
func (h *Health) retryNow() {
	h.shared.mu.Lock()
	retry, failing, unreachable := h.retry, h.err != nil && !h.shared.closed, h.unreachable
	if retry == nil {
		retry = h.sendProbe
	}
	h.timer = nil
	if failing && unreachable { // start the timer again, in case no waiting request becomes the probe
		h.timer = time.AfterFunc(maxRetry, h.retryNow)
	}
	idle := h.admitting == 0 && h.table.queue.Len() == 0 && !h.probing
	h.wakeAll()
	h.shared.mu.Unlock()
	if failing && retry != nil && (idle || !unreachable) {
		retry()
	}
}

// wakeAll wakes all senders and all requests that wait for the remote. The caller holds shared.mu.
func (h *Health) wakeAll() {
	if h.changed != nil {
		close(h.changed)
		h.changed = nil
	}
	h.shared.wake.Broadcast()
}

// addReader records that a reader begins to wait for the remote, and shortens the pause before the next probe. The
// caller holds shared.mu, and must call removeReader when the reader stops waiting.
func (h *Health) addReader() {
	h.readersWaiting++
	if h.unreachable && !h.probing {
		h.schedule()
	}
}

// removeReader records that a reader has stopped waiting for the remote. The caller holds shared.mu.
func (h *Health) removeReader() { h.readersWaiting-- }

// mayRequest reports whether a request may be sent now. While the remote is unreachable, one request at a time may be
// sent, which is called the probe. If probe is true, the request is the probe, and the caller must report its result
// with succeeded, answered or failed. The caller holds shared.mu.
func (h *Health) mayRequest() (may, probe bool) {
	switch {
	case !h.unreachable:
		return true, false
	case h.probing || time.Now().Before(h.next):
		return false, false
	}
	h.probing = true
	return true, true
}

// answered does the same as ReportAnswer. The caller holds shared.mu.
func (h *Health) answered() {
	if h.unreachable && !h.mustWait() {
		h.unreachable, h.probing = false, false
		h.wakeAll()
	}
}

// mustWait reports whether the remote has asked for a pause (HTTP Retry-After) that has not ended, and no probe is in
// flight. An answer that arrives during the pause belongs to a request that was sent before the pause. The caller holds
// shared.mu.
func (h *Health) mustWait() bool {
	return h.unreachable && !h.probing && time.Now().Before(h.notBefore)
}

// ReportAnswer records that the remote has begun to answer a request. The remote is therefore reachable, even if the
// answer turns out to be invalid. The recorded failure remains until ReportSuccess is called.
func (h *Health) ReportAnswer() {
	h.shared.mu.Lock()
	defer h.shared.mu.Unlock()
	h.answered()
}

// ReportSuccess records that a request has succeeded, which ends a failure.
func (h *Health) ReportSuccess() {
	h.shared.mu.Lock()
	defer h.shared.mu.Unlock()
	h.succeeded()
}

// succeeded does the same as ReportSuccess. The caller holds shared.mu.
func (h *Health) succeeded() {
	if h.err == nil && !h.unreachable || h.mustWait() {
		return
	}
	if h.timer != nil {
		h.timer.Stop()
	}
	h.wakeAll()
	h.outage = outage{}
	close(h.recovered)
	h.recovered = make(chan struct{})
}

// Retry calls the function request on behalf of a reader. While the remote is unreachable, Retry calls request again
// and again, until ctx ends or the read deadline passes. In this state, the pipeline sends one request at a time. The
// function retry, which may be nil, is recorded with a failure and repeats the request in the background.
func (h *Health) Retry(ctx context.Context, retry func(), request func() error) error {
	h.shared.mu.Lock()
	h.addReader()
	h.shared.mu.Unlock()
	defer func() {
		h.shared.mu.Lock()
		defer h.shared.mu.Unlock()
		h.removeReader()
	}()
	deadline, cancel := context.WithTimeoutCause(ctx, h.deadline, ErrDeadline)
	defer cancel()
	for {
		probe, err := h.admit(deadline)
		if err != nil {
			return err
		}
		err = request()
		h.shared.mu.Lock()
		switch {
		case err == nil:
			h.succeeded()
		case !IsUnreachable(err) && ctx.Err() == nil:
			h.answered()
		default:
			h.failed(err, retry, probe)
		}
		h.shared.mu.Unlock()
		if err == nil || !IsUnreachable(err) || ctx.Err() != nil {
			return err
		}
	}
}

// admit waits until a request may be sent. probe is true if the request is the probe, whose result the caller must
// report (see mayRequest). The error is ErrClosed, the error of ctx, or the result of DeadlineError.
func (h *Health) admit(ctx context.Context) (probe bool, err error) {
	for {
		h.shared.mu.Lock()
		if h.shared.closed {
			h.shared.mu.Unlock()
			return false, ErrClosed
		}
		may, probe := h.mayRequest()
		cause := h.err
		if !may && h.changed == nil {
			h.changed = make(chan struct{})
		}
		changed := h.changed
		if !may {
			h.admitting++
		}
		h.shared.mu.Unlock()
		if may {
			return probe, nil
		}
		select {
		case <-changed:
		case <-h.shared.stop:
		case <-ctx.Done():
		}
		h.shared.mu.Lock()
		h.admitting--
		h.shared.mu.Unlock()
		if ctx.Err() != nil {
			if errors.Is(context.Cause(ctx), ErrDeadline) {
				return false, h.DeadlineError(cause)
			}
			return false, ctx.Err()
		}
	}
}

// Deadline returns how long a reader waits for contents.
func (h *Health) Deadline() time.Duration { return h.deadline }

// DeadlineError returns an error that wraps ErrDeadline, for a reader whose deadline has passed. cause is the reason
// why the remote is unreachable, or nil if the remote is reachable.
func (h *Health) DeadlineError(cause error) error {
	if cause == nil {
		return fmt.Errorf("%w after %s", ErrDeadline, h.deadline)
	}
	return fmt.Errorf("%w after %s: %w", ErrDeadline, h.deadline, cause)
}

// Reachable returns false if the last requests have shown that the remote is unreachable. Before the first request, it
// returns true.
func (h *Health) Reachable() bool {
	h.shared.mu.Lock()
	defer h.shared.mu.Unlock()
	return !h.unreachable
}

// Recovered returns a channel that is closed when the remote answers again after a failure.
func (h *Health) Recovered() <-chan struct{} {
	h.shared.mu.Lock()
	defer h.shared.mu.Unlock()
	return h.recovered
}

// Probe calls the function request as soon as a request may be sent, and records the result as the state of the remote.
// If ctx ends first, Probe does not call request.
func (h *Health) Probe(ctx context.Context, request func() error) {
	probe, err := h.admit(ctx)
	if err != nil {
		return
	}
	err = request()
	h.shared.mu.Lock()
	defer h.shared.mu.Unlock()
	if err == nil {
		h.succeeded()
	} else {
		h.failed(err, nil, probe)
	}
}
