package pipeline

import (
	"errors"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/prioritize"
)

// Claim assigns blobs to the caller, which then sends the requests for them itself. It returns the blobs of ids that
// are not in flight as batches of at most size wants. The caller must send each batch and then call Complete. others
// are the states of the blobs that other requests are fetching or that are refused. The caller waits until the channels
// that their method Done returns are closed.
func (p *Pipeline) Claim(ids []object.ID, size int) (mine []*Batch, others []*Pending) {
	p.shared.mu.Lock()
	defer p.shared.mu.Unlock()
	var b *Batch
	for _, id := range ids {
		f := p.table.pending[id]
		if f == nil && p.table.bulk.covers(id) {
			f = p.table.enqueue(prioritize.Want{ID: id, Class: prioritize.Waiting})
		}
		// The caller, which acts for git, now waits for the answer to this in-flight request. Therefore the reading of the
		// answer must not be paused for the benefit of readers.
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

// Release allows another Claim of the blobs in the list late. It is called because the requests for these blobs take
// too long.
func (p *Pipeline) Release(late []*Pending) {
	p.shared.mu.Lock()
	defer p.shared.mu.Unlock()
	for _, f := range late {
		if f.inBatch != nil && !f.inBatch.suspect { // the blobs of a suspect batch stay with examiner.examine
			f.inBatch = nil
		}
	}
}

// Complete ends a batch that Claim returned; err is the result of the request for it. A blob that did not arrive is
// queued if a reader or a prefetch also needs the blob. After an invalid answer, the blobs are requested again in
// smaller parts. mixed is true if the batch may contain objects other than blobs. Such a batch cannot be requested in
// parts, so its objects are refused.
func (p *Pipeline) Complete(b *Batch, err error, mixed bool) {
	p.shared.mu.Lock()
	defer p.shared.mu.Unlock()
	var notOurs transport.NotOurRef
	invalid := isInvalidAnswer(err) && !errors.As(err, &notOurs)
	if err == nil {
		err = ErrNotFound
	}
	var suspects []prioritize.Want
	// A want of the batch may be finished already, or, after a call of Release, belong to another batch.
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

// closedChannel is a closed channel. It is used as the channel Pending.done of a want that is refused without a
// request.
var closedChannel = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()
