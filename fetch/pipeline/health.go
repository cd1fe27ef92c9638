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

// While requests to the remote fail, one is sent from time to time, so that the failure ends soon
// after its cause even if nothing is read. The pause between them doubles up to maxRetry, or up to
// maxReaderProbe while a reader waits.
const (
	firstProbe     = 100 * time.Millisecond
	maxReaderProbe = time.Second
	firstRetry     = time.Second
	maxRetry       = 8 * time.Second
)

// health describes the last failure since the last success. Pipeline.mu guards it.
//
// A remote that does not answer is unreachable: requests wait, and one at a time is sent as a
// probe. When a probe succeeds, all are sent.
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

// AnswerError is an error after an answer had begun: in reading, verifying or storing it.
type AnswerError struct{ Err error }

func (e AnswerError) Error() string { return e.Err.Error() }
func (e AnswerError) Unwrap() error { return e.Err }

// SessionRemoteError is an error of a session remote. It does not count as a failure of the store's
// own remote.
type SessionRemoteError struct{ Err error }

func (e SessionRemoteError) Error() string { return e.Err.Error() }
func (e SessionRemoteError) Unwrap() error { return e.Err }

// IsUnreachable reports whether err says that the remote cannot be reached, which waiting may end:
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

// failedLocked is ReportFailure with mu held; probe says that the failed request was the probe.
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
	if h.unreachable && !probe { // an older request, or a reader at its deadline, says nothing new
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

// schedule sets the time of the next request. It needs mu.
func (h *health) schedule(p *Pipeline) {
	pause := h.pause
	if h.unreachable && p.readersWaiting > 0 {
		pause = min(pause, maxReaderProbe)
	}
	h.next = h.at.Add(pause)
	if h.notBefore.After(h.next) && (p.readersWaiting == 0 || time.Until(h.notBefore) <= p.deadline) {
		h.next = h.notBefore // a reader whose deadline is earlier than notBefore sends a request nevertheless
	}
	if h.timer != nil {
		h.timer.Stop()
	}
	h.timer = time.AfterFunc(time.Until(h.next), p.retryNow)
}

// RetryOf returns a function that queues a want again, unless its contents have arrived.
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

// retryNow wakes the requests that wait for the remote. If none waits, it repeats the one that
// failed.
func (p *Pipeline) retryNow() {
	p.mu.Lock()
	h := &p.state
	retry, failing, unreachable := h.retry, h.err != nil && !p.closed, h.unreachable
	if retry == nil {
		retry = p.probe
	}
	h.timer = nil
	if failing && unreachable { // if no request waits that could be the probe, the next timer tries again
		h.timer = time.AfterFunc(maxRetry, p.retryNow)
	}
	idle := p.admitting == 0 && p.queue.Len() == 0 && !h.probing
	p.wakeAll()
	p.mu.Unlock()
	if failing && retry != nil && (idle || !unreachable) {
		retry()
	}
}

// wakeAll wakes senders and requests that wait for the remote. It needs mu.
func (p *Pipeline) wakeAll() {
	if p.state.changed != nil {
		close(p.state.changed)
		p.state.changed = nil
	}
	p.wake.Broadcast()
}

// addReader counts a reader that waits for the remote. removeReader must follow. It needs mu.
func (p *Pipeline) addReader() {
	p.readersWaiting++
	if h := &p.state; h.unreachable && !h.probing {
		h.schedule(p)
	}
}

// removeReader ends the wait of a reader. It needs mu.
func (p *Pipeline) removeReader() { p.readersWaiting-- }

// mayRequest reports whether a request may be sent now. While the remote is unreachable this is one
// request at a time, the probe, whose result must be reported by failedLocked or answeredLocked. It
// needs mu.
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

// answeredLocked is ReportAnswer with mu held.
func (p *Pipeline) answeredLocked() {
	if p.state.unreachable && !p.state.mustWait() {
		p.state.unreachable, p.state.probing = false, false
		p.wakeAll()
	}
}

// mustWait reports whether the remote has asked for no requests yet. An answer in that time belongs
// to an older request, unless a probe is in flight.
func (h *health) mustWait() bool {
	return h.unreachable && !h.probing && time.Now().Before(h.notBefore)
}

// ReportAnswer records that an answer has begun: the remote is reachable, whether or not the answer
// is valid. The failure itself ends with the next object that arrives.
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

// succeededLocked is ReportSuccess with mu held.
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

// Retry runs request for a reader. It repeats it while the remote is unreachable, one request of
// all at a time, until ctx or the deadline ends. retry repeats the request in the background after
// the reader has left; it may be nil.
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

// admit waits until a request may be sent. It returns true if that request is the probe.
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

// DeadlineError returns the error of a reader whose deadline has passed. cause is why the remote is
// unreachable; nil: it is reachable.
func (p *Pipeline) DeadlineError(cause error) error {
	if cause == nil {
		return fmt.Errorf("%w after %s", ErrDeadline, p.deadline)
	}
	return fmt.Errorf("%w after %s: %w", ErrDeadline, p.deadline, cause)
}

// Reachable reports whether the remote answered the last request.
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

// Probe runs request as soon as one may be sent, and records its result as the state of the remote.
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
