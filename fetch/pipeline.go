package fetch

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/metrics"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/prioritize"
)

const (
	// hedgeAfter is how long a reader waits for a blob that a background answer is to bring before it is asked for
	// once more, on its own; hedgeCrawl is the same for a crawler.
	hedgeAfter = 150 * time.Millisecond
	hedgeCrawl = 3 * time.Second
	// keepForWaiters is the largest content, in bytes, handed to waiters directly and not through the disk.
	keepForWaiters = 1 << 20
)

var (
	// ErrNotFound says that the remote does not have an object that a tree names.
	ErrNotFound = errors.New("the remote does not have it")
	// ErrDeadline says that content did not come within the time that the settings allow.
	ErrDeadline = errors.New("deadline passed")
	// ErrClosed says that the store was closed while something waited.
	ErrClosed = errors.New("closed")
)

// flight is one wanted blob, from the first ask until its content is here or given up. All fields but done
// are guarded by pipeline.mu; err and data are frozen once done is closed.
type flight struct {
	done     chan struct{}
	err      error
	data     []byte // content up to keepForWaiters, kept only if somebody waits
	waiters  int
	keep     bool   // the background wants it too: it goes on when the last waiter leaves
	batch    *batch // the request that carries it; nil while queued or backing off
	attempts int
}

// batch is one request under way.
type batch struct {
	wants      []prioritize.Want
	background bool
	probe      bool         // it is sent to see whether the remote is back
	suspect    bool         // one of its objects may be what made an answer unusable
	urgent     atomic.Int32 // somebody waits for a part of it: never paused
}

// pipeline joins, orders, sends and retries wants for blobs. One want per object is under way at any time.
//
// Lock order: mu, then what here locks, which looks into memory only; mu is never held across network or disk.
type pipeline struct {
	send     func(ctx context.Context, b *batch, arrived func(object.ID, []byte)) error
	look     func()                  // asks the remote for something small, to see whether it is back; may be nil
	here     func(id object.ID) bool // the content has come by another way, or between two looks
	deadline time.Duration
	log      *zap.Logger

	stop chan struct{}
	wg   sync.WaitGroup

	waits    metrics.Histogram    // of readers, for contents
	requests [2]metrics.Histogram // of a batch each, from its sending to its last content; [1]: in the background

	foreground atomic.Int32 // foreground batches under way
	lastWait   atomic.Int64 // when somebody last began to wait, in nanoseconds since the epoch
	readers    *Readers     // of all stores

	mu        sync.Mutex
	wake      *sync.Cond // something was queued, or stop
	queue     *prioritize.Queue
	flights   map[object.ID]*flight
	crawling  time.Time // until when background batches are large
	crawl     int       // size of the next large batch
	hydration int       // size of the next batch of hydration
	hydrated  time.Time // when the last batch of hydration was taken
	closed    bool
	state     health
	recovered chan struct{} // closed with the end of a failure
	waiting   int           // readers
	atGate    int           // requests that are not lanes' and wait while the remote is away
	refusals  refusals
	lost      int // contents that the background wanted and gave up
}

func newPipeline(send func(context.Context, *batch, func(object.ID, []byte)) error, here func(object.ID) bool, deadline time.Duration, readers *Readers, log *zap.Logger) *pipeline {
	if readers == nil {
		readers = new(Readers)
	}
	p := &pipeline{
		send: send, here: here, deadline: deadline, readers: readers, log: log,
		stop: make(chan struct{}), queue: prioritize.NewQueue(), hydration: firstHydrationBatch, flights: map[object.ID]*flight{},
		recovered: make(chan struct{}), refusals: refusals{of: map[object.ID]*refusal{}, turn: make(chan struct{}, 1), first: refusedFirst},
	}
	p.wake = sync.NewCond(&p.mu)
	for range foregroundLanes {
		p.wg.Go(func() { p.lane(false) })
	}
	for range backgroundLanes {
		p.wg.Go(func() { p.lane(true) })
	}
	return p
}

func (p *pipeline) close() {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	p.closed = true
	close(p.stop)
	p.wake.Broadcast()
	p.succeededLocked() // stops the timer
	p.lookAgain()
	p.mu.Unlock()
	p.wg.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, f := range p.flights {
		p.land(id, f, nil, ErrClosed)
	}
}

// wait joins or starts the flight of one blob and waits for it. The content is returned if it was small,
// otherwise nil: it is in the cache then. The flight of a waiter that leaves goes on if others need it.
func (p *pipeline) wait(ctx context.Context, w prioritize.Want, along company) ([]byte, error) {
	w.Class = prioritize.Waiting
	p.readerWaits()
	p.mu.Lock()
	if r := p.refused(w.ID); r != nil {
		p.mu.Unlock()
		return nil, r
	}
	f := p.enqueue(w)
	if f == nil {
		p.mu.Unlock()
		return nil, ErrClosed
	}
	p.readerBegins()
	f.waiters++
	if f.batch != nil {
		f.batch.urgent.Add(1)
	}
	for _, n := range along.wants {
		if p.refused(n.ID) != nil {
			continue
		}
		if nf := p.enqueue(n); nf != nil {
			nf.keep = true
		}
	}
	p.wake.Broadcast()
	p.mu.Unlock()

	start := time.Now()
	err := p.await(ctx, f, w, along.patience)
	p.waits.Observe(time.Since(start))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.readerEnds()
	f.waiters--
	select {
	case <-f.done:
		if f.err == nil {
			f.charge(ctx)
		}
		return f.data, f.err
	default:
	}
	if f.waiters == 0 && !f.keep && f.batch == nil {
		p.queue.Drop(w.ID)
		p.land(w.ID, f, nil, context.Canceled)
	}
	return nil, err
}

// charge notes what a landed flight has cost whoever waited; it needs mu.
func (f *flight) charge(ctx context.Context) {
	blobs := int64(1)
	if f.batch != nil {
		blobs = int64(len(f.batch.wants))
	}
	metrics.Charge(ctx, metrics.Fetched, blobs, int64(len(f.data)))
}

// await blocks until the flight lands, ctx ends or the deadline passes. A blob that a background answer has not
// brought after patience is asked for once more.
func (p *pipeline) await(ctx context.Context, f *flight, w prioritize.Want, patience time.Duration) error {
	deadline := time.NewTimer(p.deadline)
	defer deadline.Stop()
	hedge := time.NewTimer(patience)
	defer hedge.Stop()
	for {
		select {
		case <-f.done:
			return f.err
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline.C:
			_, err := p.health()
			if !Away(err) {
				err = nil
			}
			err = p.late(err)
			p.failed(err, p.askAgain(w))
			return err
		case <-hedge.C:
			p.hedge(f, w)
			hedge.Reset(patience)
		}
	}
}

// hedge queues a want again, on its own, if a background answer is to bring it.
func (p *pipeline) hedge(f *flight, w prioritize.Want) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.flights[w.ID] != f || f.batch == nil || !f.batch.background || f.batch.suspect {
		return
	}
	f.batch = nil
	p.queue.Push(w)
	p.wake.Broadcast()
}

// ask queues background wants. Those under way already are left alone.
func (p *pipeline) ask(wants []prioritize.Want) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range wants {
		if p.refused(w.ID) != nil {
			continue
		}
		if f := p.enqueue(w); f != nil {
			f.keep = true
		}
	}
	p.wake.Broadcast()
}

// roomFor waits until fewer than n wants are queued; false: ctx has ended or the pipeline is closed.
func (p *pipeline) roomFor(ctx context.Context, n int) bool {
	full := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.queue.Len() >= n && !p.closed
	}
	for full() {
		select {
		case <-time.After(hydratePoll):
		case <-ctx.Done():
			return false
		}
	}
	return ctx.Err() == nil
}

// startCrawl makes background batches large for a while: a reader is on its way through the whole tree.
func (p *pipeline) startCrawl() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if now.After(p.crawling) {
		p.crawl = firstCrawlBatch
	}
	p.crawling = now.Add(crawlTime)
}

// enqueue needs mu. It returns nil only when the pipeline is closed.
func (p *pipeline) enqueue(w prioritize.Want) *flight {
	if p.closed {
		return nil
	}
	f := p.flights[w.ID]
	if f == nil {
		f = &flight{done: make(chan struct{})}
		p.flights[w.ID] = f
	}
	if f.batch == nil {
		p.queue.Push(w)
	}
	return f
}

// land ends a flight; it needs mu.
func (p *pipeline) land(id object.ID, f *flight, data []byte, err error) {
	if f.waiters > 0 && len(data) <= keepForWaiters {
		f.data = data
	}
	f.err = err
	if err != nil && f.keep {
		p.lost++
	}
	delete(p.flights, id)
	close(f.done)
}

// kept counts the contents that the background wants and that are neither here nor given up.
func (p *pipeline) kept() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.flights {
		if f.keep {
			n++
		}
	}
	return n
}

// losses counts the contents that the background wanted and gave up.
func (p *pipeline) losses() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

// flying says whether a blob is queued or under way.
func (p *pipeline) flying(id object.ID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.flights[id] != nil
}

// underWay says whether a request that brings a blob has been sent.
func (p *pipeline) underWay(id object.ID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.flights[id]
	return f != nil && f.batch != nil
}

// queued counts wants that wait to be sent: those somebody waits for or sits next to, and the others.
func (p *pipeline) queued() (foreground, background int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for class, n := range p.queue.LenClass() {
		if class <= prioritize.Sibling {
			foreground += n
		} else {
			background += n
		}
	}
	return foreground, background
}
