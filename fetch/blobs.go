package fetch

import (
	"context"
	"fmt"
	"io"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
	"github.com/artifactfs/artifactfs/transport"
)

// sendBlobs asks the remote for the blobs of one batch and publishes each as it arrives.
func (s *Store) sendBlobs(ctx context.Context, b *batch, arrived func(object.ID, []byte)) error {
	start := time.Now()
	wants := s.withoutLocal(b.wants, arrived)
	if len(wants) == 0 {
		return nil
	}
	n, err := s.fetchBlobs(ctx, b, wants, arrived)
	s.log.Debug("fetch blobs", zap.Stringer("class", b.wants[0].Class), zap.Int("wants", len(wants)), zap.Int("got", n),
		zap.String("first", b.wants[0].Path), zap.Duration("took", time.Since(start)), zap.Error(err))
	return err
}

// request asks the remote for a pack. Its answer shows that the remote is not away, whatever comes of it.
func (s *Store) request(ctx context.Context, r transport.FetchRequest) (*transport.FetchResponse, error) {
	resp, err := s.remote.Fetch(ctx, r)
	if err == nil {
		s.blobPipe.answered()
	}
	return resp, err
}

// ingest takes a pack into the store; an error is one of an answer that has begun.
func (s *Store) ingest(ctx context.Context, pack io.Reader, each func(object.ID, object.Type, []byte)) error {
	if _, err := s.objects.Ingest(ctx, pack, s.ingestOptions(), each); err != nil {
		return cutAnswer{err}
	}
	return nil
}

// unpackBlobs verifies and publishes the blobs of a pack as it streams in.
func (s *Store) unpackBlobs(ctx context.Context, r io.Reader, arrived func(object.ID, []byte)) (int, error) {
	return odb.Unpack(ctx, r, odb.UnpackOptions{
		Format: s.objects.Format(), SpoolOver: spoolOver, MaxObjectSize: maxBlobSize, Spool: s.blobs.Spool,
		Base: func(id object.ID) (io.ReaderAt, int64, func(), error) {
			c, ok := s.blobs.Get(id)
			if !ok {
				return nil, 0, nil, fmt.Errorf("read delta base %s: evicted", id)
			}
			return c, c.Size(), c.Release, nil
		},
	}, func(o odb.Object) error { return s.publish(o, arrived) })
}

// publish stores one verified object where reads find it, then lands its flight. Objects other than blobs are
// none that were asked for and are dropped.
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

// keep puts a content into the cache. A full disk must not stop readers: what lies in memory is served from there.
func (s *Store) keep(o odb.Object) error {
	if o.File != nil {
		if err := s.blobs.PutFile(o.ID, o.File, o.Size); err != nil {
			return fmt.Errorf("keep blob %s: %w", o.ID, err)
		}
		return nil
	}
	if err := s.blobs.Put(o.ID, o.Data); err != nil {
		s.memory.PutContent(o.ID, o.Data)
		s.notice(fmt.Sprintf("cannot keep contents on disk: %v", err))
	}
	return nil
}

// readerFunc is a Read method without a type of its own.
type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// pausing is a background answer that stops being read while the foreground is busy: the remote is held back
// by TCP, and its work and the line are left to who waits.
func (s *Store) pausing(ctx context.Context, b *batch, r io.Reader) io.Reader {
	return readerFunc(func(p []byte) (int, error) {
		if err := s.blobPipe.pause(ctx, b); err != nil {
			return 0, err
		}
		return r.Read(p)
	})
}

// Here says whether a blob's content is on this host, as it is stored.
func (v *View) Here(b Blob) bool { return !v.missing(b.ID) }
