package worktree

import "sync"

// gate counts the calls in progress, so that Close can wait until they have returned. It is not a lock: calls between
// enter and leave may block, and do not exclude each other.
type gate struct {
	mu     sync.Mutex
	inside int           // number of calls in progress
	idle   chan struct{} // created when close is called; closed when no call is in progress
}

// enter counts a call that begins. It returns false after close was called.
func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.idle != nil {
		return false
	}
	g.inside++
	return true
}

// exit records that a call for which enter had returned true has ended.
func (g *gate) exit() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
	if g.inside == 0 && g.idle != nil {
		close(g.idle)
	}
}

// close makes enter return false from now on, and waits until all calls in progress have returned. It returns false if
// close was called before.
func (g *gate) close() bool {
	g.mu.Lock()
	first := g.idle == nil
	if first {
		g.idle = make(chan struct{})
		if g.inside == 0 {
			close(g.idle)
		}
	}
	g.mu.Unlock()
	<-g.idle
	return first
}
