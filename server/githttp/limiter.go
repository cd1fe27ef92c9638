package githttp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// errBusy means that no process could be started in time.
var errBusy = errors.New("too many git processes")

// limiter limits the number of git commands that run at once: of all, and of each repository, token and namespace. Commands over the
// limit wait in a queue; one repository with many requests does not delay the others.
//
// Locks: mu is a leaf.
type limiter struct {
	most, mostWaiting int
	mostOf            map[kind]int // commands of a share
	patience          time.Duration
	processors        int

	mu      sync.Mutex
	running int
	of      map[share]int // running commands
	queue   []*waiter     // none of them fits
}

// kind is a kind of shares.
type kind string

const (
	ofRepo      kind = "repository"
	ofToken     kind = "token"
	ofNamespace kind = "namespace"
)

// share is a group of commands with a limit of its own.
type share struct {
	kind kind
	id   string
}

type waiter struct {
	shares []share
	start  chan struct{} // closed when the command may run
}

// acquire waits until a command may run, which counts for all shares. The caller calls release after it. It returns errBusy if the queue
// is full, if commands of one of the shares fill half of it, or if the wait takes too long.
func (l *limiter) acquire(ctx context.Context, shares ...share) (release func(), err error) {
	l.mu.Lock()
	if l.fits(shares) {
		l.begin(shares)
		l.mu.Unlock()
		return func() { l.end(shares) }, nil
	}
	if l.full(shares) {
		l.mu.Unlock()
		return nil, errBusy
	}
	w := &waiter{shares, make(chan struct{})}
	l.queue = append(l.queue, w)
	l.mu.Unlock()
	timer := time.NewTimer(l.patience)
	defer timer.Stop()
	select {
	case <-w.start:
		return func() { l.end(shares) }, nil
	case <-timer.C:
		err = errBusy
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	l.mu.Lock()
	i := slices.Index(l.queue, w)
	if i >= 0 {
		l.queue = slices.Delete(l.queue, i, i+1)
	}
	l.mu.Unlock()
	if i < 0 { // the command was admitted at the same time
		l.end(shares)
	}
	return nil, err
}

// fits reports whether a command may run now. The caller holds mu, as for full, begin and admit.
func (l *limiter) fits(shares []share) bool {
	return l.running < l.most && !slices.ContainsFunc(shares, func(s share) bool { return l.of[s] >= l.mostOf[s.kind] })
}

// full reports whether a command may not wait.
func (l *limiter) full(shares []share) bool {
	if len(l.queue) >= l.mostWaiting {
		return true
	}
	for _, s := range shares {
		waiting := 0
		for _, w := range l.queue {
			if slices.Contains(w.shares, s) {
				waiting++
			}
		}
		if waiting >= max(l.mostWaiting/2, 1) {
			return true
		}
	}
	return false
}

func (l *limiter) begin(shares []share) {
	l.running++
	if l.of == nil {
		l.of = map[share]int{}
	}
	for _, s := range shares {
		l.of[s]++
	}
}

// admit lets the commands run that may, in the order of the queue.
func (l *limiter) admit() {
	l.queue = slices.DeleteFunc(l.queue, func(w *waiter) bool {
		if !l.fits(w.shares) {
			return false
		}
		l.begin(w.shares)
		close(w.start)
		return true
	})
}

func (l *limiter) end(shares []share) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running--
	for _, s := range shares {
		if l.of[s]--; l.of[s] == 0 {
			delete(l.of, s)
		}
	}
	l.admit()
}

// mostThreads is the largest number of threads of a command, because each may need pack.windowMemory.
const mostThreads = 4

// threads returns the options for a command that begins now, which give it a thread for each processor that is its share.
func (l *limiter) threads() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return []string{"-c", fmt.Sprintf("pack.threads=%d", min(mostThreads, max(1, l.processors/max(1, l.running))))}
}
