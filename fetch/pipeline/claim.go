package pipeline

import (
	"errors"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/prioritize"
	"github.com/artifactfs/artifactfs/transport"
)

// Claim returns batches of at most size wants for those of ids that are not in flight; the caller
// must send each and call Complete. others are the wants of in-flight requests.
func (p *Pipeline) Claim(ids []object.ID, size int) (mine []*Batch, others []*Pending) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var b *Batch
	for _, id := range ids {
		f := p.pending[id]
		// The in-flight request is now one that git waits for, so it is not paused in favor of
		// readers.
		if f != nil && f.inBatch != nil {
			f.inBatch.urgent.Add(1)
			others = append(others, f)
			continue
		}
		if r := p.refusedLocked(id); r != nil {
			others = append(others, &Pending{done: closedChannel, err: r})
			continue
		}
		if f == nil {
			f = &Pending{done: make(chan struct{})}
			p.pending[id] = f
		} else {
			p.queue.Drop(id)
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

// Release makes late wants available for another Claim.
func (p *Pipeline) Release(late []*Pending) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range late {
		if f.inBatch != nil && !f.inBatch.suspect { // a suspect is requested by the examiner alone
			f.inBatch = nil
		}
	}
}

// Complete ends a batch from Claim; err is the result of its request. Wants that did not arrive and
// that others want too are queued. After an invalid answer blobs are requested in parts; mixed is
// true if the batch may hold other objects too, which cannot be requested that way.
func (p *Pipeline) Complete(b *Batch, err error, mixed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var notOurs transport.NotOurRef
	invalid := isInvalidAnswer(err) && !errors.As(err, &notOurs)
	if err == nil {
		err = ErrNotFound
	}
	var suspects []prioritize.Want
	// The want may have been finished meanwhile, or claimed by another batch after Release.
	for _, w := range b.Wants {
		f := p.pending[w.ID]
		if f == nil || f.inBatch != b {
			continue
		}
		f.inBatch = nil
		switch {
		case p.closed:
			p.finish(w.ID, f, nil, ErrClosed)
		case invalid && !mixed:
			f.prefetch = true
			suspects = append(suspects, w)
		case invalid:
			p.finish(w.ID, f, nil, p.recordRefusal(w.ID, w.Path, err))
		case f.waiters > 0 || f.prefetch:
			p.queue.Push(w)
		default:
			p.finish(w.ID, f, nil, err)
		}
	}
	p.bisect(suspects, err)
	p.wake.Broadcast()
}

// closedChannel is the done channel of a want that is refused at once.
var closedChannel = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()
