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

// A sender is a goroutine that sends one batch at a time, on a connection of its own. The
// foreground senders keep one connection warm for readers, whatever the background does. Background
// batches grow from request to request: just after a mount the time to the first byte counts, later
// the number of requests, and hedges bound how long a reader waits for a large answer. Batches of a
// crawler, which reads everything, are the largest.
const (
	ForegroundSenders = 3
	backgroundSenders = 2
	foregroundBatch   = 640 // a readahead window, and whatever other readers wait for

	FirstPrefetchBatch = 400
	MaxPrefetchBatch   = 3200
	firstCrawlBatch    = 1000
	MaxCrawlBatch      = 8000

	// crawlTime is how long StartCrawl has effect.
	crawlTime = 5 * time.Second

	// A reader counts as active for activeTime after it began to wait. While one is active, a
	// prefetch batch is sent at most every prefetchInterval.
	activeTime       = 100 * time.Millisecond
	prefetchInterval = 2 * time.Second

	// gatherTime is how long a foreground batch waits for more wants: those of one moment share a
	// request.
	gatherTime = time.Millisecond
	// MaxPause bounds how long foreground requests may hold up one background answer.
	MaxPause = 2 * time.Second
	// idleTime is how long no reader must have begun to wait before the pipeline counts as idle.
	idleTime = time.Second
	// maxAttempts is how often a want is sent when answers are truncated or leave it out.
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

// nextBatch blocks until there is work for a sender of the kind. It returns nil when the pipeline
// is closed.
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

// Readers records when a reader of any store of the process last began to wait. The stores share
// the host's connection to the network, so prefetches of each hold back for readers of all. The end
// of a wait does not count: a reader of a remote that hangs would hold back the prefetches of all
// others.
type Readers struct{ last atomic.Int64 } // nanoseconds since the epoch

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

// mayPrefetch reports whether a prefetch batch may be sent now. If not, it schedules another look
// by the senders. It needs mu.
func (p *Pipeline) mayPrefetch() bool {
	now := time.Now()
	active := p.foreground.Load() > 0 || p.readers.active(now)
	if !active || now.Sub(p.lastPrefetch) > prefetchInterval {
		return true
	}
	time.AfterFunc(activeTime, p.wake.Broadcast)
	return false
}

// takeBackground returns the next batch for a background sender, or nil. It needs mu.
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

// takeProbe returns a batch of the most urgent want alone, which shows whether the remote answers
// again. It returns nil if it is too early for that. It needs mu.
func (p *Pipeline) takeProbe(best prioritize.Class, ok, background bool) *Batch {
	if !ok || !background && best > prioritize.Sibling {
		return nil
	}
	if may, _ := p.mayRequest(); !may {
		return nil
	}
	b := p.takeBatch(prioritize.Last, 1)
	if b == nil { // the contents arrived by another way
		p.state.probing = false
		p.wakeAll()
		return nil
	}
	b.probe, b.background = true, best > prioritize.Sibling
	return b
}

// takeBatch returns a batch of up to n of the most urgent wants, none less urgent than worst; nil
// if there are none. It needs mu.
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
			f.attempts-- // one unknown id fails its whole batch: the attempt does not count for the others
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

// requeue queues wants again, as far as they are still pending. It needs mu.
func (p *Pipeline) requeue(wants []prioritize.Want) {
	for _, w := range wants {
		if f := p.pending[w.ID]; f != nil && f.inBatch == nil && !p.closed {
			p.queue.Push(w)
		}
	}
	p.wake.Broadcast()
}

// givesUp reports whether a want is not sent again after maxAttempts. It needs mu.
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
			p.queue.Drop(id) // it was in a batch that did not want it, or was sent twice
		}
		p.finish(id, f, data, nil)
	}
	delete(p.refusals.byID, id)
}

// Pause blocks the reading of a background answer while foreground batches are in flight, for
// MaxPause at most, unless a reader waits for a part of it.
func (p *Pipeline) Pause(ctx context.Context, b *Batch) error {
	return WaitWhile(ctx, MaxPause, func() bool { return b.background && p.foreground.Load() > 0 && b.urgent.Load() == 0 })
}

// Busy reports whether readers wait, have waited within idleTime, or one reads the whole tree.
func (p *Pipeline) Busy() bool {
	if p.foreground.Load() > 0 || time.Since(time.Unix(0, p.lastReader.Load())) < idleTime {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Now().Before(p.crawlingUntil)
}

// WaitWhile blocks while cond returns true, for limit at most. It returns the error of ctx.
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
