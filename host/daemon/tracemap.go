package daemon

import (
	"context"
	"os"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/fetch/fetchmap"
	"github.com/artifactfs/artifactfs/fuse"
)

// mapPause is the time between two messages with a map of the tree, which shows the fetched files.
const mapPause = time.Second

// traceMap passes a map of the tree, which shows the fetched files, to the function emit about once a second, until ctx
// or the mount ends. The first map is empty, because the first count of a large tree takes a while.
func traceMap(ctx context.Context, server *fuse.Server, tree *fetch.RawView, r fetchmap.MapRequest,
	ended <-chan struct{},
	emit func(control.Trace) error) error {
	s := fetchmap.NewSurvey(tree, countersOf(server))
	defer server.Trace(func(e fuse.Event) {
		n := fetchmap.Event{Weight: e.Weight, Path: e.Path, Waited: e.Source != 0}
		if e.Op == "READ" {
			n.Bytes = e.Size
		}
		s.Note(n)
	}, false)()
	next := time.Now() // time of the next update of the map
	for {
		m := s.Map(r, countersOf(server))
		if err := emit(control.Trace{PID: os.Getpid(), Map: &m}); err != nil {
			return err
		}
		if m.Known {
			select {
			case <-time.After(mapPause):
			case <-ctx.Done(): // the client has disconnected, or the daemon exits
				return nil
			case <-ended:
				return nil
			}
		}
		if began := time.Now(); !began.Before(next) {
			if !tree.Run(s.Update) { // the mount has ended
				return nil
			}
			now := time.Now()
			next = now.Add(fetchmap.Pace(now.Sub(began)))
		}
	}
}

// countersOf returns the numbers of requests that the kernel has sent to a mount. FORGET is not counted, because it has
// no answer.
func countersOf(server *fuse.Server) fetchmap.Counters {
	c := fetchmap.Counters{Waited: int64(server.Fetched())}
	for op, n := range server.Stats() {
		switch op {
		case "FORGET":
			continue
		case "READ":
			c.Reads = int64(n)
		}
		c.Requests += int64(n)
	}
	return c
}
