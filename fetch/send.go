package fetch

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch/pipeline"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
	"github.com/artifactfs/artifactfs/prioritize"
	"github.com/artifactfs/artifactfs/transport"
)

// sendBlobs fetches the blobs of one batch and stores each as it arrives. It is the Send function
// of the pipeline.
func (f *fetcher) sendBlobs(ctx context.Context, b *pipeline.Batch, arrived func(object.ID, []byte)) error {
	start := time.Now()
	wants := f.withoutLocal(b.Wants, arrived)
	if len(wants) == 0 {
		return nil
	}
	n, err := f.fetchBlobs(ctx, b, wants, arrived)
	f.log.Debug("fetch blobs", zap.Stringer("class", b.Wants[0].Class), zap.Int("wants", len(wants)), zap.Int("got", n),
		zap.String("first", b.Wants[0].Path), zap.Duration("took", time.Since(start)), zap.Error(err))
	return err
}

// pausing returns an io.Reader of the answer r that stops reading a background answer while readers wait. The TCP window then
// fills and the remote stops sending, which leaves the remote's processors and the network to the requests of the readers.
func (f *fetcher) pausing(ctx context.Context, b *pipeline.Batch, r io.Reader) io.Reader {
	return readerFunc(func(p []byte) (int, error) {
		if err := f.pipe.Pause(ctx, b); err != nil {
			return 0, err
		}
		return r.Read(p)
	})
}

// fetchBlobs requests blobs from the session remotes and from the Store's remote, and stores each
// as it arrives.
func (f *fetcher) fetchBlobs(ctx context.Context, b *pipeline.Batch, wants []object.ID,
	arrived func(object.ID, []byte)) (n int, err error) {
	// Blobs that a session remote probably has are requested there first. Those that it does not have are requested from the
	// Store's remote, like all other blobs.
	seconds := f.storage.sessionLocals()
	own, theirs := splitByRemote(wants, seconds)
	var secondErr error
	came := map[object.ID]bool{} // blobs of theirs that have arrived, from any remote
	if len(theirs) > 0 {
		n, secondErr = f.fetchFromSessions(ctx, seconds, theirs, func(id object.ID, content []byte) {
			came[id] = true
			arrived(id, content)
		})
		// A file that was renamed in the session is expected on the session remote, but is on the
		// mounted one.
		if secondErr != nil && ctx.Err() == nil {
			own = append(slices.Clone(own), slices.DeleteFunc(theirs, func(id object.ID) bool { return came[id] })...)
		}
	}
	var refusedBoth []object.ID // blobs of theirs that the Store's remote refused too
	for len(own) > 0 {
		var resp *transport.FetchResponse
		resp, err = f.request(ctx, transport.FetchRequest{Wants: own, Once: true})
		if err == nil {
			var got int
			got, err = f.unpackBlobs(ctx, f.pausing(ctx, b, resp.Pack), func(id object.ID, content []byte) {
				came[id] = true
				arrived(id, content)
			})
			n += got
			resp.Pack.Close()
			if err != nil {
				err = pipeline.AnswerError{Err: err}
			}
		}
		var refused transport.NotOurRef
		if !errors.As(err, &refused) || len(seconds) == 0 {
			break
		}
		// The Store's remote refuses one unknown id per request. The object with that id is requested from the session remotes,
		// and the other objects are requested again.
		own = slices.DeleteFunc(own, func(id object.ID) bool { return id == refused.ID })
		if secondErr != nil && slices.Contains(theirs, refused.ID) {
			refusedBoth, err = append(refusedBoth, refused.ID), nil
			continue
		}
		var got int
		got, err = f.fetchFromSessions(ctx, seconds, []object.ID{refused.ID}, arrived)
		n += got
		if err != nil {
			break
		}
	}
	switch {
	case err == nil && len(refusedBoth) > 0 && slices.ContainsFunc(theirs, func(id object.ID) bool { return came[id] }):
		// A session remote that is a partial clone ends without any object if it lacks one of those
		// requested. So it was reachable, and the objects that the other remote did not have are
		// requested again, without the rest.
		var got int
		got, err = f.fetchFromSessions(ctx, seconds, refusedBoth, arrived)
		n += got
	case err == nil && (len(refusedBoth) > 0 || ctx.Err() != nil):
		err = secondErr
	}
	return n, err
}

// withoutLocal returns the wants that have to be requested. Blobs that a Local has are reported to arrived at once.
func (f *fetcher) withoutLocal(wants []prioritize.Want, arrived func(object.ID, []byte)) []object.ID {
	ids := make([]object.ID, 0, len(wants))
	locals := f.storage.localSources()
	for _, w := range wants {
		if hasBlob(locals, w.ID) {
			if ok, err := f.storage.materialize(w.ID); ok && err == nil {
				arrived(w.ID, nil)
				continue
			}
		}
		ids = append(ids, w.ID)
	}
	return ids
}

// hasBlob reports whether one of the sources has the blob.
func hasBlob(locals []odb.Source, id object.ID) bool {
	for _, from := range locals {
		if t, _, err := from.Size(id); err == nil && t == object.Blob {
			return true
		}
	}
	return false
}
