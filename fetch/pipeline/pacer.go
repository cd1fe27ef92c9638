package pipeline

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/artifactfs/artifactfs/prioritize"
)

// pacer determines the size of background batches, and delays these batches while readers wait. shared.mu protects the
// fields below readers; the other fields are used without a lock.
type pacer struct {
	shared     *shared
	foreground atomic.Int32 // number of in-flight foreground batches
	lastReader atomic.Int64 // time when a reader last began to wait, in nanoseconds since 1970
	readers    *Readers     // readers of all stores of the process

	crawlingUntil time.Time // time until which readahead batches have the size crawlSize
	crawlSize     int       // size, in wants, of the next batch for a process that reads the whole tree
	profileSize   int       // size, in wants, of the next batch of a read profile
	prefetchSize  int       // size, in wants, of the next prefetch batch
	lastPrefetch  time.Time // time at which the last prefetch batch was sent
}

// Readers records when a reader of any store of the process last began to wait. All stores share the network connection
// of this host, so prefetches of each store are delayed for the readers of all stores. Readers records when a wait
// begins, not how long it lasts, because a reader that waits for a hanging remote must not delay the prefetches of all
// other stores.
type Readers struct{ last atomic.Int64 } // time in nanoseconds since 1970

// active reports whether a reader of any store has begun to wait within the time activeTime before now.
func (r *Readers) active(now time.Time) bool {
	return now.Sub(time.Unix(0, r.last.Load())) < activeTime
}

// beginForeground counts a foreground request that the caller sends, until the caller calls the returned function end.
func (c *pacer) beginForeground() (end func()) {
	c.foreground.Add(1)
	return func() { c.foreground.Add(-1) }
}

// startCrawl makes readahead batches large for the time crawlTime. It is called when a process reads the whole tree.
func (c *pacer) startCrawl() {
	c.shared.mu.Lock()
	defer c.shared.mu.Unlock()
	now := time.Now()
	if now.After(c.crawlingUntil) {
		c.crawlSize = firstCrawlBatch
	}
	c.crawlingUntil = now.Add(crawlTime)
}

// noteReader records that a reader begins to wait now, or probably will at once.
func (c *pacer) noteReader() {
	now := time.Now().UnixNano()
	c.lastReader.Store(now)
	c.readers.last.Store(now)
}

// mayPrefetch reports whether a prefetch batch may be sent now. If mayPrefetch returns false, it wakes the senders
// after the time activeTime, so that they check again. The caller holds shared.mu.
func (c *pacer) mayPrefetch() bool {
	now := time.Now()
	active := c.foreground.Load() > 0 || c.readers.active(now)
	if !active || now.Sub(c.lastPrefetch) > prefetchInterval {
		return true
	}
	time.AfterFunc(activeTime, c.shared.wake.Broadcast)
	return false
}

// pause blocks while the answer to batch b must not be read, but for at most MaxPause. The answer must not be read
// while b is a background batch, foreground batches are in flight, and no reader waits for a blob of b. pause returns
// the error of ctx if ctx ends.
func (c *pacer) pause(ctx context.Context, b *Batch) error {
	return WaitWhile(ctx, MaxPause, func() bool { return b.background && c.foreground.Load() > 0 && b.urgent.Load() == 0 })
}

// busy reports whether foreground requests are in flight, a reader has begun to wait within the last idleTime, or a
// process reads the whole tree.
func (c *pacer) busy() bool {
	if c.foreground.Load() > 0 || time.Since(time.Unix(0, c.lastReader.Load())) < idleTime {
		return true
	}
	c.shared.mu.Lock()
	defer c.shared.mu.Unlock()
	return time.Now().Before(c.crawlingUntil)
}

// batchSize returns the maximum size, in wants, of the next background batch. best is the most urgent class in the
// queue. The caller holds shared.mu.
func (c *pacer) batchSize(best prioritize.Class, now time.Time) int {
	if best == prioritize.Readahead && now.Before(c.crawlingUntil) {
		size := c.crawlSize
		c.crawlSize = min(4*c.crawlSize, MaxCrawlBatch)
		c.crawlingUntil = now.Add(crawlTime)
		return size
	}
	if best <= prioritize.Profile {
		return max(c.profileSize, c.prefetchSize)
	}
	return c.prefetchSize
}

// noteBatch records that a background batch was taken from the queue at the time now. best is the class that was passed
// to batchSize. full is true if the batch has the size that batchSize returned. After a full prefetch batch, the next
// prefetch batch may be twice as large. The batches of a read profile grow faster: the first one is small, so that the
// first contents arrive soon, and the later ones are large, because all files of a profile will probably be read, in
// this order. The caller holds shared.mu.
func (c *pacer) noteBatch(best prioritize.Class, full bool, now time.Time) {
	switch {
	case best <= prioritize.Readahead:
		return
	case best == prioritize.Profile:
		if c.profileSize = min(4*max(c.profileSize, c.prefetchSize), MaxCrawlBatch); !full {
			c.profileSize = 0 // the profile has ended, so the first batch of the next profile is small again
		}
		return
	}
	c.lastPrefetch = now
	if full {
		c.prefetchSize = min(2*c.prefetchSize, MaxPrefetchBatch)
	}
}

// WaitWhile blocks while the function cond returns true, but for at most the duration limit. If ctx has ended,
// WaitWhile returns the error of ctx, otherwise nil.
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
