package read

import (
	"slices"
	"sync"
	"time"
)

const (
	maxIdle  = 16              // processes in a Pool
	idleTime = 5 * time.Second // after which an unused process is ended
)

// Memory has room for the processes of git that a Pool keeps.
type Memory interface {
	// Keep reserves memory for a process that can allocate n bytes, and returns false if there is not enough.
	Keep(n int64) (release func(), ok bool)
}

// Pool keeps processes of git for a few seconds, because starting git takes longer than most reads. A process reads
// refs again when they have changed, and looks for new packs when an object is missing. It keeps removed packs on disk
// as long as it runs. The zero value is ready to use. A process that is kept has a part of Memory. The methods may be
// called from any goroutine, and on a nil *Pool, which keeps nothing.
//
// Locks: Pool.mu is a leaf.
type Pool struct {
	Memory Memory // nil: no limit

	mu     sync.Mutex
	idle   []*batch // the least recently used one first
	closed bool
}

// take returns a process for a git directory that can allocate at most memory bytes (0: any number), nil if there is
// none.
func (p *Pool) take(dir string, memory int64) *batch {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	var b *batch
	for i := len(p.idle) - 1; i >= 0 && b == nil; i-- {
		if c := p.idle[i]; c.dir == dir && (memory == 0 || c.memory <= memory) && c.idle.Stop() {
			p.idle = slices.Delete(p.idle, i, i+1)
			b = c
		}
	}
	p.mu.Unlock()
	if b != nil {
		b.reused = true
		b.forget()
	}
	return b
}

// put keeps a process. It returns false if the caller must end the process.
func (p *Pool) put(b *batch) bool {
	if p == nil {
		return false
	}
	b.forget = func() {}
	if p.Memory != nil {
		var kept bool
		if b.forget, kept = p.Memory.Keep(b.memory); !kept {
			return false
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	b.idle = time.AfterFunc(idleTime, func() { p.drop(b) })
	p.idle = append(p.idle, b)
	if len(p.idle) > maxIdle {
		p.idle[0].idle.Reset(0) // ends it outside the lock
	}
	return true
}

// drop ends a process that was not used for idleTime.
func (p *Pool) drop(b *batch) {
	p.mu.Lock()
	i := slices.Index(p.idle, b)
	if i >= 0 {
		p.idle = slices.Delete(p.idle, i, i+1)
	}
	p.mu.Unlock()
	if i >= 0 {
		b.close()
		b.forget()
	}
}

// Close ends all processes that are not in use. Those in use end with their calls.
func (p *Pool) Close() error {
	p.mu.Lock()
	idle := p.idle
	p.idle, p.closed = nil, true
	p.mu.Unlock()
	for _, b := range idle {
		b.idle.Stop()
		b.close()
		b.forget()
	}
	return nil
}
