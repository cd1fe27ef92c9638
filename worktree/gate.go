package worktree

import "sync"

// gate counts the calls in progress, so that Close can wait for them. It is not held as a lock: calls may block inside it.
type gate struct {
	mu     sync.Mutex
	inside int           // number of calls inside
	idle   chan struct{} // created when closing begins; closed when no call is inside
}

// enter counts a call that begins. It returns false once the gate is closing.
func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.idle != nil {
		return false
	}
	g.inside++
	return true
}

// leave ends a call for which enter returned true.
func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
	if g.inside == 0 && g.idle != nil {
		close(g.idle)
	}
}

// close refuses new calls and waits until all calls inside have left. It reports whether this was the first call of close.
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
