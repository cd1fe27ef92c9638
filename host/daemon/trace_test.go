package daemon

import (
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/internal/metrics"
)

func TestAListenerHoldsSoMuch(t *testing.T) {
	l := &listener{all: true, wake: make(chan struct{}, 1)}
	fill := func(n int, path string) {
		for range n {
			l.add(fuse.Event{Op: "READ", Path: path})
		}
	}
	drain := func() (events, messages int, lost int64) {
		t.Helper()
		for more := true; more; messages++ {
			got, again := l.take()
			paths := 0
			for _, e := range got.Events {
				paths += len(e.Path)
			}
			if paths > tracePaths/traceParts+1<<16 || len(got.Events) > traceRoom/traceParts {
				t.Errorf("message with %d events and %d bytes of paths is too large", len(got.Events), paths)
			}
			events, lost, more = events+len(got.Events), lost+got.Lost, again
		}
		return events, messages, lost
	}
	fill(traceRoom+5, "short")
	if events, messages, lost := drain(); events != traceRoom || messages != traceParts || lost != 5 {
		t.Errorf("got %d events in %d messages, and %d lost", events, messages, lost)
	}
	long := strings.Repeat("x", 1<<16)
	fill(100, long)
	if events, _, lost := drain(); events != tracePaths>>16 || lost != 100-tracePaths>>16 {
		t.Errorf("got %d events with long paths, and %d lost", events, lost)
	}
	l.all = false
	l.add(fuse.Event{Op: "GETATTR"})
	l.add(fuse.Event{Op: "GETATTR", Source: metrics.Sized})
	l.add(fuse.Event{Op: "READ"})
	if events, _, _ := drain(); events != 2 {
		t.Errorf("got %d events that match the request", events)
	}
}
