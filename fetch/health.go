package fetch

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/artifactfs/artifactfs/prioritize"
	"github.com/artifactfs/artifactfs/transport"
)

// While the remote fails, it is asked again after a pause that doubles from failure to failure: up to mendMost if nobody
// waits, up to readerPause while a reader does. So the failure ends with the fault, although nobody reads.
const (
	firstPause  = 100 * time.Millisecond
	readerPause = time.Second
	mendFirst   = time.Second
	mendMost    = 8 * time.Second
)

// health is the last failure since the last success. pipeline.mu guards it.
//
// A remote that does not answer is away: requests that need it wait, and one of them at a time is sent as a probe. Its
// success lets all others go on.
type health struct {
	err   error
	at    time.Time
	again func()      // asks for what failed
	timer *time.Timer // calls mend at next; nil while nothing fails
	pause time.Duration

	away    bool
	probing bool          // a probe is under way
	next    time.Time     // when the next one may be sent
	asked   time.Time     // until when the remote wants to be left alone
	changed chan struct{} // closed when a waiting request should look again; nil if none waits
}

// cutAnswer marks an error that came after an answer had begun: of reading, checking or keeping what the remote sent.
type cutAnswer struct{ error }

func (e cutAnswer) Unwrap() error { return e.error }

// secondError is an error of another remote than the Store's, which is none the worse for it.
type secondError struct{ error }

func (e secondError) Unwrap() error { return e.error }

// Away says whether an error is one of a remote that cannot be reached, which waiting may end: refused, reset and lost
// connections, stalls, 5xx and 429.
func Away(err error) bool {
	var limited transport.RateLimited
	var certificate *tls.CertificateVerificationError
	var second secondError
	return !errors.As(err, &certificate) && !errors.As(err, &second) && !errors.Is(err, context.Canceled) &&
		(errors.Is(err, transport.ErrUnreachable) || errors.Is(err, transport.ErrStalled) || errors.As(err, &limited))
}

// health is the last failure since the last success, if any.
func (p *pipeline) health() (at time.Time, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state.at, p.state.err
}

// failed notes a failure of the remote; again asks for the same once more, without waiting for it.
func (p *pipeline) failed(err error, again func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failedLocked(err, again, false)
}

// failedLocked is failed, for the request that was the probe too. It needs mu.
func (p *pipeline) failedLocked(err error, again func(), probe bool) {
	if probe {
		p.state.probing = false
	}
	if p.closed || errors.Is(err, context.Canceled) || errors.Is(err, ErrClosed) {
		p.lookAgain()
		return
	}
	h, now, away := &p.state, time.Now(), Away(err)
	var limited transport.RateLimited
	if errors.As(err, &limited) && now.Add(limited.After).After(h.asked) {
		h.asked = now.Add(limited.After)
		if h.away && !h.probing {
			h.schedule(p)
		}
	}
	if h.away && !probe { // a request that was under way, or a reader at its deadline, says nothing else that is new
		return
	}
	h.err, h.at, h.again = err, now, again
	if h.timer != nil && !away {
		return
	}
	h.away = h.away || away
	first := mendFirst
	if away {
		first = firstPause
	}
	h.pause = min(max(2*h.pause, first), mendMost)
	h.schedule(p)
}

// schedule sets when the remote is asked again. It needs mu.
func (h *health) schedule(p *pipeline) {
	pause := h.pause
	if h.away && p.waiting > 0 {
		pause = min(pause, readerPause)
	}
	h.next = h.at.Add(pause)
	if h.asked.After(h.next) && (p.waiting == 0 || time.Until(h.asked) <= p.deadline) {
		h.next = h.asked // a reader who cannot wait that long asks nevertheless
	}
	if h.timer != nil {
		h.timer.Stop()
	}
	h.timer = time.AfterFunc(time.Until(h.next), p.mend)
}

// askAgain asks for a blob once more.
func (p *pipeline) askAgain(w prioritize.Want) func() {
	w.Class = prioritize.Readahead
	return func() {
		if p.here(w.ID) {
			p.succeeded()
			return
		}
		p.ask([]prioritize.Want{w})
	}
}

// mend sends what waits, or asks for what failed if nothing does.
func (p *pipeline) mend() {
	p.mu.Lock()
	h := &p.state
	again, failing, away := h.again, h.err != nil && !p.closed, h.away
	if again == nil {
		again = p.look
	}
	h.timer = nil
	if failing && away { // without a read to probe with now, the next timer tries again
		h.timer = time.AfterFunc(mendMost, p.mend)
	}
	idle := p.atGate == 0 && p.queue.Len() == 0 && !h.probing
	p.lookAgain()
	p.mu.Unlock()
	if failing && again != nil && (idle || !away) {
		again()
	}
}

// lookAgain wakes lanes and requests that wait for the remote. It needs mu.
func (p *pipeline) lookAgain() {
	if p.state.changed != nil {
		close(p.state.changed)
		p.state.changed = nil
	}
	p.wake.Broadcast()
}

// readerBegins counts in one who waits for the remote; readerEnds must follow. It needs mu.
func (p *pipeline) readerBegins() {
	p.waiting++
	if h := &p.state; h.away && !h.probing {
		h.schedule(p)
	}
}

func (p *pipeline) readerEnds() { p.waiting-- }

// mayAsk says whether a request may be sent now: while the remote is away, one at a time, which then is the probe and
// must be ended by failedLocked or answeredLocked. It needs mu.
func (p *pipeline) mayAsk() (may, probe bool) {
	h := &p.state
	switch {
	case !h.away:
		return true, false
	case h.probing || time.Now().Before(h.next):
		return false, false
	}
	h.probing = true
	return true, true
}

// answeredLocked is answered; it needs mu. The failure is over when something has come.
func (p *pipeline) answeredLocked() {
	if p.state.away && !p.state.leftAlone() {
		p.state.away, p.state.probing = false, false
		p.lookAgain()
	}
}

// leftAlone reports whether the remote wants no request yet. An answer that comes meanwhile is one to a request that was sent
// before the remote said so, unless a probe is under way.
func (h *health) leftAlone() bool {
	return h.away && !h.probing && time.Now().Before(h.asked)
}

// answered notes that an answer has begun: whatever becomes of it, the remote is not away.
func (p *pipeline) answered() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answeredLocked()
}

// succeeded notes that the remote has brought something.
func (p *pipeline) succeeded() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.succeededLocked()
}

func (p *pipeline) succeededLocked() {
	h := p.state
	if h.err == nil && !h.away || h.leftAlone() {
		return
	}
	if h.timer != nil {
		h.timer.Stop()
	}
	p.lookAgain()
	p.state = health{}
	close(p.recovered)
	p.recovered = make(chan struct{})
}

// persevere sends a request for one who waits. As long as the remote is away it is sent again, in turn with others, for as long
// as the settings let a read wait. again asks for the same later, when nobody waits any more.
func (p *pipeline) persevere(ctx context.Context, again func(), request func() error) error {
	p.mu.Lock()
	p.readerBegins()
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.readerEnds()
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
		case !Away(err) && ctx.Err() == nil:
			p.answeredLocked()
		default:
			p.failedLocked(err, again, probe)
		}
		p.mu.Unlock()
		if err == nil || !Away(err) || ctx.Err() != nil {
			return err
		}
	}
}

// admit waits until a request may be sent.
func (p *pipeline) admit(ctx context.Context) (probe bool, err error) {
	for {
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			return false, ErrClosed
		}
		may, probe := p.mayAsk()
		cause := p.state.err
		if !may && p.state.changed == nil {
			p.state.changed = make(chan struct{})
		}
		changed := p.state.changed
		if !may {
			p.atGate++
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
		p.atGate--
		p.mu.Unlock()
		if ctx.Err() != nil {
			if errors.Is(context.Cause(ctx), ErrDeadline) {
				return false, p.late(cause)
			}
			return false, ctx.Err()
		}
	}
}

// late is the error of a reader at its deadline; cause says what kept the remote away, if it is.
func (p *pipeline) late(cause error) error {
	if cause == nil {
		return fmt.Errorf("%w after %s", ErrDeadline, p.deadline)
	}
	return fmt.Errorf("%w after %s: %w", ErrDeadline, p.deadline, cause)
}

// reachable says whether the remote answers, as far as is known.
func (p *pipeline) reachable() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.state.away
}

// lookForRemote asks for the remote's HEAD.
func (s *Store) lookForRemote() {
	s.background(func(ctx context.Context) {
		p := s.blobPipe
		probe, err := p.admit(ctx)
		if err != nil {
			return
		}
		_, err = s.remote.Refs(ctx, []string{"HEAD"})
		p.mu.Lock()
		defer p.mu.Unlock()
		if err == nil {
			p.succeededLocked()
		} else {
			p.failedLocked(err, nil, probe)
		}
	})
}

// Persevere does work that asks the remote, again and again as long as the remote is away and a read would wait for it.
func (s *Store) Persevere(ctx context.Context, work func() error) error {
	return s.blobPipe.persevere(ctx, nil, work)
}

// Recovered is closed when the remote next answers after a failure.
func (s *Store) Recovered() <-chan struct{} {
	s.blobPipe.mu.Lock()
	defer s.blobPipe.mu.Unlock()
	return s.blobPipe.recovered
}

// Reachable says whether the remote answers, as far as is known.
func (s *Store) Reachable() bool { return s.blobPipe.reachable() }
