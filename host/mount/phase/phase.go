// Package phase has the phase of a mount: it is being prepared, served or ended, or is gone. The goroutines that start,
// end or watch a mount use its phase to decide which of them acts.
package phase

import (
	"context"
	"sync"

	"github.com/artifactfs/artifactfs/control"
)

// Phase is the phase of one mount. The methods may be called from any goroutine.
//
//	New ----> preparing -- Serve --> served ---+
//	              |                            | End
//	              | Abort                      v
//	              v                          ending -- Close --> gone
//	           aborted -- End ---------------> ^
//	                                           |
//	preparing -- End (failure of the start) ---+
//
// An aborted mount cannot be served. Its preparation is cancelled, and the goroutine that prepares it calls End.
type Phase struct {
	abort   context.CancelFunc // cancels the preparation
	started chan struct{}      // closed by Serve
	gone    chan struct{}      // closed by Close

	mu      sync.Mutex         // protects the following fields
	state   control.State      // state for the status
	aborted bool               // whether Abort has cancelled the preparation
	ending  bool               // whether End was called
	cancel  context.CancelFunc // ends the background work; nil until Serve is called
	reply   control.MountReply // reply to the mount request; set by Serve
}

// New returns the phase of a mount that is being prepared. abort cancels the preparation; it may be nil.
func New(abort context.CancelFunc) *Phase {
	if abort == nil {
		abort = func() {}
	}
	return &Phase{abort: abort, started: make(chan struct{}), gone: make(chan struct{}), state: control.StatePreparing}
}

// Serve changes the phase to "served", and calls begin, which starts the background work. cancel ends this work, and
// reply is the reply to the mount request. If Abort was called before, Serve does nothing and returns false. No other
// goroutine can begin the end of the mount until begin has returned. begin must not call methods of the phase.
func (p *Phase) Serve(reply control.MountReply, cancel context.CancelFunc, begin func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.aborted {
		return false
	}
	begin()
	p.state, p.cancel, p.reply = control.StateMounted, cancel, reply
	close(p.started)
	return true
}

// Abort cancels the preparation of the mount. It does nothing and returns false if the mount is not being prepared.
// Either the caller of Abort or the goroutine that prepares the mount has to end it, because after Abort, Serve fails.
func (p *Phase) Abort() bool {
	p.mu.Lock()
	preparing := p.state == control.StatePreparing
	p.aborted = p.aborted || preparing
	p.mu.Unlock()
	if preparing {
		p.abort()
	}
	return preparing
}

// End changes the phase to "ending", cancels the background work and returns true. If End was called before, it waits
// until the mount is gone, and returns false.
func (p *Phase) End() bool {
	p.mu.Lock()
	if p.ending {
		p.mu.Unlock()
		<-p.gone
		return false
	}
	p.ending, p.state = true, control.StateUnmounted
	cancel := p.cancel
	p.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	return true
}

// Close changes the phase to "gone". It is called once, after the mount has released everything.
func (p *Phase) Close() { close(p.gone) }

// State returns the state of the mount for the status, and whether this process serves the mount or has served it.
func (p *Phase) State() (state control.State, served bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state, p.cancel != nil
}

// Served reports whether this process serves the mount or has served it.
func (p *Phase) Served() bool {
	_, served := p.State()
	return served
}

// Reply returns the reply to the mount request. It is zero until the mount is served.
func (p *Phase) Reply() control.MountReply {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reply
}

// Ending reports whether the mount is ending or gone.
func (p *Phase) Ending() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ending
}

// Started returns a channel that is closed when the mount is served.
func (p *Phase) Started() <-chan struct{} { return p.started }

// Gone returns a channel that is closed when the mount is gone.
func (p *Phase) Gone() <-chan struct{} { return p.gone }

// IsGone reports whether the mount is gone.
func (p *Phase) IsGone() bool {
	select {
	case <-p.gone:
		return true
	default:
		return false
	}
}
