package pipeline

import (
	"context"
	"errors"
	"fmt"
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
	ctx, cancel := p.shared.context()
	defer cancel()
	for {
		b := p.nextBatch(background)
		if b == nil {
			return
		}
		if !b.background {
			p.pacer.foreground.Add(1)
		}
		p.sendBatch(ctx, b)
		if !b.background {
			p.pacer.foreground.Add(-1)
		}
	}
}

// nextBatch waits for wants that a sender may send, and returns them as a batch. background states whether it is a
// background sender. nextBatch returns nil when the pipeline is closed.
func (p *Pipeline) nextBatch(background bool) *Batch {
	p.shared.mu.Lock()
	defer p.shared.mu.Unlock()
	for {
		if p.shared.closed {
			return nil
		}
		best, ok := p.table.queue.Best()
		if p.health.unreachable {
			if b := p.takeProbe(best, ok, background); b != nil {
				return b
			}
			p.shared.wake.Wait()
			continue
		}
		switch {
		case ok && best <= prioritize.Sibling:
			p.shared.mu.Unlock()
			time.Sleep(gatherTime)
			p.shared.mu.Lock()
			if p.health.unreachable { // a request has failed during the sleep
				continue
			}
			if b := p.table.take(prioritize.Sibling, foregroundBatch); b != nil {
				return b
			}
		case ok && background && (best <= prioritize.Readahead || p.pacer.mayPrefetch()):
			if b := p.takeBackground(best); b != nil {
				return b
			}
		default:
			p.shared.wake.Wait()
		}
	}
}

// takeBackground returns the next batch for a background sender, or nil if there are no wants. best is the most
// urgent class in the queue. The caller holds shared.mu.
func (p *Pipeline) takeBackground(best prioritize.Class) *Batch {
	now := time.Now()
	size := p.pacer.batchSize(best, now)
	b := p.table.take(prioritize.Last, size)
	if b == nil {
		return nil
	}
	b.background = true
	p.pacer.noteBatch(best, len(b.Wants) == size, now)
	return b
}

// takeProbe returns a batch with only the most urgent want, whose result shows whether the remote answers again. It
// returns nil if no probe may be sent now. The caller holds shared.mu.
func (p *Pipeline) takeProbe(best prioritize.Class, ok, background bool) *Batch {
	if !ok || !background && best > prioritize.Sibling {
		return nil
	}
	if may, _ := p.health.mayRequest(); !may {
		return nil
	}
	b := p.table.take(prioritize.Last, 1)
	if b == nil { // the contents are on this host already
		p.health.probing = false
		p.health.wakeAll()
		return nil
	}
	b.probe, b.background = true, best > prioritize.Sibling
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
	p.shared.mu.Lock()
	switch {
	case err == nil && b.probe:
		p.health.succeeded()
	case err != nil:
		if !IsUnreachable(err) {
			p.health.answered()
		}
		if !invalid {
			p.health.failed(err, p.RetryOf(b.Wants[0]), b.probe)
		}
	}
	for _, w := range b.Wants {
		f := p.table.pending[w.ID]
		if f == nil || f.inBatch != b {
			continue // finished by Arrived
		}
		f.inBatch = nil
		switch {
		case isRefused && refused.ID == w.ID:
			p.table.finish(w.ID, f, nil, fmt.Errorf("fetch blob %s: %w", w.ID, ErrNotFound))
		case p.shared.closed:
			p.table.finish(w.ID, f, nil, ErrClosed)
		case f.waiters == 0 && !f.prefetch:
			p.table.finish(w.ID, f, nil, context.Canceled)
		case isRefused:
			f.attempts-- // one unknown id makes its whole batch fail, so this attempt does not count for the others
			p.table.queue.Push(w)
		case err == nil && f.attempts >= 2:
			lost := fmt.Errorf("fetch blob %s: %w: left out of the answer", w.ID, ErrNotFound)
			p.health.failed(lost, p.RetryOf(w), false)
			p.table.finish(w.ID, f, nil, lost)
		case invalid || isTruncated(err) && f.attempts >= maxAttempts && f.waiters == 0:
			suspects = append(suspects, w)
		case err != nil && (IsFinal(err) || f.attempts >= maxAttempts && givesUp(f, err)):
			p.table.finish(w.ID, f, nil, fmt.Errorf("fetch %d blobs: %w", len(b.Wants), err))
		default:
			retry = append(retry, w)
		}
	}
	p.examiner.bisect(suspects, err)
	if IsUnreachable(err) || err == nil {
		p.table.requeue(retry)
	} else if len(retry) > 0 {
		time.AfterFunc(min(firstProbe<<p.table.pending[retry[0].ID].attempts, maxReaderProbe), func() {
			p.shared.mu.Lock()
			defer p.shared.mu.Unlock()
			p.table.requeue(retry)
		})
	}
	p.shared.wake.Broadcast()
	p.shared.mu.Unlock()
}

// givesUp reports whether the pipeline gives a want up after maxAttempts, given the last error. It does not while the
// remote is unreachable. The caller holds shared.mu.
func givesUp(f *Pending, err error) bool {
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
	p.shared.mu.Lock()
	defer p.shared.mu.Unlock()
	p.health.succeeded()
	if f := p.table.pending[id]; f != nil {
		if f.inBatch == nil {
			p.table.queue.Drop(id) // another request has fetched the blob
		}
		p.table.finish(id, f, data, nil)
	}
	delete(p.refusals.byID, id)
}
