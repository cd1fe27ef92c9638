package pipeline

import (
	"errors"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/prioritize"
	"github.com/artifactfs/artifactfs/transport"
)

// Claim lets the caller send requests for blobs itself. It returns batches of at most size wants for those of ids
// that are not in flight; the caller must send each batch and call Complete. others are the blobs that other requests
// fetch, or that are refused; the caller waits for them.
func (p *Pipeline) Claim(ids []object.ID, size int) (mine []*Batch, others []*Pending) {
	p.shared.mu.Lock()
	defer p.shared.mu.Unlock()
	var b *Batch
	for _, id := range ids {
		f := p.table.pending[id]
		// git waits for this in-flight request now, so its answer must not be paused in favor of readers.
		if f != nil && f.inBatch != nil {
			f.inBatch.urgent.Add(1)
			others = append(others, f)
			continue
		}
		if r := p.refusals.refused(id); r != nil {
			others = append(others, &Pending{done: closedChannel, err: r})
			continue
		}
		if f == nil {
			f = &Pending{done: make(chan struct{})}
			p.table.pending[id] = f
		} else {
			p.table.queue.Drop(id)
		}
		if b == nil || len(b.Wants) == size {
			b = &Batch{}
			mine = append(mine, b)
		}
		f.inBatch = b
		b.Wants = append(b.Wants, prioritize.Want{ID: id, Class: prioritize.Waiting})
	}
	return mine, others
}

// Release makes the wants in late available for another Claim, because the requests that contain them take too long.
func (p *Pipeline) Release(late []*Pending) {
	p.shared.mu.Lock()
	defer p.shared.mu.Unlock()
	for _, f := range late {
		if f.inBatch != nil && !f.inBatch.suspect { // only examine requests suspects
			f.inBatch = nil
		}
	}
}

// Complete ends a batch that Claim returned; err is the result of its request. Wants that did not arrive are queued
// if a reader or prefetch needs them too. After an invalid answer, the blobs are requested again in smaller parts.
// mixed is true if the batch may contain objects other than blobs, which cannot be requested in parts and are
// refused.
func (p *Pipeline) Complete(b *Batch, err error, mixed bool) {
	p.shared.mu.Lock()
	defer p.shared.mu.Unlock()
	var notOurs transport.NotOurRef
	invalid := isInvalidAnswer(err) && !errors.As(err, &notOurs)
	if err == nil {
		err = ErrNotFound
	}
	var suspects []prioritize.Want
	// The want may be finished already, or after Release belong to another batch.
	for _, w := range b.Wants {
		f := p.table.pending[w.ID]
		if f == nil || f.inBatch != b {
			continue
		}
		f.inBatch = nil
		switch {
		case p.shared.closed:
			p.table.finish(w.ID, f, nil, ErrClosed)
		case invalid && !mixed:
			f.prefetch = true
			suspects = append(suspects, w)
		case invalid:
			p.table.finish(w.ID, f, nil, p.refusals.record(w.ID, w.Path, err))
		case f.waiters > 0 || f.prefetch:
			p.table.queue.Push(w)
		default:
			p.table.finish(w.ID, f, nil, err)
		}
	}
	p.examiner.bisect(suspects, err)
	p.shared.wake.Broadcast()
}

// closedChannel is the done channel of a want that is refused at once.
var closedChannel = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()
