package pipeline

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/prioritize"
	"github.com/artifactfs/artifactfs/transport"
)

// A sender is a goroutine that sends one batch at a time, on a connection of its own. The foreground senders serve
// only readers, so that background requests never occupy all connections. Background batches grow from request to
// request: just after a mount the time to the first byte counts, later the number of requests, and hedges bound how
// long a reader waits for a large answer. Batches of a crawler, which reads everything, are the largest.
const (
	ForegroundSenders = 3
	backgroundSenders = 2
	foregroundBatch   = 640 // a readahead window and the wants of other readers

	FirstPrefetchBatch = 400
	MaxPrefetchBatch   = 3200
	firstCrawlBatch    = 1000
	MaxCrawlBatch      = 8000

	// crawlTime is how long StartCrawl has effect.
	crawlTime = 5 * time.Second

	// A reader counts as active for activeTime after it has begun to wait. While a reader is active, at most one
	// prefetch batch per prefetchInterval is sent.
	activeTime       = 100 * time.Millisecond
	prefetchInterval = 2 * time.Second

	// gatherTime is how long a foreground batch waits for more wants, so that wants that are queued at almost the
	// same time share a request.
	gatherTime = time.Millisecond
	// MaxPause is the maximum time for which the reading of a background answer is paused because of foreground
	// requests.
	MaxPause = 2 * time.Second
	// idleTime is the time after which the pipeline counts as idle if no reader has begun to wait.
	idleTime = time.Second
	// maxAttempts is the maximum number of times that a want is sent if requests for it fail.
	maxAttempts = 4
)

// runSender sends batches until the pipeline closes. Every sender sends foreground wants (those
// that readers wait for, and their neighbours) first. Only background senders send the rest.
func (p *Pipeline) runSender(background bool) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-p.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	for {
		b := p.nextBatch(background)
		if b == nil {
			return
		}
		if !b.background {
			p.foreground.Add(1)
		}
		p.sendBatch(ctx, b)
		if !b.background {
			p.foreground.Add(-1)
		}
	}
}

// nextBatch waits for wants that a sender may send, and returns them as a batch. background states whether it is a
// background sender. nextBatch returns nil when the pipeline is closed.
func (p *Pipeline) nextBatch(background bool) *Batch {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if p.closed {
			return nil
		}
		best, ok := p.queue.Best()
		if p.state.unreachable {
			if b := p.takeProbe(best, ok, background); b != nil {
				return b
			}
			p.wake.Wait()
			continue
		}
		switch {
		case ok && best <= prioritize.Sibling:
			p.mu.Unlock()
			time.Sleep(gatherTime)
			p.mu.Lock()
			if p.state.unreachable { // a request has failed during the sleep
				continue
			}
			if b := p.takeBatch(prioritize.Sibling, foregroundBatch); b != nil {
				return b
			}
		case ok && background && (best <= prioritize.Readahead || p.mayPrefetch()):
			if b := p.takeBackground(best); b != nil {
				return b
			}
		default:
			p.wake.Wait()
		}
	}
}

// Readers records when a reader of any store of the process last began to wait. All stores share the host's
// connection to the network, so prefetches of any store are delayed for readers of every store. Only the beginning of
// a wait counts: otherwise a reader that waits for a hanging remote would delay the prefetches of all other stores.
type Readers struct{ last atomic.Int64 } // nanoseconds since 1970

// active reports whether a reader of any store has begun to wait within activeTime.
func (r *Readers) active(now time.Time) bool {
	return now.Sub(time.Unix(0, r.last.Load())) < activeTime
}

// NoteReader records that a reader begins to wait, or is about to.
func (p *Pipeline) NoteReader() {
	now := time.Now().UnixNano()
	p.lastReader.Store(now)
	p.readers.last.Store(now)
}

// mayPrefetch reports whether a prefetch batch may be sent now. If not, it wakes the senders after activeTime, so
// that they check again. The caller holds mu.
func (p *Pipeline) mayPrefetch() bool {
	now := time.Now()
	active := p.foreground.Load() > 0 || p.readers.active(now)
	if !active || now.Sub(p.lastPrefetch) > prefetchInterval {
		return true
	}
	time.AfterFunc(activeTime, p.wake.Broadcast)
	return false
}

// takeBackground returns the next batch for a background sender, or nil if there are no wants. best is the most
// urgent class in the queue. The caller holds mu.
func (p *Pipeline) takeBackground(best prioritize.Class) *Batch {
	size, now := p.prefetchSize, time.Now()
	if best == prioritize.Readahead && now.Before(p.crawlingUntil) {
		size = p.crawlSize
		p.crawlSize = min(4*p.crawlSize, MaxCrawlBatch)
		p.crawlingUntil = now.Add(crawlTime)
	}
	b := p.takeBatch(prioritize.Last, size)
	if b == nil {
		return nil
	}
	b.background = true
	if best > prioritize.Readahead {
		p.lastPrefetch = now
		if len(b.Wants) == size {
			p.prefetchSize = min(2*size, MaxPrefetchBatch)
		}
	}
	return b
}

// takeProbe returns a batch with only the most urgent want, whose result shows whether the remote answers again. It
// returns nil if no probe may be sent now. The caller holds mu.
func (p *Pipeline) takeProbe(best prioritize.Class, ok, background bool) *Batch {
	if !ok || !background && best > prioritize.Sibling {
		return nil
	}
	if may, _ := p.mayRequest(); !may {
		return nil
	}
	b := p.takeBatch(prioritize.Last, 1)
	if b == nil { // the contents are on this host already
		p.state.probing = false
		p.wakeAll()
		return nil
	}
	b.probe, b.background = true, best > prioritize.Sibling
	return b
}

// takeBatch returns a batch of up to n of the most urgent wants, none less urgent than worst; nil if there are none.
// Wants whose contents are on this host are finished instead. The caller holds mu.
func (p *Pipeline) takeBatch(worst prioritize.Class, n int) *Batch {
	b := &Batch{}
	for _, w := range p.queue.Take(worst, n) {
		f := p.pending[w.ID]
		if p.cached(w.ID) {
			p.finish(w.ID, f, nil, nil)
			continue
		}
		b.Wants = append(b.Wants, w)
		f.inBatch = b
		f.attempts++
		if f.waiters > 0 {
			b.urgent.Add(1)
		}
	}
	if len(b.Wants) == 0 {
		return nil
	}
	return b
}

// sendBatch sends one batch. Afterwards each of its wants is finished or queued again.
func (p *Pipeline) sendBatch(ctx context.Context, b *Batch) {
	start, kind := time.Now(), 0
	if b.background {
		kind = 1
	}
	err := p.send(ctx, b, p.Arrived)
	p.requests[kind].Observe(time.Since(start))
	var refused transport.NotOurRef
	isRefused := errors.As(err, &refused)
	invalid := !isRefused && isInvalidAnswer(err)
	var retry, suspects []prioritize.Want
	p.mu.Lock()
	switch {
	case err == nil && b.probe:
		p.succeededLocked()
	case err != nil:
		if !IsUnreachable(err) {
			p.answeredLocked()
		}
		if !invalid {
			p.failedLocked(err, p.RetryOf(b.Wants[0]), b.probe)
		}
	}
	for _, w := range b.Wants {
		f := p.pending[w.ID]
		if f == nil || f.inBatch != b {
			continue // finished by Arrived
		}
		f.inBatch = nil
		switch {
		case isRefused && refused.ID == w.ID:
			p.finish(w.ID, f, nil, fmt.Errorf("fetch blob %s: %w", w.ID, ErrNotFound))
		case p.closed:
			p.finish(w.ID, f, nil, ErrClosed)
		case f.waiters == 0 && !f.prefetch:
			p.finish(w.ID, f, nil, context.Canceled)
		case isRefused:
			f.attempts-- // one unknown id makes its whole batch fail, so this attempt does not count for the others
			p.queue.Push(w)
		case err == nil && f.attempts >= 2:
			lost := fmt.Errorf("fetch blob %s: %w: left out of the answer", w.ID, ErrNotFound)
			p.failedLocked(lost, p.RetryOf(w), false)
			p.finish(w.ID, f, nil, lost)
		case invalid || isTruncated(err) && f.attempts >= maxAttempts && f.waiters == 0:
			suspects = append(suspects, w)
		case err != nil && (IsFinal(err) || f.attempts >= maxAttempts && p.givesUp(f, err)):
			p.finish(w.ID, f, nil, fmt.Errorf("fetch %d blobs: %w", len(b.Wants), err))
		default:
			retry = append(retry, w)
		}
	}
	p.bisect(suspects, err)
	if IsUnreachable(err) || err == nil {
		p.requeue(retry)
	} else if len(retry) > 0 {
		time.AfterFunc(min(firstProbe<<p.pending[retry[0].ID].attempts, maxReaderProbe), func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.requeue(retry)
		})
	}
	p.wake.Broadcast()
	p.mu.Unlock()
}

// requeue queues those of wants again that are still pending and not in a batch. The caller holds mu.
func (p *Pipeline) requeue(wants []prioritize.Want) {
	for _, w := range wants {
		if f := p.pending[w.ID]; f != nil && f.inBatch == nil && !p.closed {
			p.queue.Push(w)
		}
	}
	p.wake.Broadcast()
}

// givesUp reports whether the pipeline gives a want up after maxAttempts, given the last error. It does not while the
// remote is unreachable. The caller holds mu.
func (p *Pipeline) givesUp(f *Pending, err error) bool {
	var second SessionRemoteError
	if errors.As(err, &second) && IsUnreachable(second.Err) {
		return f.waiters == 0
	}
	return !IsUnreachable(err)
}

// IsFinal reports whether err is an answer that a repeated request would not change: no access, no
// such repository, or a cancelled request.
func IsFinal(err error) bool {
	return errors.Is(err, transport.ErrAuth) || errors.Is(err, transport.ErrForbidden) || errors.Is(err, transport.ErrNotFound) ||
		errors.Is(err, context.Canceled)
}

// Arrived finishes the want for a verified blob. The caller has stored its contents where later
// reads find them; data is nil if they are large.
func (p *Pipeline) Arrived(id object.ID, data []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.succeededLocked()
	if f := p.pending[id]; f != nil {
		if f.inBatch == nil {
			p.queue.Drop(id) // another request has fetched the blob
		}
		p.finish(id, f, data, nil)
	}
	delete(p.refusals.byID, id)
}

// Pause blocks while the reading of the answer to batch b must be paused: b is a background batch, foreground batches
// are in flight, and no reader waits for a part of b. It blocks for at most MaxPause. The error is that of ctx.
func (p *Pipeline) Pause(ctx context.Context, b *Batch) error {
	return WaitWhile(ctx, MaxPause, func() bool { return b.background && p.foreground.Load() > 0 && b.urgent.Load() == 0 })
}

// Busy reports whether foreground requests are in flight, a reader has begun to wait within idleTime, or a process
// reads the whole tree.
func (p *Pipeline) Busy() bool {
	if p.foreground.Load() > 0 || time.Since(time.Unix(0, p.lastReader.Load())) < idleTime {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Now().Before(p.crawlingUntil)
}

// WaitWhile blocks while cond returns true, but for at most limit. It returns the error of ctx.
func WaitWhile(ctx context.Context, limit time.Duration, cond func() bool) error {
	for start := time.Now(); cond() && time.Since(start) < limit; {
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
	}
	return ctx.Err()
}
