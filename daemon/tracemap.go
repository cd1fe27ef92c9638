package daemon

import (
	"context"
	"os"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/hydration"
)

// mapPause is the time between two messages with a map.
const mapPause = time.Second

// traceMap calls emit with a map of the tree about once a second, until ctx or the mount ends. The first map is empty, because the first
// count of a large tree takes a while.
func traceMap(ctx context.Context, server *fuse.Server, tree *fetch.RawView, r hydration.MapRequest, ended <-chan struct{},
	emit func(control.Trace) error) error {
	s := hydration.NewSurvey(tree)
	defer server.Trace(func(e fuse.Event) {
		s.Note(hydration.Event{Path: e.Path, Waited: e.Source != 0, Read: e.Op == "READ", Bytes: e.Size})
	}, false)()
	next := time.Now() // of the update
	for {
		m := s.Map(r)
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
			next = now.Add(hydration.Pace(now.Sub(began)))
		}
	}
}
