package writeback

import (
	"context"
	"io"
	"sync/atomic"
	"time"

	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/transport"
)

// Figures count what a Queue has had to do with the session remote since it began.
type Figures struct {
	Pushes   int64         // tries to push, those that found nothing to send included
	Failures int64         // of them, those that were not answered, or in which the session remote has refused something
	Refs     int64         // that were moved there
	Refused  int64         // updates of refs that were not taken
	Bytes    int64         // of packs that were sent, in pushes that failed as well
	Took     time.Duration // all of that
}

// counters are Figures as they come about.
type counters struct{ pushes, failures, refs, refused, bytes, took atomic.Int64 }

// Figures are those of this Queue.
func (q *Queue) Figures() Figures {
	c := &q.counted
	return Figures{
		Pushes: c.pushes.Load(), Failures: c.failures.Load(), Refs: c.refs.Load(), Refused: c.refused.Load(),
		Bytes: c.bytes.Load(), Took: time.Duration(c.took.Load()),
	}
}

// openPush begins a push: it asks the session remote what it has.
func (q *Queue) openPush(ctx context.Context, prefixes []string) (*thin.Push, error) {
	start := time.Now()
	push, err := q.o.Remote.OpenPush(ctx, prefixes)
	q.counted.took.Add(int64(time.Since(start)))
	if ctx.Err() != nil {
		return push, err // it was ended here
	}
	q.counted.pushes.Add(1)
	if err != nil {
		q.counted.failures.Add(1)
	}
	return push, err
}

// sendPush goes on with it.
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

// counting counts what is written.
type counting struct {
	io.Writer
	n *atomic.Int64
}

func (c *counting) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	c.n.Add(int64(n))
	return n, err
}
