package worktree

import "sync"

// gate counts the calls under way, so that closing can wait for them. It is no lock: calls wait inside it.
type gate struct {
	mu     sync.Mutex
	inside int
	idle   chan struct{} // not nil once closing; closed when nobody is inside
}

// enter says false once the gate is closing.
func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.idle != nil {
		return false
	}
	g.inside++
	return true
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
	if g.inside == 0 && g.idle != nil {
		close(g.idle)
	}
}

// close lets nobody in any more and waits until all have left. It says whether this call was the first.
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
