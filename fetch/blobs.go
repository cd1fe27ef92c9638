package fetch

import (
	"context"
	"fmt"
	"io"

	"github.com/artifactfs/artifactfs/fetch/pipeline"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
	"github.com/artifactfs/artifactfs/transport"
)

// request sends a request for a pack. An answer shows that the remote is reachable, whether or not
// the answer is valid.
func (s *Store) request(ctx context.Context, r transport.FetchRequest) (*transport.FetchResponse, error) {
	resp, err := s.remote.Fetch(ctx, r)
	if err == nil {
		s.blobPipe.ReportAnswer()
	}
	return resp, err
}

// ingest stores the objects of a pack. An error is returned as an AnswerError, because the answer has begun.
func (s *Store) ingest(ctx context.Context, pack io.Reader, each func(object.ID, object.Type, []byte)) error {
	if _, err := s.objects.Ingest(ctx, pack, s.ingestOptions(), each); err != nil {
		return pipeline.AnswerError{Err: err}
	}
	return nil
}

// unpackBlobs verifies and stores the blobs of a pack as they arrive.
func (s *Store) unpackBlobs(ctx context.Context, r io.Reader, arrived func(object.ID, []byte)) (int, error) {
	return odb.Unpack(ctx, r, odb.UnpackOptions{
		Format: s.objects.Format(), SpoolOver: spoolOver, MaxObjectSize: maxBlobSize, Spool: s.blobs.Spool,
		Base: func(id object.ID) (io.ReaderAt, int64, func(), error) {
			// A delta may refer to a blob that arrived earlier and is in the cache.
			c, ok := s.blobs.Get(id)
			if !ok {
				return nil, 0, nil, fmt.Errorf("read delta base %s: evicted", id)
			}
			return c, c.Size(), c.Release, nil
		},
	}, func(o odb.Object) error { return s.publish(o, arrived) })
}

// publish stores one verified blob where reads find it, and then reports the blob to arrived. It drops objects that are not
// blobs, because they were not requested.
func (s *Store) publish(o odb.Object, arrived func(object.ID, []byte)) error {
	if o.Type != object.Blob {
		if o.File != nil {
			o.File.Close()
		}
		return nil
	}
	if err := s.keep(o); err != nil {
		return err
	}
	s.sizes.Put(o.ID, o.Size)
	s.blobsIn.Add(1)
	s.bytesIn.Add(o.Size)
	arrived(o.ID, o.Data)
	return nil
}

// keep stores contents in the cache. If the disk is full it keeps small contents in memory, so that
// readers continue.
func (s *Store) keep(o odb.Object) error {
	if o.File != nil {
		if err := s.blobs.PutFile(o.ID, o.File, o.Size); err != nil {
			return fmt.Errorf("keep blob %s: %w", o.ID, err)
		}
		return nil
	}
	// The disk may be full or read-only: contents in memory still serve the readers that wait.
	if err := s.blobs.Put(o.ID, o.Data); err != nil {
		s.memory.PutContent(o.ID, o.Data)
		s.notice(fmt.Sprintf("contents cannot be written to disk: %v", err))
	}
	return nil
}

// readerFunc is an io.Reader made of its Read method.
type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
