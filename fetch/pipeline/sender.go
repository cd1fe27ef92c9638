package pipeline

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/internal/backoff"
	"github.com/artifactfs/artifactfs/prioritize"
)

// A sender is a goroutine that sends one batch at a time. The foreground senders serve only readers, so that background
// requests never occupy all connections. The sizes of background batches grow from request to request: just after a
// mount, it is more important that the first contents arrive soon; later, a small number of requests is more important.
// The time for which a reader waits for a large background answer is limited (see HedgeAfter). The batches for a
// crawler, a process that reads the whole tree, are the largest.
const (
	ForegroundSenders = 3
	backgroundSenders = 2
	foregroundBatch   = 640 // enough for the wants of one readahead window together with the wants of other readers

	FirstPrefetchBatch = 400
	MaxPrefetchBatch   = 3200
	firstCrawlBatch    = 1000
	MaxCrawlBatch      = 8000

	// crawlTime is how long a call of StartCrawl has an effect.
	crawlTime = 5 * time.Second

	// A reader counts as active for the time activeTime after it has begun to wait. While a reader is active, at most one
	// prefetch batch is sent per prefetchInterval.
	activeTime       = 100 * time.Millisecond
	prefetchInterval = 2 * time.Second

	// gatherTime is how long a sender delays a foreground batch, so that wants which are queued at almost the same time
	// share a request.
	gatherTime = time.Millisecond
	// MaxPause is the maximum time for which the reading of a background answer is paused for the benefit of foreground
	// requests.
	MaxPause = 2 * time.Second
	// idleTime is the time since the last reader began to wait after which the pipeline counts as idle.
	idleTime = time.Second
	// maxAttempts is the number of failed requests for a want after which the pipeline gives the want up, if the remote is
	// reachable.
	maxAttempts = 4
)

// retryPauses are the pauses before the wants of a failed batch are requested again.
var retryPauses = backoff.Backoff{First: firstProbe, Longest: maxReaderProbe}

// runSender sends batches until the pipeline is closed. Every sender prefers foreground wants: the wants of readers,
// and their neighbours. Only background senders send the other wants.
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

// nextBatch waits until there are wants that the sender may send, and returns them as a batch. The parameter background
// is true if the sender is a background sender. nextBatch returns nil when the pipeline is closed.
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
			if p.health.unreachable { // nothing is sent now, because a request has failed while the mutex was released
				continue
			}
			if b := p.table.take(prioritize.Sibling, foregroundBatch); b != nil {
				return b
			}
		case ok && background && (best <= prioritize.Profile || p.pacer.mayPrefetch()):
			if b := p.takeBackground(best); b != nil {
				return b
			}
		default:
			p.shared.wake.Wait()
		}
	}
}

// takeBackground returns the next batch for a background sender, or nil if no want has to be requested. best is the
// most urgent class in the queue. The caller holds shared.mu.
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

// takeProbe returns a batch that contains the most urgent want and no others. The result of this batch shows whether
// the unreachable remote answers again. best is the most urgent class in the queue. ok is false if the queue is empty.
// The parameter background is true if the sender is a background sender. takeProbe returns nil if no probe may be sent
// now. The caller holds shared.mu.
func (p *Pipeline) takeProbe(best prioritize.Class, ok, background bool) *Batch {
	if !ok || !background && best > prioritize.Sibling {
		return nil
	}
	if may, _ := p.health.mayRequest(); !may {
		return nil
	}
	b := p.table.take(prioritize.Last, 1)
	if b == nil { // the contents are on this host already, so no request is sent as a probe
		p.health.probing = false
		p.health.wakeAll()
		return nil
	}
	b.probe, b.background = true, best > prioritize.Sibling
	return b
}

// sendBatch sends a batch and waits for its result. Afterwards each of its wants is finished, queued again, or passed
// to the examiner.
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
			continue // the want is finished, or belongs to another batch
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
			// the batch failed because of one object that the remote lacks, so this attempt does not count for the other wants
			f.attempts--
			p.table.queue.Push(w)
		case err == nil && f.attempts >= 2:
			lost := fmt.Errorf("fetch blob %s: %w: answer does not contain the blob", w.ID, ErrNotFound)
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
		time.AfterFunc(retryPauses.Pause(p.table.pending[retry[0].ID].attempts+1), func() {
			p.shared.mu.Lock()
			defer p.shared.mu.Unlock()
			p.table.requeue(retry)
		})
	}
	p.shared.wake.Broadcast()
	p.shared.mu.Unlock()
}

// givesUp reports whether the pipeline gives up a want after maxAttempts failures, the last of which was the error err.
// While the Store's remote is unreachable, the pipeline gives up no wants. While a session remote is unreachable, it
// gives up the want if no reader waits for the blob. The caller holds shared.mu.
func givesUp(f *Pending, err error) bool {
	var second SessionRemoteError
	if errors.As(err, &second) && IsUnreachable(second.Err) {
		return f.waiters == 0
	}
	return !IsUnreachable(err)
}

// IsFinal reports whether a repetition of the request would fail with err again: because the remote denies access, the
// repository does not exist, or the request was cancelled.
func IsFinal(err error) bool {
	return errors.Is(err, transport.ErrAuth) || errors.Is(err, transport.ErrForbidden) ||
		errors.Is(err, transport.ErrNotFound) ||
		errors.Is(err, context.Canceled)
}

// Arrived finishes the want for a blob that has arrived and was verified. The caller must have stored the contents
// where readers find them. data is nil if the contents are large.
func (p *Pipeline) Arrived(id object.ID, data []byte) {
	p.shared.mu.Lock()
	defer p.shared.mu.Unlock()
	p.health.succeeded()
	if p.table.bulk != nil {
		delete(p.table.bulk.left, id)
	}
	if f := p.table.pending[id]; f != nil {
		if f.inBatch == nil {
			p.table.queue.Drop(id) // another request has fetched the blob
		}
		p.table.finish(id, f, data, nil)
	}
	delete(p.refusals.byID, id)
}
