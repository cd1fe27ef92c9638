package pipeline

import (
	"context"
	"sync/atomic"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/metrics"
	"github.com/artifactfs/artifactfs/prioritize"
)

// Pending is the state of one want, from the first call that needs the blob until the contents are on this host or the
// pipeline gives up. shared.mu protects all fields except done. err and data do not change after done is closed.
type Pending struct {
	done    chan struct{}
	err     error
	data    []byte // contents, if a reader waits for them and they are not larger than maxSharedSize
	waiters int    // number of readers that wait for the blob
	// prefetch is true if a prefetch or readahead needs the blob too. If so, the want stays queued when the last reader
	// stops waiting.
	prefetch bool
	inBatch  *Batch // batch that contains the want; nil while the want is queued or waits for a retry
	// true if a reader has waited too long for the answer to a background batch, so that the want is requested by its
	// id
	hedged   bool
	attempts int // number of batches that contained the want so far
}

// Done returns a channel that is closed when the contents are on this host or the pipeline has given up.
func (f *Pending) Done() <-chan struct{} { return f.done }

// Err returns nil if the contents are on this host, otherwise the reason why the pipeline has given up. It must not be
// called before the channel that Done returns is closed.
func (f *Pending) Err() error { return f.err }

// charge adds the costs of a finished want (the number of blobs in its batch, and its bytes) to the metrics of the
// file-system request to which ctx belongs. The caller holds shared.mu.
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
	probe      bool // true if the batch was sent to find out whether the remote answers again
	suspect    bool // true if one of the objects in this batch may be the cause of an invalid answer
	// urgent is the number of readers that wait for a blob of this batch. While it is not 0, the reading of the answer is
	// not paused.
	urgent atomic.Int32
}

// table contains the pending wants, at most one for each blob, and the queue of those wants that are not part of a
// batch. shared.mu protects the fields, and callers of the methods hold it.
type table struct {
	shared  *shared
	cached  func(id object.ID) bool // reports whether contents are on this host already
	queue   *prioritize.Queue
	pending map[object.ID]*Pending
	bulk    *bulk // nil if no bulk request is in flight
	lost    int   // number of wants of a prefetch or readahead that have failed
}

// enqueue returns the state of the want for a blob. It queues the want, unless a batch contains it or a bulk request
// fetches the blob. It returns nil if the pipeline is closed. The caller holds shared.mu.
func (t *table) enqueue(w prioritize.Want) *Pending {
	if t.shared.closed {
		return nil
	}
	f := t.pending[w.ID]
	if f == nil {
		f = &Pending{done: make(chan struct{})}
		t.pending[w.ID] = f
	}
	if f.inBatch == nil && !t.join(w, f) {
		t.queue.Push(w)
	}
	return f
}

// finish ends a want with the blob's contents or an error, and wakes the readers that wait for the blob. The caller
// holds shared.mu.
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

// take returns a batch of at most n of the most urgent wants in the queue. Wants that are less urgent than the class
// worst stay in the queue. take finishes wants whose contents are on this host already. It returns nil if no want has
// to be requested. The caller holds shared.mu.
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

// requeue queues wants again. It leaves out wants that are finished or part of a batch. The caller holds shared.mu.
func (t *table) requeue(wants []prioritize.Want) {
	for _, w := range wants {
		if f := t.pending[w.ID]; f != nil && f.inBatch == nil && !t.shared.closed {
			t.queue.Push(w)
		}
	}
	t.shared.wake.Broadcast()
}

// hold removes wants from the queue and marks them as part of a batch, so that the examiner requests them and no sender
// does. It returns the slice wants. The caller holds shared.mu.
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
