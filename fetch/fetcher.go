package fetch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch/intake"
	"github.com/artifactfs/artifactfs/fetch/pipeline"
	"github.com/artifactfs/artifactfs/fetch/readahead"
	"github.com/artifactfs/artifactfs/fetch/tasks"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/transport"
)

// fetcher sends requests to the remote, and stores the blobs of the answers where readers find them. The pipeline
// decides when each blob is requested, and calls sendBlobs for each batch. A fetcher needs no lock, because its
// counters are atomic and the pipeline has its own lock.
type fetcher struct {
	remote  *transport.Remote
	pipe    *pipeline.Pipeline
	storage *storage
	tasks   *tasks.Group
	log     *zap.Logger
	bulks   readahead.Bulks

	// blobsIn counts the blobs that have arrived. bytesIn counts their bytes after decompression.
	blobsIn, bytesIn atomic.Int64
}

// newFetcher returns a fetcher with a running pipeline, which the caller must close.
func newFetcher(cfg Config, s *storage, t *tasks.Group) *fetcher {
	f := &fetcher{remote: cfg.Remote, storage: s, tasks: t, log: cfg.Log}
	f.pipe = pipeline.New(pipeline.Config{
		Send: f.sendBlobs, Cached: s.cached, Probe: f.probe, Deadline: cfg.Deadline, Readers: cfg.Readers, Log: cfg.Log,
	})
	return f
}

// count adds one blob to the statistics, and records the size of the blob in the table of sizes. If the blob is large,
// content is nil, and count does not record the size.
func (f *fetcher) count(id object.ID, content []byte) {
	if content != nil {
		f.storage.sizes.Put(id, int64(len(content)))
		f.bytesIn.Add(int64(len(content)))
	}
	f.blobsIn.Add(1)
}

// request sends a request for a pack. As soon as an answer begins, request records that the remote is reachable, even
// if the pack turns out to be invalid.
func (f *fetcher) request(ctx context.Context, r transport.FetchRequest) (*transport.FetchResponse, error) {
	resp, err := f.remote.Fetch(ctx, r)
	if err == nil {
		f.pipe.Health().ReportAnswer()
	}
	return resp, err
}

// ingest stores the objects of a pack, and calls the function each for every object. An error is returned as a
// pipeline.AnswerError, because the remote had already begun to answer.
func (f *fetcher) ingest(ctx context.Context, pack io.Reader, each func(object.ID, object.Type, []byte)) error {
	options := f.storage.ingestOptions(f.storage.repo.Objects(), f.storage.objects.Format())
	if _, err := f.storage.objects.Ingest(ctx, pack, options, each); err != nil {
		f.remote.InvalidAnswer(err)
		return pipeline.AnswerError{Err: err}
	}
	return nil
}

// unpackBlobs verifies the blobs of a pack and stores each blob when it arrives. It calls the function arrived for each
// stored blob, in another goroutine, and returns the number of blobs.
func (f *fetcher) unpackBlobs(ctx context.Context, r io.Reader, arrived func(object.ID, []byte)) (int, error) {
	blobs := intake.New(func(objects []odb.Object) error { return f.publish(objects, arrived) })
	n, err := odb.Unpack(ctx, blobs.Reader(r), odb.UnpackOptions{
		Format: f.storage.objects.Format(), SpoolOver: spoolOver, MaxObjectSize: maxBlobSize, Spool: f.storage.blobs.Spool,
		Base: func(id object.ID) (io.ReaderAt, int64, func(), error) {
			// The remote may send a blob as a delta against another blob of the same pack, which has been moved to the cache,
			// and a tree as a delta against another tree, which is in a pack of the store.
			if err := blobs.Await(); err != nil {
				return nil, 0, nil, err
			}
			if c, ok := f.storage.blobs.Get(id); ok {
				return c, c.Size(), c.Release, nil
			}
			_, data, err := f.storage.objects.Get(id, object.MaxTreeSize)
			if err != nil {
				return nil, 0, nil, fmt.Errorf("read base %s of a delta: contents were evicted from the cache: %w", id, err)
			}
			return bytes.NewReader(data), int64(len(data)), func() {}, nil
		},
	}, func(o odb.Object) error {
		if o.Type == object.Blob {
			return blobs.Add(o)
		}
		o.Discard() // the object is no blob, and the request was for blobs only
		return nil
	})
	if err != nil {
		f.remote.InvalidAnswer(err)
	}
	if failure := blobs.Close(); !errors.Is(err, failure) {
		err = errors.Join(err, failure)
	}
	return n, err
}

// publish stores verified blobs where readers find them, and then calls the function arrived for each.
func (f *fetcher) publish(blobs []odb.Object, arrived func(object.ID, []byte)) error {
	kept, err := f.storage.keepAll(blobs)
	for _, o := range kept {
		f.storage.sizes.Put(o.ID, o.Size)
		f.blobsIn.Add(1)
		f.bytesIn.Add(o.Size)
		arrived(o.ID, o.Data)
	}
	return err
}

// probe requests the remote's HEAD in the background. The request is small, and its result shows whether an unreachable
// remote answers again.
func (f *fetcher) probe() {
	f.tasks.Start(func(ctx context.Context) {
		f.pipe.Health().Probe(ctx, func() error {
			_, err := f.remote.Refs(ctx, []string{"HEAD"})
			return err
		})
	})
}

// retry calls work, a function that sends requests to the remote, and repeats the call while the remote is unreachable,
// for at most Config.Deadline.
func (f *fetcher) retry(ctx context.Context, work func() error) error {
	return f.pipe.Health().Retry(ctx, nil, work)
}

// requestFailure returns the probable reason why an object was not fetched: the last failure of the remote. If the
// remote has not failed, it returns the refusal of an object, and if no object is refused, ErrNotFound.
func (f *fetcher) requestFailure() error {
	if _, err := f.pipe.Health().Failure(); err != nil {
		return err
	}
	if refused := f.pipe.Refusals().List(); len(refused) > 0 {
		return refused[0]
	}
	return ErrNotFound
}

// contentsFailure returns the reason why the contents of blob id were not fetched: the refusal of the blob, or, if the
// blob is not refused, the result of requestFailure.
func (f *fetcher) contentsFailure(id object.ID) error {
	if err := f.pipe.Refusals().Refused(id); err != nil {
		return err
	}
	return f.requestFailure()
}

// readerFunc is a function that implements io.Reader.
type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
