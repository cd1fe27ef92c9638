package githttp

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/signal"
	"github.com/artifactfs/artifactfs/server/records"
)

const (
	noteTime = 200 * time.Millisecond // time between two transactions
	maxNotes = 10_000                 // maximum number of events in memory
)

// notes stores the events of fetches. It collects events for a short time, so that a fetch does not wait for a
// transaction. While the database is unavailable, it keeps up to maxNotes events in memory. If the process is killed,
// the collected events are lost.
type notes struct {
	store interface {
		Add(ctx context.Context, events []records.Event) error
	}
	log  *zap.Logger
	wake chan struct{}
	done chan struct{}

	mu     sync.Mutex
	events []records.Event
	lost   int
	closed bool
}

func newNotes(store *records.Events, log *zap.Logger) *notes {
	n := &notes{store: store, log: log, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go n.run()
	return n
}

func (n *notes) add(e records.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed || len(n.events) >= maxNotes {
		n.lost++
		return
	}
	n.events = append(n.events, e)
	signal.Send(n.wake)
}

// run stores events until wake is closed.
func (n *notes) run() {
	defer close(n.done)
	for range n.wake {
		time.Sleep(noteTime)
		n.flush()
	}
	n.flush()
}

func (n *notes) flush() {
	n.mu.Lock()
	events, lost := n.events, n.lost
	n.events, n.lost = nil, 0
	n.mu.Unlock()
	if lost > 0 {
		n.log.Warn("events of fetches were lost because the database did not answer", zap.Int("number", lost))
	}
	if len(events) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := n.store.Add(ctx, events); err != nil {
		n.mu.Lock()
		n.events = append(events, n.events...)
		n.mu.Unlock()
	}
}

// close stores the remaining events. Events that are added later are lost.
func (n *notes) close() {
	n.mu.Lock()
	closed := n.closed
	n.closed = true
	n.mu.Unlock()
	if !closed {
		close(n.wake)
	}
	<-n.done
}
