package fetch

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

// Lanes and batches. A lane is one request at a time on a connection of its own, so foreground lanes keep one
// connection warm for readers whatever the background does. Background batches grow: the first bytes of a large answer
// take the server its time, which counts just after a mount; later the number of requests counts, and hedges bound
// what a reader waits. A crawler, which wants everything, gets the largest.
const (
	foregroundLanes = 3
	backgroundLanes = 2
	foregroundBatch = 640 // a window and whoever else waits

	firstHydrationBatch = 400
	maxHydrationBatch   = 3200
	firstCrawlBatch     = 1000
	maxCrawlBatch       = 8000

	// crawlTime is how long after its last sign a crawler counts as on its way.
	crawlTime = 5 * time.Second

	// activeTime is how long after a reader began to wait it counts as active, also if it waits no more; while one is,
	// hydration sends no more than one batch each politeTime.
	activeTime = 100 * time.Millisecond
	politeTime = 2 * time.Second

	// linger is how long a waiting want holds the door for others: wants of one moment travel together.
	linger = time.Millisecond
	// maxPause bounds how long foreground wants may hold up one background answer.
	maxPause = 2 * time.Second
	// quietTime is how long nobody must have begun to wait before history, which nobody waits for, goes on.
	quietTime = time.Second
	// maxAttempts is how often a want is sent when answers break off or lack it.
	maxAttempts = 4
)

// lane takes and carries out batches until the pipeline closes. Every lane serves the foreground (what somebody
// waits for, and its neighbours) first; only background lanes take the rest.
func (p *pipeline) lane(background bool) {
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
		b := p.take(background)
		if b == nil {
			return
		}
		if !b.background {
			p.foreground.Add(1)
		}
		p.carryOut(ctx, b)
		if !b.background {
			p.foreground.Add(-1)
		}
	}
}

// take blocks until there is work for a lane of the kind; nil means closed.
func (p *pipeline) take(background bool) *batch {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if p.closed {
			return nil
		}
		best, ok := p.queue.Best()
		if p.state.away {
			if b := p.boardProbe(best, ok, background); b != nil {
				return b
			}
			p.wake.Wait()
			continue
		}
		switch {
		case ok && best <= prioritize.Sibling:
			p.mu.Unlock()
			time.Sleep(linger)
			p.mu.Lock()
			if p.state.away { // a request has failed meanwhile
				continue
			}
			if b := p.board(prioritize.Sibling, foregroundBatch); b != nil {
				return b
			}
		case ok && background && (best <= prioritize.Readahead || p.mayHydrate()):
			if b := p.boardBackground(best); b != nil {
				return b
			}
		default:
			p.wake.Wait()
		}
	}
}

// Readers are those of all stores of a process, who share its way to the network: what nobody waits for stays back for
// whoever waits, in whichever store. They count from when they begin to wait, and not for as long as they wait: those of a
// remote that hangs keep nobody else's hydration back.
type Readers struct{ last atomic.Int64 } // when somebody last began to wait, in nanoseconds since the epoch

func (r *Readers) active(now time.Time) bool {
	return now.Sub(time.Unix(0, r.last.Load())) < activeTime
}

// readerWaits notes that somebody begins to wait.
func (p *pipeline) readerWaits() {
	now := time.Now().UnixNano()
	p.lastWait.Store(now)
	p.readers.last.Store(now)
}

// mayHydrate says whether what nobody waits for may be sent now; if not, it sees to it that lanes look again. It
// needs mu.
func (p *pipeline) mayHydrate() bool {
	now := time.Now()
	active := p.foreground.Load() > 0 || p.readers.active(now)
	if !active || now.Sub(p.hydrated) > politeTime {
		return true
	}
	time.AfterFunc(activeTime, p.wake.Broadcast)
	return false
}

// boardBackground makes a batch for a background lane; it needs mu.
func (p *pipeline) boardBackground(best prioritize.Class) *batch {
	size, now := p.hydration, time.Now()
	if best == prioritize.Readahead && now.Before(p.crawling) {
		size = p.crawl
		p.crawl = min(4*p.crawl, maxCrawlBatch)
		p.crawling = now.Add(crawlTime)
	}
	b := p.board(prioritize.Last, size)
	if b == nil {
		return nil
	}
	b.background = true
	if best > prioritize.Readahead {
		p.hydrated = now
		if len(b.wants) == size {
			p.hydration = min(2*size, maxHydrationBatch)
		}
	}
	return b
}

// boardProbe makes a batch of the most urgent want, to see whether the remote is back, if it is time for that. It needs mu.
func (p *pipeline) boardProbe(best prioritize.Class, ok, background bool) *batch {
	if !ok || !background && best > prioritize.Sibling {
		return nil
	}
	if may, _ := p.mayAsk(); !may {
		return nil
	}
	b := p.board(prioritize.Last, 1)
	if b == nil { // it has come by another way
		p.state.probing = false
		p.lookAgain()
		return nil
	}
	b.probe, b.background = true, best > prioritize.Sibling
	return b
}

// board makes a batch of the most urgent wants up to class worst; nil if there are none. It needs mu.
func (p *pipeline) board(worst prioritize.Class, n int) *batch {
	b := &batch{}
	for _, w := range p.queue.Take(worst, n) {
		f := p.flights[w.ID]
		if p.here(w.ID) {
			p.land(w.ID, f, nil, nil)
			continue
		}
		b.wants = append(b.wants, w)
		f.batch = b
		f.attempts++
		if f.waiters > 0 {
			b.urgent.Add(1)
		}
	}
	if len(b.wants) == 0 {
		return nil
	}
	return b
}

// carryOut sends one batch and settles each of its flights: landed, queued again, or given up.
func (p *pipeline) carryOut(ctx context.Context, b *batch) {
	start, kind := time.Now(), 0
	if b.background {
		kind = 1
	}
	err := p.send(ctx, b, p.arrived)
	p.requests[kind].Observe(time.Since(start))
	var refused transport.NotOurRef
	isRefused := errors.As(err, &refused)
	spoilt := !isRefused && unusable(err)
	var retry, suspects []prioritize.Want
	p.mu.Lock()
	switch {
	case err == nil && b.probe:
		p.succeededLocked()
	case err != nil:
		if !Away(err) {
			p.answeredLocked()
		}
		if !spoilt {
			p.failedLocked(err, p.askAgain(b.wants[0]), b.probe)
		}
	}
	for _, w := range b.wants {
		f := p.flights[w.ID]
		if f == nil || f.batch != b {
			continue // arrived
		}
		f.batch = nil
		switch {
		case isRefused && refused.ID == w.ID:
			p.land(w.ID, f, nil, fmt.Errorf("fetch blob %s: %w", w.ID, ErrNotFound))
		case p.closed:
			p.land(w.ID, f, nil, ErrClosed)
		case f.waiters == 0 && !f.keep:
			p.land(w.ID, f, nil, context.Canceled)
		case isRefused:
			f.attempts-- // one bad id fails its whole batch; the others did nothing wrong
			p.queue.Push(w)
		case err == nil && f.attempts >= 2:
			lost := fmt.Errorf("fetch blob %s: %w: left out of the answer", w.ID, ErrNotFound)
			p.failedLocked(lost, p.askAgain(w), false)
			p.land(w.ID, f, nil, lost)
		case spoilt || cutOff(err) && f.attempts >= maxAttempts && f.waiters == 0:
			suspects = append(suspects, w)
		case err != nil && (final(err) || f.attempts >= maxAttempts && p.givesUp(f, err)):
			p.land(w.ID, f, nil, fmt.Errorf("fetch %d blobs: %w", len(b.wants), err))
		default:
			retry = append(retry, w)
		}
	}
	p.suspect(suspects, err)
	if Away(err) || err == nil {
		p.requeue(retry)
	} else if len(retry) > 0 {
		time.AfterFunc(min(firstPause<<p.flights[retry[0].ID].attempts, readerPause), func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.requeue(retry)
		})
	}
	p.wake.Broadcast()
	p.mu.Unlock()
}

// requeue queues wants again that are still wanted. It needs mu.
func (p *pipeline) requeue(wants []prioritize.Want) {
	for _, w := range wants {
		if f := p.flights[w.ID]; f != nil && f.batch == nil && !p.closed {
			p.queue.Push(w)
		}
	}
	p.wake.Broadcast()
}

// givesUp says whether a want is not sent again after maxAttempts: waiting does not help, or no reader does. It needs mu.
func (p *pipeline) givesUp(f *flight, err error) bool {
	var second secondError
	if errors.As(err, &second) && Away(second.error) {
		return f.waiters == 0
	}
	return !Away(err)
}

// final says whether asking again is pointless: the remote has answered, and the answer was no.
func final(err error) bool {
	return errors.Is(err, transport.ErrAuth) || errors.Is(err, transport.ErrForbidden) || errors.Is(err, transport.ErrNotFound) ||
		errors.Is(err, context.Canceled)
}

// arrived lands the flight of a verified blob whose content is already where later reads find it.
func (p *pipeline) arrived(id object.ID, data []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.succeededLocked()
	if f := p.flights[id]; f != nil {
		if f.batch == nil {
			p.queue.Drop(id) // it came with a batch that did not ask for it, or came twice
		}
		p.land(id, f, data, nil)
	}
	delete(p.refusals.of, id)
}

// pause holds a background answer while the foreground is busy, unless somebody waits for part of it.
func (p *pipeline) pause(ctx context.Context, b *batch) error {
	return holdWhile(ctx, maxPause, func() bool { return b.background && p.foreground.Load() > 0 && b.urgent.Load() == 0 })
}

// busy says whether readers wait, have just waited, or one is on its way through the whole tree.
func (p *pipeline) busy() bool {
	if p.foreground.Load() > 0 || time.Since(time.Unix(0, p.lastWait.Load())) < quietTime {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Now().Before(p.crawling)
}

// holdWhile blocks while cond holds, at most for limit.
func holdWhile(ctx context.Context, limit time.Duration, cond func() bool) error {
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
