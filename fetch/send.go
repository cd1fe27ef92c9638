package fetch

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch/pipeline"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/prioritize"
)

// sendBlobs fetches the blobs of one batch and stores each blob when it arrives. The pipeline calls sendBlobs for each
// batch, because it is the function pipeline.Config.Send.
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

// pausing returns an io.Reader that reads from r, the answer to batch b. If b is a background batch, its Read method
// waits while readers wait for other batches. In this time the TCP window fills and the remote stops sending, which
// leaves the network and the remote's processors to the requests of the readers.
func (f *fetcher) pausing(ctx context.Context, b *pipeline.Batch, r io.Reader) io.Reader {
	return readerFunc(func(p []byte) (int, error) {
		if err := f.pipe.Pause(ctx, b); err != nil {
			return 0, err
		}
		return r.Read(p)
	})
}

// fetchBlobs requests blobs from the session remotes and from the Store's remote. When a blob arrives, fetchBlobs
// stores the blob and calls the function arrived. n is the number of blobs that have arrived.
func (f *fetcher) fetchBlobs(ctx context.Context, b *pipeline.Batch, wants []object.ID,
	arrived func(object.ID, []byte)) (n int, err error) {
	// Blobs that a session remote probably has are requested there first. The blobs that the session remote lacks are
	// requested from the Store's remote, like all other blobs.
	seconds := f.storage.sessionLocals()
	own, theirs := splitByRemote(wants, seconds)
	var secondErr error
	came := map[object.ID]bool{} // ids of the blobs that have arrived from any remote
	if len(theirs) > 0 {
		n, secondErr = f.fetchFromSessions(ctx, seconds, theirs, func(id object.ID, content []byte) {
			came[id] = true
			arrived(id, content)
		})
		// For a file that was renamed in the session, the blob is requested from the session remote, which may lack it,
		// because the blob was not changed in the session and exists on the mounted remote.
		if secondErr != nil && ctx.Err() == nil {
			own = append(slices.Clone(own), slices.DeleteFunc(theirs, func(id object.ID) bool { return came[id] })...)
		}
	}
	// refusedBoth contains the blobs that neither the session remotes nor the Store's remote could supply.
	var refusedBoth []object.ID
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
		// The Store's remote rejects a whole request if it lacks one of the objects. The blob that it lacks is requested from
		// the session remotes, and the other blobs are requested from the Store's remote again.
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
		// If a session remote is a partial clone and lacks one of the requested objects, it ends the answer without any
		// object. Such an answer does not prove that the session remote lacks all of the requested objects. Therefore the
		// blobs that the Store's remote lacks are requested from the session remote again, without the other blobs.
		var got int
		got, err = f.fetchFromSessions(ctx, seconds, refusedBoth, arrived)
		n += got
	case err == nil && (len(refusedBoth) > 0 || ctx.Err() != nil):
		err = secondErr
	}
	return n, err
}

// withoutLocal returns the ids of the wants that have to be requested from a remote. If the object directory of a mount
// (type Local) contains a blob, withoutLocal leaves out the id of the blob and calls the function arrived.
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

// hasBlob reports whether one of the sources in locals contains the blob with this id.
func hasBlob(locals []odb.Source, id object.ID) bool {
	for _, from := range locals {
		if t, _, err := from.Size(id); err == nil && t == object.Blob {
			return true
		}
	}
	return false
}
