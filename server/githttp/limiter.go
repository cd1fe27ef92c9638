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

// limiter limits the number of git commands that run at once: of all, and of each repository. Commands over the limit wait in a queue;
// one repository with many requests does not delay the others.
//
// Locks: mu is a leaf.
type limiter struct {
	most, mostOfRepo, mostWaiting int
	patience                      time.Duration
	processors                    int

	mu      sync.Mutex
	running int
	of      map[string]int // running commands by repository
	queue   []*waiter
}

type waiter struct {
	repo  string
	start chan struct{} // closed when the command may run
}

// acquire waits until a command may run. The caller calls release after it. It returns errBusy if the queue is full or the wait takes
// too long.
func (l *limiter) acquire(ctx context.Context, repo string) (release func(), err error) {
	l.mu.Lock()
	if l.fits(repo) && len(l.queue) == 0 {
		l.begin(repo)
		l.mu.Unlock()
		return func() { l.end(repo) }, nil
	}
	if len(l.queue) >= l.mostWaiting {
		l.mu.Unlock()
		return nil, errBusy
	}
	w := &waiter{repo, make(chan struct{})}
	l.queue = append(l.queue, w)
	l.admit() // those in front may wait for their repositories only
	l.mu.Unlock()
	timer := time.NewTimer(l.patience)
	defer timer.Stop()
	select {
	case <-w.start:
		return func() { l.end(repo) }, nil
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
		l.end(repo)
	}
	return nil, err
}

// fits reports whether a command may run now. The caller holds mu, as for begin and admit.
func (l *limiter) fits(repo string) bool { return l.running < l.most && l.of[repo] < l.mostOfRepo }

func (l *limiter) begin(repo string) {
	l.running++
	if l.of == nil {
		l.of = map[string]int{}
	}
	l.of[repo]++
}

// admit lets the commands run that may, in the order of the queue.
func (l *limiter) admit() {
	l.queue = slices.DeleteFunc(l.queue, func(w *waiter) bool {
		if !l.fits(w.repo) {
			return false
		}
		l.begin(w.repo)
		close(w.start)
		return true
	})
}

func (l *limiter) end(repo string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running--
	if l.of[repo]--; l.of[repo] == 0 {
		delete(l.of, repo)
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
