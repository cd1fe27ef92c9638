package writeback

import (
	"context"
	"io"
	"sync/atomic"
	"time"

	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/transport"
)

// Figures count the traffic of a Queue with the session remote since the Queue was created.
type Figures struct {
	Pushes   int64         // attempts to push, including those that found nothing to send
	Failures int64         // pushes that failed, or in which the session remote refused an update
	Refs     int64         // accepted updates of refs
	Refused  int64         // refused updates of refs
	Bytes    int64         // bytes of packs sent, including failed pushes
	Took     time.Duration // total duration of all pushes
}

// counters holds the counters behind Figures; Took is in nanoseconds.
type counters struct{ pushes, failures, refs, refused, bytes, took atomic.Int64 }

// Figures returns the counters of this Queue.
func (q *Queue) Figures() Figures {
	c := &q.counted
	return Figures{
		Pushes: c.pushes.Load(), Failures: c.failures.Load(), Refs: c.refs.Load(), Refused: c.refused.Load(),
		Bytes: c.bytes.Load(), Took: time.Duration(c.took.Load()),
	}
}

// openPush starts a push: it requests the refs of the session remote below prefixes.
func (q *Queue) openPush(ctx context.Context, prefixes []string) (*thin.Push, error) {
	start := time.Now()
	push, err := q.o.Remote.OpenPush(ctx, prefixes)
	q.counted.took.Add(int64(time.Since(start)))
	if ctx.Err() != nil {
		return push, err // cancelled by this queue: no failure
	}
	q.counted.pushes.Add(1)
	if err != nil {
		q.counted.failures.Add(1)
	}
	return push, err
}

// sendPush sends a push that openPush started, and counts its results.
func (q *Queue) sendPush(ctx context.Context, push *thin.Push, req transport.PushRequest, load thin.Load) ([]error, error) {
	start := time.Now()
	if pack := req.Pack; pack != nil {
		req.Pack = func(ctx context.Context, w io.Writer) error { return pack(ctx, &counting{w, &q.counted.bytes}) }
	}
	before := q.o.Remote.Stats().BytesOut
	results, err := push.Send(ctx, req, load)
	if push.Thin() {
		q.counted.bytes.Add(q.o.Remote.Stats().BytesOut - before)
	}
	q.counted.took.Add(int64(time.Since(start)))
	refused := int64(0)
	for _, result := range results {
		if result != nil {
			refused++
		}
	}
	q.counted.refused.Add(refused)
	q.counted.refs.Add(int64(len(results)) - refused)
	if refused > 0 || err != nil && ctx.Err() == nil {
		q.counted.failures.Add(1)
	}
	return results, err
}

// counting is a writer that adds the number of bytes written to n.
type counting struct {
	io.Writer
	n *atomic.Int64
}

func (c *counting) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	c.n.Add(int64(n))
	return n, err
}
