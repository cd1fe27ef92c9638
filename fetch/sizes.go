package fetch

import (
	"context"
	"errors"
	"fmt"

	"github.com/artifactfs/artifactfs/fetch/treewalk"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/internal/metrics"
	"github.com/artifactfs/artifactfs/prioritize"
)

// sizeBatch is the maximum number of ids in one object-info request, the protocol request for the sizes of objects.
const sizeBatch = 10000

// sizeRequest is one in-flight request for the sizes of blobs. All readers that wait for the request get its result. If
// the request fails, none of these readers repeats the request.
type sizeRequest struct {
	// done is closed when the answer has been stored or the request has failed.
	done chan struct{}
	// first is the blob whose reader started the request.
	first object.ID
	err   error // error of the request; does not change after done is closed
}

// askSizes requests the size of the blob at path, together with the sizes of thousands of blobs that follow path in the
// tree. ok is false if the remote does not support object-info requests, or does not have the blob.
func (v *RawView) askSizes(ctx context.Context, id object.ID, path string) (size int64, ok bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, v.store.fetcher.pipe.Health().Deadline(), ErrDeadline)
	defer cancel()
	var caps transport.Capabilities
	err = v.store.fetcher.pipe.Health().Retry(ctx, nil, func() (err error) {
		caps, err = v.store.fetcher.remote.Capabilities(ctx)
		return err
	})
	if errors.Is(err, transport.ErrNoV2) || err == nil && !caps.ObjectInfo {
		return 0, false, nil
	}
	// The request in flight may have been started by another reader, for other files. In this case the loop waits for a
	// second request. It ends at the latest when a request that this reader has started is answered.
	for err == nil {
		var r *sizeRequest
		if r, err = v.sizeRequest(id, path); err != nil {
			break
		}
		select {
		case <-r.done:
			err = r.err
		// The mount was unmounted. The request continues, because readers of other mounts may use the answer.
		case <-v.gone:
			err = context.Canceled
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		if err != nil {
			break
		}
		if n, ok := v.store.storage.knownSize(id); ok {
			metrics.Charge(ctx, metrics.Sized, 0, 0)
			return n, true, nil
		}
		// this reader has started the request, and the answer does not contain the size, so the remote does not have
		// the blob
		if r.first == id {
			return 0, false, nil
		}
	}
	return 0, false, fmt.Errorf("read size of %s: %w", path, err)
}

// sizeRequest returns the request for sizes that is in flight. If no request is in flight, it starts a request for the
// blob at path and the blobs that follow in the tree. The request continues if the caller stops waiting.
func (v *RawView) sizeRequest(id object.ID, path string) (*sizeRequest, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.sizing != nil {
		return v.sizing, nil
	}
	r := &sizeRequest{done: make(chan struct{}), first: id}
	started := v.store.tasks.Start(func(ctx context.Context) {
		r.err = v.fetchSizes(ctx, id, path)
		v.mu.Lock()
		defer v.mu.Unlock()
		v.sizing = nil
		close(r.done)
	})
	if !started {
		return nil, ErrClosed
	}
	v.sizing = r
	return r, nil
}

// fetchSizes requests the sizes of blob id and of up to sizeBatch-1 blobs after path whose sizes are unknown, and
// stores the answers.
func (v *RawView) fetchSizes(ctx context.Context, id object.ID, path string) error {
	ids := []object.ID{id}
	// The walk stops at a tree that cannot be read. The sizes of the blobs that precede this tree are requested
	// nevertheless.
	v.store.trees.WalkFrom(ctx, v.Shown(), path, treewalk.Forward, func(f treewalk.File) bool {
		if _, known := v.store.storage.knownSize(f.ID); !known {
			ids = append(ids, f.ID)
		}
		return len(ids) < sizeBatch
	})
	p := v.store.fetcher.pipe
	again := p.RetryOf(prioritize.Want{ID: id, Path: path})
	var sizes []int64
	err := p.Health().Retry(ctx, again, func() (err error) {
		sizes, err = v.store.fetcher.remote.ObjectInfo(ctx, ids)
		return err
	})
	if err != nil {
		p.Health().ReportFailure(err, again)
		return err
	}
	for i, n := range sizes {
		// A negative size means that the remote does not have the blob.
		if n >= 0 {
			v.store.storage.sizes.Put(ids[i], n)
		}
	}
	return nil
}
