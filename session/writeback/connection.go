package writeback

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
)

// Figures counts the pushes of a Queue to the session remote since the Queue was created.
type Figures struct {
	Pushes   int64         // attempts to push, including those with nothing to send
	Failures int64         // pushes that failed, or in which the session remote refused an update
	Refs     int64         // accepted updates of refs
	Refused  int64         // refused updates of refs
	Bytes    int64         // bytes of the packs that were sent, including the packs of failed pushes
	Took     time.Duration // total duration of all pushes
}

// Traffic counts the bytes that all mounts of a session on this host have sent and received because of its session
// remote.
type Traffic struct {
	Sent, Received int64 // bytes sent to the session remote, and bytes received from it
	Seeded         int64 // bytes of history received from the mounted remote, to push them to the session remote
}

// counters contains the counters for Queue.Figures. took is in nanoseconds.
type counters struct{ pushes, failures, refs, refused, bytes, took atomic.Int64 }

// connection exchanges data with the session remote, and counts the bytes. The caller of open, send and fetch holds
// Queue.remoteToken, except for a push of base commits, which takes long.
type connection struct {
	repo   *session.Repo
	remote *thin.Remote      // session remote; nil if the Repo is the session remote
	origin *transport.Remote // mounted remote; nil if its history is not fetched
	// before is the traffic of earlier queues of the session.
	before  Traffic
	counted counters // traffic of this connection
}

// traffic returns the traffic of earlier queues of the session and of this connection together.
func (c *connection) traffic() Traffic {
	t, far := c.before, c.remote.Stats()
	t.Sent, t.Received = t.Sent+far.BytesOut, t.Received+far.BytesIn
	if c.origin != nil {
		t.Seeded += c.origin.Stats().BytesIn
	}
	return t
}

// isOrigin reports whether the session remote is the mounted remote. mounted is the URL of the mounted remote in the
// session's metadata.
func (c *connection) isOrigin(mounted string) bool {
	url := c.remote.URL()
	return mounted == url || c.origin != nil && c.origin.URL() == url
}

// open starts a push. It requests the refs of the session remote whose names begin with one of the prefixes.
func (c *connection) open(ctx context.Context, prefixes []string) (*thin.Push, error) {
	start := time.Now()
	push, err := c.remote.OpenPush(ctx, prefixes)
	c.counted.took.Add(int64(time.Since(start)))
	if ctx.Err() != nil {
		return push, err // the queue has cancelled the push, which does not count as a failure
	}
	c.counted.pushes.Add(1)
	if err != nil {
		c.counted.failures.Add(1)
	}
	return push, err
}

// send sends a push that was started by open, and counts the results. It returns for each update of req nil, or the
// error with which the session remote has refused the update.
func (c *connection) send(ctx context.Context, push *thin.Push, req transport.PushRequest,
	load thin.Load) ([]error, error) {
	start := time.Now()
	if pack := req.Pack; pack != nil {
		req.Pack = func(ctx context.Context, w io.Writer) error { return pack(ctx, &counting{w, &c.counted.bytes}) }
	}
	before := c.remote.Stats().BytesOut
	results, err := push.Send(ctx, req, load)
	if push.Thin() {
		c.counted.bytes.Add(c.remote.Stats().BytesOut - before)
	}
	c.counted.took.Add(int64(time.Since(start)))
	refused := int64(0)
	for _, result := range results {
		if result != nil {
			refused++
		}
	}
	c.counted.refused.Add(refused)
	c.counted.refs.Add(int64(len(results)) - refused)
	if refused > 0 || err != nil && ctx.Err() == nil {
		c.counted.failures.Add(1)
	}
	return results, err
}

// fetch fetches the commit id and the objects that are reachable from it from the session remote into the Repo. It
// leaves out objects that are reachable from the commit ours. It does nothing if the Repo owns id already.
func (c *connection) fetch(ctx context.Context, id, ours object.ID) error {
	if c.repo.Owned(id) {
		return nil
	}
	// With the commit ours in the request, the session remote does not send objects that are reachable from ours.
	var haves []object.ID
	if !ours.IsZero() {
		haves = []object.ID{ours}
	}
	return c.request(ctx, []object.ID{id}, haves)
}

// request fetches the objects wants, and those that are reachable from them and not from haves, from the session remote
// into the Repo.
func (c *connection) request(ctx context.Context, wants, haves []object.ID) error {
	res, err := c.remote.Fetch(ctx, transport.FetchRequest{Wants: wants, Haves: haves})
	if err != nil {
		return err
	}
	defer res.Pack.Close()
	packs, err := c.repo.Packs()
	if err != nil {
		return err
	}
	_, err = packs.Ingest(ctx, res.Pack, odb.IngestOptions{MaxObjectSize: object.MaxTreeSize}, nil)
	return err
}

// probe finds out which of the commits ids the session remote has. It requests the commits by a fetch of depth 1 and
// drops the answer; the server refuses the request if it lacks one of them. known is false if the server does not
// support such a fetch, or returns an error other than git's "not our ref".
func (c *connection) probe(ctx context.Context, ids []object.ID) (has, lacks []object.ID, known bool, err error) {
	// The probe needs protocol v2 and shallow fetches.
	caps, err := c.remote.Capabilities(ctx)
	if errors.Is(err, transport.ErrNoV2) || err == nil && !caps.Shallow {
		return nil, nil, false, nil
	}
	if err != nil {
		return nil, nil, false, err
	}
	// The server names one missing commit per request: repeat the request without that commit until the server accepts it.
	has = slices.Clone(ids)
	for len(has) > 0 {
		req := transport.FetchRequest{Wants: has, Depth: 1}
		if caps.Filter {
			req.Filter = "tree:0"
		}
		res, err := c.remote.Fetch(ctx, req)
		var refused transport.NotOurRef
		switch {
		case err == nil:
			res.Pack.Close()
			return has, lacks, true, nil
		case errors.As(err, &refused) && slices.Contains(has, refused.ID):
			lacks = append(lacks, refused.ID)
			has = slices.DeleteFunc(has, func(id object.ID) bool { return id == refused.ID })
		// After these errors, it is unknown which commits the session remote has.
		case ctx.Err() != nil || errors.Is(err, transport.ErrUnreachable) ||
			errors.Is(err, transport.ErrStalled) || final(err):
			return nil, nil, false, err
		default:
			return nil, nil, false, nil
		}
	}
	return nil, lacks, true, nil
}

// counting is a writer that adds the number of written bytes to n.
type counting struct {
	io.Writer
	n *atomic.Int64
}

// Write writes p to the underlying writer, and adds the number of written bytes to c.n.
func (c *counting) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	c.n.Add(int64(n))
	return n, err
}
