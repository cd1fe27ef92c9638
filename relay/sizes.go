package relay

import (
	"context"
	"crypto/sha256"
	"net/http"
	"slices"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/relay/grants"
	"github.com/artifactfs/artifactfs/relay/packs"
	"github.com/artifactfs/artifactfs/relay/plan"
	"github.com/artifactfs/artifactfs/relay/wire"
)

const (
	sizeBatch    = 10000 // maximum number of ids in one request for sizes
	sizeRequests = 4     // maximum number of requests for sizes in flight
)

// sizesOf returns the sizes of the blobs of a plan in bytes. It returns stored sizes or, if c is a caller and the git
// server reports sizes, requests them on behalf of c. It returns nil if the sizes are not known.
func (m *remote) sizesOf(ctx context.Context, c caller, p *plan.Plan) map[object.ID]int64 {
	key := m.key(packs.Size, p.Want.String())
	if sizes := m.storedSizes(ctx, key); sizes != nil {
		return sizes
	}
	if c.reader == (grants.Reader{}) || !m.reportsSizes() || len(p.Blobs) == 0 {
		return nil
	}
	batches := slices.Collect(slices.Chunk(p.Blobs, sizeBatch))
	answers := make([][]int64, len(batches))
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(sizeRequests)
	for i, ids := range batches {
		all.Go(func() error {
			body, err := m.relay.upstream.post(ctx, m.url, c, wire.ObjectInfo(p.Format, ids))
			if err != nil {
				return err
			}
			defer body.Close()
			answers[i], err = wire.ReadSizes(body, p.Format, ids)
			return err
		})
	}
	if err := all.Wait(); err != nil {
		m.relay.log.Info("sizes are not known", zap.String("remote", m.name()), zap.Error(err))
		return nil
	}
	sizes := make(map[object.ID]int64, len(p.Blobs))
	var table []byte
	for i, ids := range batches {
		for n, id := range ids {
			if size := answers[i][n]; size >= 0 {
				sizes[id] = size
				table = packs.AppendSize(table, id, size)
			}
		}
	}
	// The sizes are not complete, because some blobs are on a promisor of the git server. They are not stored, because
	// another relay may get other answers.
	if len(sizes) < len(p.Blobs) {
		return nil
	}
	m.storeSizes(key, table)
	return sizes
}

// storedSizes returns the sizes in a stored file, or nil if it cannot be read.
func (m *remote) storedSizes(ctx context.Context, key string) map[object.ID]int64 {
	f, ok := m.relay.shelf.Local(key)
	if !ok {
		var err error
		if f, err = m.relay.shelf.Load(ctx, key); err != nil {
			return nil
		}
	}
	defer f.Close()
	sizes, err := packs.Sizes(f.Table)
	if err != nil {
		m.relay.shelf.Forget(ctx, key, err)
		return nil
	}
	return sizes
}

// storeSizes stores the sizes of a plan. A failure is only logged, because the sizes can be requested again.
func (m *remote) storeSizes(key string, table []byte) {
	temp, err := m.relay.shelf.Temp()
	if err == nil {
		if _, err = temp.Write(packs.Finish(table, sha256.New())); err == nil {
			err = m.relay.shelf.Keep(temp, key, true)
		} else {
			m.relay.shelf.Drop(temp)
		}
	}
	if err != nil {
		m.relay.log.Warn("sizes were not stored", zap.Error(err))
	}
}

// serveSizes answers a request for the sizes of objects. It returns false, and the request has to be passed, unless all
// objects belong to one commit whose sizes are known.
func (e *exchange) serveSizes(ctx context.Context, req wire.Request) (bool, error) {
	if !req.Size || len(req.Sizes) == 0 {
		return false, nil
	}
	p, err := e.remote.await(ctx, func(p *planned) bool {
		return p.sizes != nil && !slices.ContainsFunc(req.Sizes, func(id object.ID) bool { return !p.HasBlob(id) })
	})
	if p == nil || err != nil || e.check(ctx, p.Want) != nil {
		return false, nil
	}
	answer := wire.AppendSizes(nil, req.Sizes, func(id object.ID) (int64, bool) {
		n, ok := p.sizes[id]
		return n, ok
	})
	e.begin(http.StatusOK, func(h http.Header) { h.Set("Content-Type", resultType) })
	_, err = countingWriter{e.w, &e.relay.counts.sent}.Write(answer)
	return true, err
}
