package pipeline

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/artifactfs/artifactfs/transport"
)

// While requests to the remote fail, one is repeated at intervals, so that the end of the failure is noticed even if
// no process reads. The interval doubles each time, up to maxRetry, or up to maxReaderProbe while a reader waits.
const (
	firstProbe     = 100 * time.Millisecond
	maxReaderProbe = time.Second
	firstRetry     = time.Second
	maxRetry       = 8 * time.Second
)

// Health is the state of the remote as the requests of a pipeline find it: whether it answers, and when to try again if it does not.
// Callers report the results of requests that they send themselves. shared.mu guards its fields.
//
// While the remote is unreachable, requests wait, and only one at a time is sent as a probe. When a probe is
// answered, all waiting requests are sent.
type Health struct {
	shared    *shared
	table     *table
	deadline  time.Duration // how long a reader waits for contents
	sendProbe func()        // sends a small request, to find out whether the remote answers again; may be nil

	outage
	recovered      chan struct{} // closed and replaced when a failure ends
	readersWaiting int           // readers that wait for the remote
	admitting      int           // number of calls of admit that wait because the remote is unreachable
}

// outage is the last failure since the last success, and when to try again. A success resets it to the zero value.
type outage struct {
	err   error
	at    time.Time
	retry func()      // repeats the request that failed
	timer *time.Timer // calls retryNow at next; nil while nothing fails
	pause time.Duration

	unreachable bool
	probing     bool          // a probe is in flight
	next        time.Time     // when the next request may be sent
	notBefore   time.Time     // the remote has asked for no request until then (Retry-After)
	changed     chan struct{} // closed when a waiting request should check again; nil if none waits
}

// AnswerError is an error that occurred after an answer had begun: while reading, verifying or storing it.
type AnswerError struct{ Err error }

func (e AnswerError) Error() string { return e.Err.Error() }
func (e AnswerError) Unwrap() error { return e.Err }

// SessionRemoteError is an error of a request to a session remote. It is not recorded as unreachability of the
// store's own remote.
type SessionRemoteError struct{ Err error }

func (e SessionRemoteError) Error() string { return e.Err.Error() }
func (e SessionRemoteError) Unwrap() error { return e.Err }

// IsUnreachable reports whether err means that the remote cannot be reached, so that a later request may succeed:
// refused, reset and lost connections, stalls, HTTP status 5xx and 429.
func IsUnreachable(err error) bool {
	var limited transport.RateLimited
	var certificate *tls.CertificateVerificationError
	var second SessionRemoteError
	return !errors.As(err, &certificate) && !errors.As(err, &second) && !errors.Is(err, context.Canceled) &&
		(errors.Is(err, transport.ErrUnreachable) || errors.Is(err, transport.ErrStalled) || errors.As(err, &limited))
}

// Failure returns the last failure since the last success, and its time; a nil err means that there
// is none.
func (h *Health) Failure() (at time.Time, err error) {
	h.shared.mu.Lock()
	defer h.shared.mu.Unlock()
	return h.at, h.err
}

// ReportFailure records a failure of the remote. retry repeats the request in the background.
func (h *Health) ReportFailure(err error, retry func()) {
	h.shared.mu.Lock()
	defer h.shared.mu.Unlock()
	h.failed(err, retry, false)
}

// failed is ReportFailure for a caller that holds shared.mu. probe is true if the failed request was the probe.
func (h *Health) failed(err error, retry func(), probe bool) {
	if probe {
		h.probing = false
	}
	if h.shared.closed || errors.Is(err, context.Canceled) || errors.Is(err, ErrClosed) {
		h.wakeAll()
		return
	}
	now, unreachable := time.Now(), IsUnreachable(err)
	var limited transport.RateLimited
	if errors.As(err, &limited) && now.Add(limited.After).After(h.notBefore) {
		h.notBefore = now.Add(limited.After)
		if h.unreachable && !h.probing {
			h.schedule()
		}
	}
	if h.unreachable && !probe { // the failure of an older request, or a reader's deadline, changes nothing
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
		h.next = h.notBefore // not if a reader waits whose deadline is earlier: then a request is sent anyway
	}
	if h.timer != nil {
		h.timer.Stop()
	}
	h.timer = time.AfterFunc(time.Until(h.next), h.retryNow)
}

// retryNow wakes the requests that wait for the remote, one of which becomes the probe. If none waits, it repeats the
// request that has failed.
func (h *Health) retryNow() {
	h.shared.mu.Lock()
	retry, failing, unreachable := h.retry, h.err != nil && !h.shared.closed, h.unreachable
	if retry == nil {
		retry = h.sendProbe
	}
	h.timer = nil
	if failing && unreachable { // in case no waiting request becomes the probe
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

// addReader counts a reader that begins to wait for the remote, and shortens the pause before the next probe. The
// caller must call removeReader afterwards, and holds shared.mu.
func (h *Health) addReader() {
	h.readersWaiting++
	if h.unreachable && !h.probing {
		h.schedule()
	}
}

// removeReader records that a reader has stopped waiting. The caller holds shared.mu.
func (h *Health) removeReader() { h.readersWaiting-- }

// mayRequest reports whether a request may be sent now. While the remote is unreachable, only one request at a time
// may be sent, the probe. If probe is true, the caller must report the result of the request by failed or
// answered. The caller holds shared.mu.
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

// answered is ReportAnswer for a caller that holds shared.mu.
func (h *Health) answered() {
	if h.unreachable && !h.mustWait() {
		h.unreachable, h.probing = false, false
		h.wakeAll()
	}
}

// mustWait reports whether the remote has asked for a pause (Retry-After) that has not ended, and no probe is in
// flight. An answer that arrives in this time belongs to an older request.
func (h *Health) mustWait() bool {
	return h.unreachable && !h.probing && time.Now().Before(h.notBefore)
}

// ReportAnswer records that an answer has begun, so the remote is reachable, even if the answer turns out to be
// invalid. The recorded failure ends only when an object arrives.
func (h *Health) ReportAnswer() {
	h.shared.mu.Lock()
	defer h.shared.mu.Unlock()
	h.answered()
}

// ReportSuccess records that the remote has answered a request, which ends a failure.
func (h *Health) ReportSuccess() {
	h.shared.mu.Lock()
	defer h.shared.mu.Unlock()
	h.succeeded()
}

// succeeded is ReportSuccess for a caller that holds shared.mu.
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

// Retry calls request for a reader, and calls it again as long as the remote is unreachable, until ctx ends or the
// deadline passes. While the remote is unreachable, only one request of the pipeline is sent at a time. retry, which
// may be nil, repeats the request in the background after Retry has returned.
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

// admit waits until a request may be sent (mayRequest). probe is true if that request is the probe.
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

// DeadlineError returns the error for a reader whose deadline has passed. cause is the reason why the remote is
// unreachable, or nil if it is reachable.
func (h *Health) DeadlineError(cause error) error {
	if cause == nil {
		return fmt.Errorf("%w after %s", ErrDeadline, h.deadline)
	}
	return fmt.Errorf("%w after %s: %w", ErrDeadline, h.deadline, cause)
}

// Reachable reports whether the remote counts as reachable.
func (h *Health) Reachable() bool {
	h.shared.mu.Lock()
	defer h.shared.mu.Unlock()
	return !h.unreachable
}

// Recovered returns a channel that is closed when the remote next answers after a failure.
func (h *Health) Recovered() <-chan struct{} {
	h.shared.mu.Lock()
	defer h.shared.mu.Unlock()
	return h.recovered
}

// Probe calls request as soon as a request may be sent, and records the result as the state of the remote. If ctx
// ends first, it does nothing.
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
