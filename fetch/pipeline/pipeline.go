// Package pipeline requests blobs from a remote on behalf of many readers and prefetches.
//
// A want is one blob that is to be requested. Wants that are queued at the same time are sent in one request (a batch).
// At most one want per blob is pending. Blobs for which readers wait are requested before those that only a prefetch
// needs. The pipeline records whether the remote is reachable and how long to back off (health), and which objects had
// invalid answers (refusals). It does not store blobs, because Config.Send stores them.
//
// Files: pipeline.go (waiting and queueing), table.go (the pending wants), sender.go (choosing and sending batches),
// pacer.go (how much is requested in the background), bulk.go (requests that name no blobs), health.go (failures of the
// remote), refusal.go and examiner.go (invalid answers), claim.go (batches that the caller sends), shared.go (the
// mutex).
//
// Lock order: a goroutine that holds shared.mu acquires no other locks, except those that Config.Cached acquires.
package pipeline

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/metrics"
	"github.com/artifactfs/artifactfs/prioritize"
)

const (
	// HedgeAfter is how long a reader waits for a blob that is part of an in-flight background request. After that time,
	// the blob is requested once more, in a foreground request. HedgeCrawl is used instead for a crawler, a process that
	// reads the whole tree, because a crawler is faster with large answers.
	HedgeAfter = 150 * time.Millisecond
	HedgeCrawl = 3 * time.Second
	// roomPoll is the interval at which AwaitRoom checks the length of the queue.
	roomPoll = 20 * time.Millisecond
	// maxSharedSize is the maximum size, in bytes, of contents that Wait returns in memory. Readers read larger contents
	// from the cache.
	maxSharedSize = 1 << 20
)

var (
	// ErrNotFound means that the remote does not have an object to which a tree refers.
	ErrNotFound = errors.New("object is missing on the remote")
	// ErrDeadline means that contents did not arrive within Config.Deadline.
	ErrDeadline = errors.New("contents did not arrive before the deadline")
	// ErrClosed means that the pipeline was closed during the call.
	ErrClosed = errors.New("closed")
)

// Neighbours are wants that are queued together with the want of a reader, so that one request fetches all of them.
type Neighbours struct {
	Wants []prioritize.Want
	// Patience is the time for which the reader waits for a blob that is part of a background request. After this time,
	// the blob is requested once more. Patience is HedgeAfter or HedgeCrawl.
	Patience time.Duration
}

// Pipeline merges wants for the same blob, orders them by urgency, sends them in batches, and repeats failed requests.
// At most one want per object is pending at any time. A Pipeline consists of the parts below, which share one mutex.
// Its methods may be called from any goroutine.
//
// Config.Cached is called with shared.mu held, so shared.mu must be acquired before any lock that this function
// acquires. A goroutine must not hold shared.mu while it waits for the network or the disk.
type Pipeline struct {
	send     func(ctx context.Context, b *Batch, arrived func(object.ID, []byte)) error
	shared   *shared
	table    *table
	pacer    *pacer
	health   *Health
	refusals *Refusals
	examiner *examiner
	// bulkToken contains a value while a bulk request is in flight.
	bulkToken chan struct{}

	waits metrics.Histogram // how long readers waited for contents
	// requests measures how long batches took, from the request to the last object. Index 0 is for foreground batches,
	// index 1 for background batches.
	requests [2]metrics.Histogram
}

// Config configures a Pipeline.
type Config struct {
	// Send requests the wants of a batch, stores each blob where readers find it, and then calls arrived with the blob's
	// contents, or with nil if the contents are large.
	Send func(ctx context.Context, b *Batch, arrived func(object.ID, []byte)) error
	// Cached reports whether contents are on this host, so that they need not be requested. It is called with the
	// pipeline's mutex held and must not wait for network or disk.
	Cached func(id object.ID) bool
	// Probe sends a small request that shows whether the remote answers again. It may be nil.
	Probe    func()
	Deadline time.Duration // how long a reader waits for contents
	Readers  *Readers      // shared by all stores of the process; nil: New creates one
	Log      *zap.Logger
}

// New returns a Pipeline and starts its goroutines. The caller must call Close.
func New(c Config) *Pipeline {
	if c.Readers == nil {
		c.Readers = new(Readers)
	}
	s := newShared()
	p := &Pipeline{
		send: c.Send, shared: s, bulkToken: make(chan struct{}, 1),
		table: &table{shared: s, cached: c.Cached, queue: prioritize.NewQueue(), pending: map[object.ID]*Pending{}},
		pacer: &pacer{shared: s, readers: c.Readers, prefetchSize: FirstPrefetchBatch},
	}
	p.health = &Health{shared: s, table: p.table, deadline: c.Deadline, sendProbe: c.Probe, recovered: make(chan struct{})}
	p.refusals = &Refusals{
		shared: s, table: p.table, byID: map[object.ID]*refusal{}, token: make(chan struct{}, 1), firstRetry: refusedFirst,
	}
	p.examiner = &examiner{
		shared: s, table: p.table, health: p.health, refusals: p.refusals, log: c.Log, retryOf: p.RetryOf,
		send: func(ctx context.Context, b *Batch) error { return p.send(ctx, b, p.Arrived) },
	}
	for range ForegroundSenders {
		s.wg.Go(func() { p.runSender(false) })
	}
	for range backgroundSenders {
		s.wg.Go(func() { p.runSender(true) })
	}
	return p
}

// Health returns the part of the pipeline that records whether the remote is reachable.
func (p *Pipeline) Health() *Health { return p.health }

// Refusals returns the part of the pipeline that records the objects whose answers were invalid.
func (p *Pipeline) Refusals() *Refusals { return p.refusals }

// Latencies returns histograms of the time for which readers waited for contents, and of the time that foreground and
// background requests took.
func (p *Pipeline) Latencies() (waits, foreground, background *metrics.Histogram) {
	return &p.waits, &p.requests[0], &p.requests[1]
}

// BeginForeground counts a foreground request that the caller sends itself, until the caller calls the returned
// function end.
func (p *Pipeline) BeginForeground() (end func()) { return p.pacer.beginForeground() }

// NoteReader records that a reader begins to wait now, or probably will at once.
func (p *Pipeline) NoteReader() { p.pacer.noteReader() }

// StartCrawl makes readahead batches large for the time crawlTime. It is called when a process reads the whole tree.
func (p *Pipeline) StartCrawl() { p.pacer.startCrawl() }

// Pause blocks while the answer to batch b must not be read, but for at most MaxPause. The answer must not be read
// while b is a background batch, foreground batches are in flight, and no reader waits for a blob of b. Pause returns
// the error of ctx if ctx ends.
func (p *Pipeline) Pause(ctx context.Context, b *Batch) error { return p.pacer.pause(ctx, b) }

// Busy reports whether foreground requests or a bulk request are in flight, a reader has begun to wait within the last
// idleTime, or a process reads the whole tree.
func (p *Pipeline) Busy() bool {
	p.shared.mu.Lock()
	bulk := p.table.bulk != nil
	p.shared.mu.Unlock()
	return bulk || p.pacer.busy()
}

// Crawled reports whether a bulk request is in flight, or a process has read the whole tree within the last crawlTime.
func (p *Pipeline) Crawled() bool {
	p.shared.mu.Lock()
	defer p.shared.mu.Unlock()
	return p.table.bulk != nil || time.Now().Before(p.pacer.crawlingUntil)
}

// Close cancels all requests, makes all waiting calls return ErrClosed, and returns when all goroutines of the pipeline
// have ended.
func (p *Pipeline) Close() {
	p.shared.mu.Lock()
	if p.shared.closed {
		p.shared.mu.Unlock()
		return
	}
	p.shared.closed = true
	close(p.shared.stop)
	p.shared.wake.Broadcast()
	p.health.succeeded() // record a success, which stops the timer for the next attempt after a failure
	p.health.wakeAll()
	p.shared.mu.Unlock()
	p.shared.wg.Wait()
	p.shared.mu.Lock()
	defer p.shared.mu.Unlock()
	for id, f := range p.table.pending {
		p.table.finish(id, f, nil, ErrClosed)
	}
}

// Wait waits until the contents of one blob are on this host and returns them. It queues the want w, unless w is
// pending already, together with the wants in the parameter neighbours. Contents larger than 1 MiB are returned as nil,
// and the caller has to read them from the cache. The returned error is or wraps one of these: ErrNotFound,
// ErrDeadline, ErrClosed, the error of ctx, a Refusal, or the failure of the remote. If Wait returns before the blob
// has arrived, an in-flight request for the blob continues.
func (p *Pipeline) Wait(ctx context.Context, w prioritize.Want, neighbours Neighbours) ([]byte, error) {
	w.Class = prioritize.Waiting
	p.NoteReader()
	p.shared.mu.Lock()
	if r := p.refusals.refused(w.ID); r != nil {
		p.shared.mu.Unlock()
		return nil, r
	}
	f := p.table.enqueue(w)
	if f == nil {
		p.shared.mu.Unlock()
		return nil, ErrClosed
	}
	p.health.addReader()
	f.waiters++
	if f.inBatch != nil {
		f.inBatch.urgent.Add(1)
	}
	for _, n := range neighbours.Wants {
		if p.refusals.refused(n.ID) != nil {
			continue
		}
		if nf := p.table.enqueue(n); nf != nil {
			nf.prefetch = true
		}
	}
	p.shared.wake.Broadcast()
	p.shared.mu.Unlock()

	start := time.Now()
	err := p.await(ctx, f, w, neighbours.Patience)
	p.waits.Observe(time.Since(start))
	p.shared.mu.Lock()
	defer p.shared.mu.Unlock()
	p.health.removeReader()
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
		p.table.queue.Drop(w.ID)
		p.table.finish(w.ID, f, nil, context.Canceled)
	}
	return nil, err
}

// await blocks until the want is finished, ctx ends, or the read deadline passes. While it waits, await calls hedge at
// intervals of the duration patience. hedge may request the blob once more.
func (p *Pipeline) await(ctx context.Context, f *Pending, w prioritize.Want, patience time.Duration) error {
	deadline := time.NewTimer(p.health.deadline)
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
			_, err := p.health.Failure()
			if !IsUnreachable(err) {
				err = nil
			}
			err = p.health.DeadlineError(err)
			p.health.ReportFailure(err, p.RetryOf(w))
			return err
		case <-hedge.C:
			p.hedge(f, w)
			hedge.Reset(patience)
		}
	}
}

// hedge queues a want again if the want is part of an in-flight background batch, so that a foreground request fetches
// the blob sooner.
func (p *Pipeline) hedge(f *Pending, w prioritize.Want) {
	p.shared.mu.Lock()
	defer p.shared.mu.Unlock()
	if p.shared.closed || p.table.pending[w.ID] != f || f.inBatch == nil || !f.inBatch.background || f.inBatch.suspect {
		return
	}
	f.inBatch, f.hedged = nil, true
	p.table.queue.Push(w)
	p.shared.wake.Broadcast()
}

// Queue queues wants of a prefetch or readahead. It does not wait. A want that is pending already is not queued twice.
func (p *Pipeline) Queue(wants []prioritize.Want) {
	p.shared.mu.Lock()
	defer p.shared.mu.Unlock()
	for _, w := range wants {
		// A blob that a bulk request fetches needs no want: SendBulk returns it if it does not arrive.
		if p.refusals.refused(w.ID) != nil || p.table.bulk.covers(w.ID) {
			continue
		}
		if f := p.table.enqueue(w); f != nil {
			f.prefetch = true
		}
	}
	p.shared.wake.Broadcast()
}

// AwaitRoom waits until fewer than n wants are queued. It returns false if ctx has ended.
func (p *Pipeline) AwaitRoom(ctx context.Context, n int) bool {
	full := func() bool {
		p.shared.mu.Lock()
		defer p.shared.mu.Unlock()
		return p.table.queue.Len() >= n && !p.shared.closed
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

// Prefetching returns the number of pending wants that a prefetch or readahead has queued, plus the number of blobs of
// a bulk request that have not arrived.
func (p *Pipeline) Prefetching() (n int) {
	p.shared.mu.Lock()
	defer p.shared.mu.Unlock()
	for _, f := range p.table.pending {
		if f.prefetch {
			n++
		}
	}
	if p.table.bulk != nil {
		n += len(p.table.bulk.left)
	}
	return n
}

// Lost returns how many wants of a prefetch or readahead have failed since the pipeline was created.
func (p *Pipeline) Lost() int {
	p.shared.mu.Lock()
	defer p.shared.mu.Unlock()
	return p.table.lost
}

// IsPending reports whether the want for a blob is queued or in flight, or the answer to a bulk request will contain
// the blob.
func (p *Pipeline) IsPending(id object.ID) bool {
	p.shared.mu.Lock()
	defer p.shared.mu.Unlock()
	return p.table.pending[id] != nil || p.table.bulk.covers(id)
}

// IsInFlight reports whether the want for a blob is part of a batch, which is being sent or answered.
func (p *Pipeline) IsInFlight(id object.ID) bool {
	p.shared.mu.Lock()
	defer p.shared.mu.Unlock()
	f := p.table.pending[id]
	return f != nil && f.inBatch != nil || p.table.bulk.covers(id)
}

// Queued returns the numbers of queued wants. foreground counts the wants for which readers wait, and their neighbours;
// background counts all others.
func (p *Pipeline) Queued() (foreground, background int) {
	p.shared.mu.Lock()
	defer p.shared.mu.Unlock()
	for class, n := range p.table.queue.LenClass() {
		if class <= prioritize.Sibling {
			foreground += n
		} else {
			background += n
		}
	}
	return foreground, background
}

// RetryOf returns a function that callers pass to ReportFailure. The function queues w for a background request. If the
// contents are on this host already, it calls ReportSuccess and queues nothing.
func (p *Pipeline) RetryOf(w prioritize.Want) func() {
	w.Class = prioritize.Readahead
	return func() {
		if p.table.cached(w.ID) {
			p.health.ReportSuccess()
			return
		}
		p.Queue([]prioritize.Want{w})
	}
}
