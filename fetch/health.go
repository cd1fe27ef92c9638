package fetch

import (
	"context"
	"errors"
	"time"

	"github.com/artifactfs/artifactfs/prioritize"
	"github.com/artifactfs/artifactfs/transport"
)

// While the remote fails, what failed last is asked for again after mendFirst, and after twice as long each time, up
// to mendMost or what the remote asks for: so the failure ends with the fault, although nobody reads.
const (
	mendFirst = time.Second
	mendMost  = 8 * time.Second
)

// health is the last failure since the last success. pipeline.mu guards it.
type health struct {
	err   error
	at    time.Time
	again func()      // asks for what failed
	timer *time.Timer // calls again; nil while nothing fails
	pause time.Duration
}

// health is the last failure since the last success, if any.
func (p *pipeline) health() (error, time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state.err, p.state.at
}

// failed notes a failure of the remote; again asks for the same once more, without waiting for it.
func (p *pipeline) failed(err error, again func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failedLocked(err, again)
}

func (p *pipeline) failedLocked(err error, again func()) {
	if p.closed || errors.Is(err, context.Canceled) || errors.Is(err, ErrClosed) {
		return
	}
	h := &p.state
	h.err, h.at, h.again = err, time.Now(), again
	if h.timer != nil {
		return
	}
	h.pause = min(max(2*h.pause, mendFirst), mendMost)
	pause := h.pause
	var limited transport.RateLimited
	if errors.As(err, &limited) {
		pause = max(pause, limited.After)
	}
	h.timer = time.AfterFunc(pause, p.mend)
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

func (p *pipeline) mend() {
	p.mu.Lock()
	again := p.state.again
	p.state.timer = nil
	failing := p.state.err != nil && !p.closed
	p.mu.Unlock()
	if failing {
		again()
	}
}

// succeeded notes that the remote has brought something.
func (p *pipeline) succeeded() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.succeededLocked()
}

func (p *pipeline) succeededLocked() {
	if p.state.timer != nil {
		p.state.timer.Stop()
	}
	p.state = health{}
}
