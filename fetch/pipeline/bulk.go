package pipeline

import (
	"context"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/prioritize"
)

// bulk is the request in flight that names a commit or trees, and whose answer contains many blobs. A want of one of
// these blobs joins the batch and is not requested by its id. shared.mu protects the fields.
type bulk struct {
	batch *Batch
	left  map[object.ID]struct{} // blobs that have not arrived yet
}

// covers reports whether the answer to the bulk request will probably contain a blob. b may be nil. The caller holds
// shared.mu.
func (b *bulk) covers(id object.ID) bool {
	if b == nil {
		return false
	}
	_, ok := b.left[id]
	return ok
}

// join makes a want that is not queued a part of the bulk request, if the answer will probably contain the blob, no
// other batch contains the want, and no reader has waited too long for it. The caller holds shared.mu.
func (t *table) join(w prioritize.Want, f *Pending) bool {
	if f.inBatch != nil || f.hedged || !t.bulk.covers(w.ID) {
		return false
	}
	f.inBatch = t.bulk.batch
	f.inBatch.Wants = append(f.inBatch.Wants, w)
	return true
}

// SendBulk calls send, which requests blobs together by an object that contains them, and waits for the end of the
// request. ids are the blobs that the answer will contain. Until then the pipeline does not request these blobs by
// their ids, except those for which a reader has waited too long. Then wants whose blobs have not arrived are queued
// again. SendBulk returns the blobs that have not arrived, and the error of send. If another bulk request is in flight,
// SendBulk first waits for its end.
func (p *Pipeline) SendBulk(ctx context.Context, ids map[object.ID]struct{},
	send func(ctx context.Context, b *Batch, arrived func(object.ID, []byte)) error,
) (left map[object.ID]struct{}, err error) {
	select {
	case p.bulkToken <- struct{}{}:
		defer func() { <-p.bulkToken }()
	case <-ctx.Done():
		return ids, ctx.Err()
	}
	b := &bulk{batch: &Batch{background: true}, left: ids}
	p.shared.mu.Lock()
	for id := range ids {
		if p.table.cached(id) {
			delete(ids, id) // another bulk request has fetched the blob already
		}
	}
	if p.shared.closed || len(ids) == 0 {
		p.shared.mu.Unlock()
		return ids, nil
	}
	p.table.bulk = b
	for _, w := range p.table.queue.Take(prioritize.Last, p.table.queue.Len()) {
		if f := p.table.pending[w.ID]; f.waiters > 0 || !p.table.join(w, f) {
			p.table.queue.Push(w)
		}
	}
	p.shared.mu.Unlock()

	start := time.Now()
	err = send(ctx, b.batch, p.Arrived)
	p.requests[1].Observe(time.Since(start))
	// the process that caused the bulk request reads the blobs now, so the fetch of history must still wait
	p.StartCrawl()
	p.shared.mu.Lock()
	defer p.shared.mu.Unlock()
	p.table.bulk = nil
	for _, w := range b.batch.Wants {
		f := p.table.pending[w.ID]
		if f == nil || f.inBatch != b.batch {
			continue // the want is finished, or was queued again by hedge
		}
		f.inBatch = nil
		switch {
		case p.shared.closed:
			p.table.finish(w.ID, f, nil, ErrClosed)
		case f.waiters == 0 && !f.prefetch:
			p.table.finish(w.ID, f, nil, context.Canceled)
		default:
			p.table.queue.Push(w)
		}
	}
	p.shared.wake.Broadcast()
	return b.left, err
}
