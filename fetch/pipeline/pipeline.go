// Package pipeline requests blobs from a remote on behalf of many readers and prefetches.
//
// A want is one blob that is to be requested. Wants that are queued at the same time share a request (a batch). At
// most one want per blob is pending, and blobs that readers wait for are requested before those that only a prefetch
// wants. The pipeline keeps track of whether the remote is reachable and how long to back off (health), and of
// objects whose answers were invalid (refusals). It does not store blobs; Config.Send does.
//
// Files: pipeline.go (waiting and queueing), sender.go (choosing and sending batches), health.go
// (failures of the remote), refusal.go (invalid answers), claim.go (batches that the caller sends).
//
// Lock order: Pipeline.mu is a leaf, except for the locks that Config.Cached acquires.
package pipeline

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
	// HedgeAfter is how long a reader waits for a blob that is part of an in-flight background request. Then the blob
	// is requested once more, in a request of its own. HedgeCrawl is the same time for a crawler, a process that
	// reads the whole tree, for which large answers are faster.
	HedgeAfter = 150 * time.Millisecond
	HedgeCrawl = 3 * time.Second
	// roomPoll is the interval at which AwaitRoom checks the length of the queue.
	roomPoll = 20 * time.Millisecond
	// maxSharedSize is the maximum size, in bytes, of contents that are returned to readers directly. Readers read
	// larger contents from the cache.
	maxSharedSize = 1 << 20
)

var (
	// ErrNotFound means that the remote does not have an object to which a tree refers.
	ErrNotFound = errors.New("object is missing on the remote")
	// ErrDeadline means that contents did not arrive within Config.Deadline.
	ErrDeadline = errors.New("deadline exceeded")
	// ErrClosed means that the pipeline was closed during the call.
	ErrClosed = errors.New("closed")
)

// Pending is the state of one want, from the first call that wants the blob until its contents are on this host or
// the pipeline gives up. Pipeline.mu guards all fields except done. err and data do not change after done is closed.
type Pending struct {
	done     chan struct{}
	err      error
	data     []byte // the contents, if a reader waits for them and they are not larger than maxSharedSize
	waiters  int    // number of readers that wait
	prefetch bool   // a prefetch wants the blob too, so the want stays queued when the last reader leaves
	inBatch  *Batch // the batch that contains the want; nil while the want is queued or waits to be retried
	attempts int    // number of batches that contained the want so far
}

// Done returns a channel that is closed when the contents are on this host or the pipeline has given up.
func (f *Pending) Done() <-chan struct{} { return f.done }

// Err returns nil if the contents are on this host, otherwise the reason why the pipeline has given up. It must be
// called only after the channel of Done is closed.
func (f *Pending) Err() error { return f.err }

// Neighbours are wants that are queued together with a want that a reader waits for, so that one request fetches all.
type Neighbours struct {
	Wants []prioritize.Want
	// Patience is how long the reader waits for a background answer before its blob is requested once more:
	// HedgeAfter or HedgeCrawl.
	Patience time.Duration
}

// Batch is one in-flight request.
type Batch struct {
	Wants      []prioritize.Want
	background bool
	probe      bool         // sent to find out whether the remote answers again
	suspect    bool         // one of its objects may be the cause of an invalid answer
	urgent     atomic.Int32 // number of readers that wait for a part of the answer; unless it is 0, the answer is not paused
}

// Pipeline merges, orders, sends and retries wants for blobs. At most one want per object is
// pending at any time. Its methods may be called from any goroutine.
//
// Config.Cached is called with mu held, so mu is acquired before any lock that this function acquires. mu is never
// held across network or disk waits.
type Pipeline struct {
	send     func(ctx context.Context, b *Batch, arrived func(object.ID, []byte)) error
	probe    func()                  // sends a small request, to find out whether the remote answers again; may be nil
	cached   func(id object.ID) bool // reports whether contents are on this host already
	deadline time.Duration
	log      *zap.Logger

	stop chan struct{}
	wg   sync.WaitGroup

	waits    metrics.Histogram    // how long readers waited for contents
	requests [2]metrics.Histogram // how long a batch took, from the request to its last object; [1] counts background batches

	foreground atomic.Int32 // in-flight foreground batches
	lastReader atomic.Int64 // time when a reader last began to wait, in nanoseconds since 1970
	readers    *Readers     // of all stores of the process

	mu             sync.Mutex
	wake           *sync.Cond // signals that a want was queued, that the remote may be tried again, or Close
	queue          *prioritize.Queue
	pending        map[object.ID]*Pending
	crawlingUntil  time.Time // background batches are large until then
	crawlSize      int       // size of the next large batch
	prefetchSize   int       // size of the next prefetch batch
	lastPrefetch   time.Time // when the last prefetch batch was taken
	closed         bool
	state          health
	recovered      chan struct{} // closed and replaced when a failure ends
	readersWaiting int           // readers that wait for the remote
	admitting      int           // number of calls of admit that wait because the remote is unreachable
	refusals       refusals
	lost           int // number of blobs that a prefetch wanted and that could not be fetched
}

// Config configures a Pipeline.
type Config struct {
	// Send requests the wants of a batch, stores each blob where reads find it, and then calls
	// arrived with its contents (nil if they are large).
	Send func(ctx context.Context, b *Batch, arrived func(object.ID, []byte)) error
	// Cached reports whether contents are on this host, so that they need not be requested. It is called with
	// Pipeline.mu held and must not wait for network or disk.
	Cached func(id object.ID) bool
	// Probe sends a small request that shows whether the remote answers again. It may be nil.
	Probe    func()
	Deadline time.Duration // how long a reader waits for contents
	Readers  *Readers      // of all stores of the process; nil: of this pipeline alone
	Log      *zap.Logger
}

// New returns a running Pipeline. The caller must call Close.
func New(c Config) *Pipeline {
	if c.Readers == nil {
		c.Readers = new(Readers)
	}
	p := &Pipeline{
		send: c.Send, cached: c.Cached, probe: c.Probe, deadline: c.Deadline, readers: c.Readers, log: c.Log,
		stop: make(chan struct{}), queue: prioritize.NewQueue(), prefetchSize: FirstPrefetchBatch, pending: map[object.ID]*Pending{},
		recovered: make(chan struct{}),
		refusals:  refusals{byID: map[object.ID]*refusal{}, token: make(chan struct{}, 1), firstRetry: refusedFirst},
	}
	p.wake = sync.NewCond(&p.mu)
	for range ForegroundSenders {
		p.wg.Go(func() { p.runSender(false) })
	}
	for range backgroundSenders {
		p.wg.Go(func() { p.runSender(true) })
	}
	return p
}

// Deadline returns how long a reader waits for contents.
func (p *Pipeline) Deadline() time.Duration { return p.deadline }

// Latencies returns histograms of how long readers waited for contents, and of how long foreground and background
// requests took.
func (p *Pipeline) Latencies() (waits, foreground, background *metrics.Histogram) {
	return &p.waits, &p.requests[0], &p.requests[1]
}

// BeginForeground counts a foreground request that the caller sends, until end is called.
func (p *Pipeline) BeginForeground() (end func()) {
	p.foreground.Add(1)
	return func() { p.foreground.Add(-1) }
}

// Close cancels all requests, ends every wait with ErrClosed, and returns when all goroutines of the pipeline have
// ended.
func (p *Pipeline) Close() {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	p.closed = true
	close(p.stop)
	p.wake.Broadcast()
	p.succeededLocked() // stops the timer
	p.wakeAll()
	p.mu.Unlock()
	p.wg.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, f := range p.pending {
		p.finish(id, f, nil, ErrClosed)
	}
}

// Wait waits until the contents of one blob are on this host and returns them. It queues the blob, unless it is
// pending already, and its neighbours. Contents over 1 MiB are returned as nil: the caller reads them from the cache.
// The error is or wraps ErrNotFound, ErrDeadline, ErrClosed, the error of ctx, a refusal, or the failure of the
// remote. If Wait returns early, an in-flight request continues.
func (p *Pipeline) Wait(ctx context.Context, w prioritize.Want, neighbours Neighbours) ([]byte, error) {
	w.Class = prioritize.Waiting
	p.NoteReader()
	p.mu.Lock()
	if r := p.refusedLocked(w.ID); r != nil {
		p.mu.Unlock()
		return nil, r
	}
	f := p.enqueue(w)
	if f == nil {
		p.mu.Unlock()
		return nil, ErrClosed
	}
	p.addReader()
	f.waiters++
	if f.inBatch != nil {
		f.inBatch.urgent.Add(1)
	}
	for _, n := range neighbours.Wants {
		if p.refusedLocked(n.ID) != nil {
			continue
		}
		if nf := p.enqueue(n); nf != nil {
			nf.prefetch = true
		}
	}
	p.wake.Broadcast()
	p.mu.Unlock()

	start := time.Now()
	err := p.await(ctx, f, w, neighbours.Patience)
	p.waits.Observe(time.Since(start))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.removeReader()
	f.waiters--
	select {
	case <-f.done:
		if f.err == nil {
			f.charge(ctx)
		}
		return f.data, f.err
	default:
	}
	if f.waiters == 0 && !f.prefetch && f.inBatch == nil {
		p.queue.Drop(w.ID)
		p.finish(w.ID, f, nil, context.Canceled)
	}
	return nil, err
}

// charge adds the cost of a finished want to the request that waited for it, which ctx belongs to. The caller holds
// Pipeline.mu.
func (f *Pending) charge(ctx context.Context) {
	blobs := int64(1)
	if f.inBatch != nil {
		blobs = int64(len(f.inBatch.Wants))
	}
	metrics.Charge(ctx, metrics.Fetched, blobs, int64(len(f.data)))
}

// await blocks until the want is finished, ctx ends or the deadline passes. Whenever patience has passed, it calls
// hedge.
func (p *Pipeline) await(ctx context.Context, f *Pending, w prioritize.Want, patience time.Duration) error {
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
			_, err := p.Failure()
			if !IsUnreachable(err) {
				err = nil
			}
			err = p.DeadlineError(err)
			p.ReportFailure(err, p.RetryOf(w))
			return err
		case <-hedge.C:
			p.hedge(f, w)
			hedge.Reset(patience)
		}
	}
}

// hedge queues a want again if it is part of an in-flight background batch, so that a foreground request fetches it
// sooner.
func (p *Pipeline) hedge(f *Pending, w prioritize.Want) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.pending[w.ID] != f || f.inBatch == nil || !f.inBatch.background || f.inBatch.suspect {
		return
	}
	f.inBatch = nil
	p.queue.Push(w)
	p.wake.Broadcast()
}

// Queue queues wants of a prefetch or readahead. It does not wait. Wants that are pending already stay pending.
func (p *Pipeline) Queue(wants []prioritize.Want) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range wants {
		if p.refusedLocked(w.ID) != nil {
			continue
		}
		if f := p.enqueue(w); f != nil {
			f.prefetch = true
		}
	}
	p.wake.Broadcast()
}

// AwaitRoom waits until fewer than n wants are queued. It returns false if ctx has ended.
func (p *Pipeline) AwaitRoom(ctx context.Context, n int) bool {
	full := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.queue.Len() >= n && !p.closed
	}
	for full() {
		select {
		case <-time.After(roomPoll):
		case <-ctx.Done():
			return false
		}
	}
	return ctx.Err() == nil
}

// StartCrawl makes background batches large for crawlTime, because a process reads the whole tree.
func (p *Pipeline) StartCrawl() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if now.After(p.crawlingUntil) {
		p.crawlSize = firstCrawlBatch
	}
	p.crawlingUntil = now.Add(crawlTime)
}

// enqueue returns the state of the want for a blob, and queues the want unless a batch contains it. It returns nil if
// the pipeline is closed. The caller holds mu.
func (p *Pipeline) enqueue(w prioritize.Want) *Pending {
	if p.closed {
		return nil
	}
	f := p.pending[w.ID]
	if f == nil {
		f = &Pending{done: make(chan struct{})}
		p.pending[w.ID] = f
	}
	if f.inBatch == nil {
		p.queue.Push(w)
	}
	return f
}

// finish ends a want with its contents or an error, and wakes the readers that wait for it. The caller holds mu.
func (p *Pipeline) finish(id object.ID, f *Pending, data []byte, err error) {
	if f.waiters > 0 && len(data) <= maxSharedSize {
		f.data = data
	}
	f.err = err
	if err != nil && f.prefetch {
		p.lost++
	}
	delete(p.pending, id)
	close(f.done)
}

// Prefetching returns the number of pending blobs that a prefetch wants.
func (p *Pipeline) Prefetching() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.pending {
		if f.prefetch {
			n++
		}
	}
	return n
}

// Lost returns the number of blobs that a prefetch wanted and that could not be fetched.
func (p *Pipeline) Lost() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

// IsPending reports whether a blob is queued or in flight.
func (p *Pipeline) IsPending(id object.ID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pending[id] != nil
}

// IsInFlight reports whether a blob is part of a batch that is being sent and answered.
func (p *Pipeline) IsInFlight(id object.ID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.pending[id]
	return f != nil && f.inBatch != nil
}

// Queued returns the numbers of queued wants: foreground counts those that readers wait for and their neighbours,
// background all others.
func (p *Pipeline) Queued() (foreground, background int) {
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
