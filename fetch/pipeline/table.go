package pipeline

import (
	"context"
	"sync/atomic"

	"github.com/artifactfs/artifactfs/internal/metrics"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/prioritize"
)

// Pending is the state of one want, from the first call that wants the blob until its contents are on this host or
// the pipeline gives up. shared.mu guards all fields except done. err and data do not change after done is closed.
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

// charge adds the cost of a finished want to the request that waited for it, which ctx belongs to. The caller holds
// shared.mu.
func (f *Pending) charge(ctx context.Context) {
	blobs := int64(1)
	if f.inBatch != nil {
		blobs = int64(len(f.inBatch.Wants))
	}
	metrics.Charge(ctx, metrics.Fetched, blobs, int64(len(f.data)))
}

// Batch is one in-flight request.
type Batch struct {
	Wants      []prioritize.Want
	background bool
	probe      bool         // sent to find out whether the remote answers again
	suspect    bool         // one of its objects may be the cause of an invalid answer
	urgent     atomic.Int32 // number of readers that wait for a part of the answer; unless it is 0, the answer is not paused
}

// table holds the pending wants, at most one for each blob, and the queue of those that no batch contains. shared.mu guards its
// fields, and the callers of its methods hold it.
type table struct {
	shared  *shared
	cached  func(id object.ID) bool // reports whether contents are on this host already
	queue   *prioritize.Queue
	pending map[object.ID]*Pending
	lost    int // number of blobs that a prefetch wanted and that could not be fetched
}

// enqueue returns the state of the want for a blob, and queues the want unless a batch contains it. It returns nil if
// the pipeline is closed. The caller holds shared.mu.
func (t *table) enqueue(w prioritize.Want) *Pending {
	if t.shared.closed {
		return nil
	}
	f := t.pending[w.ID]
	if f == nil {
		f = &Pending{done: make(chan struct{})}
		t.pending[w.ID] = f
	}
	if f.inBatch == nil {
		t.queue.Push(w)
	}
	return f
}

// finish ends a want with its contents or an error, and wakes the readers that wait for it. The caller holds shared.mu.
func (t *table) finish(id object.ID, f *Pending, data []byte, err error) {
	if f.waiters > 0 && len(data) <= maxSharedSize {
		f.data = data
	}
	f.err = err
	if err != nil && f.prefetch {
		t.lost++
	}
	delete(t.pending, id)
	close(f.done)
}

// take returns a batch of up to n of the most urgent wants, none less urgent than worst; nil if there are none.
// Wants whose contents are on this host are finished instead. The caller holds shared.mu.
func (t *table) take(worst prioritize.Class, n int) *Batch {
	b := &Batch{}
	for _, w := range t.queue.Take(worst, n) {
		f := t.pending[w.ID]
		if t.cached(w.ID) {
			t.finish(w.ID, f, nil, nil)
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

// requeue queues those of wants again that are still pending and not in a batch. The caller holds shared.mu.
func (t *table) requeue(wants []prioritize.Want) {
	for _, w := range wants {
		if f := t.pending[w.ID]; f != nil && f.inBatch == nil && !t.shared.closed {
			t.queue.Push(w)
		}
	}
	t.shared.wake.Broadcast()
}

// hold removes wants from the queue and marks them as part of a batch, so that no sender sends them. It
// returns wants. The caller holds shared.mu.
func (t *table) hold(wants []prioritize.Want) []prioritize.Want {
	held := &Batch{suspect: true, background: true}
	for _, w := range wants {
		if f := t.pending[w.ID]; f != nil {
			t.queue.Drop(w.ID)
			f.inBatch = held
		}
	}
	return wants
}
