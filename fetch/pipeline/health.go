package pipeline

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/artifactfs/artifactfs/prioritize"
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

// health is the state of the remote: the last failure since the last success, and when to try again. Pipeline.mu
// guards it.
//
// While the remote is unreachable, requests wait, and only one at a time is sent as a probe. When a probe is
// answered, all waiting requests are sent.
type health struct {
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
func (p *Pipeline) Failure() (at time.Time, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state.at, p.state.err
}

// ReportFailure records a failure of the remote. retry repeats the request in the background.
func (p *Pipeline) ReportFailure(err error, retry func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failedLocked(err, retry, false)
}

// failedLocked is ReportFailure for a caller that holds mu. probe is true if the failed request was the probe.
func (p *Pipeline) failedLocked(err error, retry func(), probe bool) {
	if probe {
		p.state.probing = false
	}
	if p.closed || errors.Is(err, context.Canceled) || errors.Is(err, ErrClosed) {
		p.wakeAll()
		return
	}
	h, now, unreachable := &p.state, time.Now(), IsUnreachable(err)
	var limited transport.RateLimited
	if errors.As(err, &limited) && now.Add(limited.After).After(h.notBefore) {
		h.notBefore = now.Add(limited.After)
		if h.unreachable && !h.probing {
			h.schedule(p)
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
	h.schedule(p)
}

// schedule sets the time of the next probe or retry, and starts the timer for it. The caller holds mu.
func (h *health) schedule(p *Pipeline) {
	pause := h.pause
	if h.unreachable && p.readersWaiting > 0 {
		pause = min(pause, maxReaderProbe)
	}
	h.next = h.at.Add(pause)
	if h.notBefore.After(h.next) && (p.readersWaiting == 0 || time.Until(h.notBefore) <= p.deadline) {
		h.next = h.notBefore // not if a reader waits whose deadline is earlier: then a request is sent anyway
	}
	if h.timer != nil {
		h.timer.Stop()
	}
	h.timer = time.AfterFunc(time.Until(h.next), p.retryNow)
}

// RetryOf returns a function that queues w for a background request, or reports success if its contents are on this
// host.
func (p *Pipeline) RetryOf(w prioritize.Want) func() {
	w.Class = prioritize.Readahead
	return func() {
		if p.cached(w.ID) {
			p.ReportSuccess()
			return
		}
		p.Queue([]prioritize.Want{w})
	}
}

// retryNow wakes the requests that wait for the remote, one of which becomes the probe. If none waits, it repeats the
// request that has failed.
func (p *Pipeline) retryNow() {
	p.mu.Lock()
	h := &p.state
	retry, failing, unreachable := h.retry, h.err != nil && !p.closed, h.unreachable
	if retry == nil {
		retry = p.probe
	}
	h.timer = nil
	if failing && unreachable { // in case no waiting request becomes the probe
		h.timer = time.AfterFunc(maxRetry, p.retryNow)
	}
	idle := p.admitting == 0 && p.queue.Len() == 0 && !h.probing
	p.wakeAll()
	p.mu.Unlock()
	if failing && retry != nil && (idle || !unreachable) {
		retry()
	}
}

// wakeAll wakes all senders and all requests that wait for the remote. The caller holds mu.
func (p *Pipeline) wakeAll() {
	if p.state.changed != nil {
		close(p.state.changed)
		p.state.changed = nil
	}
	p.wake.Broadcast()
}

// addReader counts a reader that begins to wait for the remote, and shortens the pause before the next probe. The
// caller must call removeReader afterwards, and holds mu.
func (p *Pipeline) addReader() {
	p.readersWaiting++
	if h := &p.state; h.unreachable && !h.probing {
		h.schedule(p)
	}
}

// removeReader records that a reader has stopped waiting. The caller holds mu.
func (p *Pipeline) removeReader() { p.readersWaiting-- }

// mayRequest reports whether a request may be sent now. While the remote is unreachable, only one request at a time
// may be sent, the probe. If probe is true, the caller must report the result of the request by failedLocked or
// answeredLocked. The caller holds mu.
func (p *Pipeline) mayRequest() (may, probe bool) {
	h := &p.state
	switch {
	case !h.unreachable:
		return true, false
	case h.probing || time.Now().Before(h.next):
		return false, false
	}
	h.probing = true
	return true, true
}

// answeredLocked is ReportAnswer for a caller that holds mu.
func (p *Pipeline) answeredLocked() {
	if p.state.unreachable && !p.state.mustWait() {
		p.state.unreachable, p.state.probing = false, false
		p.wakeAll()
	}
}

// mustWait reports whether the remote has asked for a pause (Retry-After) that has not ended, and no probe is in
// flight. An answer that arrives in this time belongs to an older request.
func (h *health) mustWait() bool {
	return h.unreachable && !h.probing && time.Now().Before(h.notBefore)
}

// ReportAnswer records that an answer has begun, so the remote is reachable, even if the answer turns out to be
// invalid. The recorded failure ends only when an object arrives.
func (p *Pipeline) ReportAnswer() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answeredLocked()
}

// ReportSuccess records that the remote has answered a request, which ends a failure.
func (p *Pipeline) ReportSuccess() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.succeededLocked()
}

// succeededLocked is ReportSuccess for a caller that holds mu.
func (p *Pipeline) succeededLocked() {
	h := p.state
	if h.err == nil && !h.unreachable || h.mustWait() {
		return
	}
	if h.timer != nil {
		h.timer.Stop()
	}
	p.wakeAll()
	p.state = health{}
	close(p.recovered)
	p.recovered = make(chan struct{})
}

// Retry calls request for a reader, and calls it again as long as the remote is unreachable, until ctx ends or the
// deadline passes. While the remote is unreachable, only one request of the pipeline is sent at a time. retry, which
// may be nil, repeats the request in the background after Retry has returned.
func (p *Pipeline) Retry(ctx context.Context, retry func(), request func() error) error {
	p.mu.Lock()
	p.addReader()
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.removeReader()
	}()
	deadline, cancel := context.WithTimeoutCause(ctx, p.deadline, ErrDeadline)
	defer cancel()
	for {
		probe, err := p.admit(deadline)
		if err != nil {
			return err
		}
		err = request()
		p.mu.Lock()
		switch {
		case err == nil:
			p.succeededLocked()
		case !IsUnreachable(err) && ctx.Err() == nil:
			p.answeredLocked()
		default:
			p.failedLocked(err, retry, probe)
		}
		p.mu.Unlock()
		if err == nil || !IsUnreachable(err) || ctx.Err() != nil {
			return err
		}
	}
}

// admit waits until a request may be sent (mayRequest). probe is true if that request is the probe.
func (p *Pipeline) admit(ctx context.Context) (probe bool, err error) {
	for {
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			return false, ErrClosed
		}
		may, probe := p.mayRequest()
		cause := p.state.err
		if !may && p.state.changed == nil {
			p.state.changed = make(chan struct{})
		}
		changed := p.state.changed
		if !may {
			p.admitting++
		}
		p.mu.Unlock()
		if may {
			return probe, nil
		}
		select {
		case <-changed:
		case <-p.stop:
		case <-ctx.Done():
		}
		p.mu.Lock()
		p.admitting--
		p.mu.Unlock()
		if ctx.Err() != nil {
			if errors.Is(context.Cause(ctx), ErrDeadline) {
				return false, p.DeadlineError(cause)
			}
			return false, ctx.Err()
		}
	}
}

// DeadlineError returns the error for a reader whose deadline has passed. cause is the reason why the remote is
// unreachable, or nil if it is reachable.
func (p *Pipeline) DeadlineError(cause error) error {
	if cause == nil {
		return fmt.Errorf("%w after %s", ErrDeadline, p.deadline)
	}
	return fmt.Errorf("%w after %s: %w", ErrDeadline, p.deadline, cause)
}

// Reachable reports whether the remote counts as reachable.
func (p *Pipeline) Reachable() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.state.unreachable
}

// Recovered returns a channel that is closed when the remote next answers after a failure.
func (p *Pipeline) Recovered() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.recovered
}

// Probe calls request as soon as a request may be sent, and records the result as the state of the remote. If ctx
// ends first, it does nothing.
func (p *Pipeline) Probe(ctx context.Context, request func() error) {
	probe, err := p.admit(ctx)
	if err != nil {
		return
	}
	err = request()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		p.succeededLocked()
	} else {
		p.failedLocked(err, nil, probe)
	}
}
