package fuse

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/worktree/worktreetest"
)

// idle is a file system that answers no request.
type idle struct{ raw.RawFileSystem }

func (idle) GetAttr(<-chan struct{}, *raw.GetAttrIn, *raw.AttrOut) raw.Status { return raw.OK }

func TestObservingAllocatesNothing(t *testing.T) {
	var c counters
	o := &observed{idle{}, &c, new(Latencies), new(tracer)}
	in, out := new(raw.GetAttrIn), new(raw.AttrOut)
	if n := testing.AllocsPerRun(100, func() { o.GetAttr(nil, in, out) }); n != 0 {
		t.Errorf("allocations per request: got %v", n)
	}
	if got := c.snapshot()["GETATTR"]; got != 101 || c.pending.Load() != 0 || o.latencies[opGetAttr].Count() != got {
		t.Errorf("requests: got %d counted, %d pending, %d measured", got, c.pending.Load(), o.latencies[opGetAttr].Count())
	}
}

func BenchmarkObserved(b *testing.B) {
	o := &observed{idle{}, new(counters), new(Latencies), new(tracer)}
	in, out := new(raw.GetAttrIn), new(raw.AttrOut)
	for b.Loop() {
		o.GetAttr(nil, in, out)
	}
}

func TestListenersAreTold(t *testing.T) {
	m := mount(t, map[string]worktreetest.File{"dir/file": {Data: "content"}})
	var mu sync.Mutex
	var events []Event
	stop := m.Server.Trace(func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		events = append(events, e)
	}, true)
	data, err := os.ReadFile(filepath.Join(m.dir, "dir/file"))
	if err != nil || string(data) != "content" {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(m.dir, "dir/nothing")); !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	stop()
	find := func(op, path string) Event {
		t.Helper()
		for _, e := range events {
			if e.Op == op && e.Path == path {
				return e
			}
		}
		t.Fatalf("no event %s of %s in %+v", op, path, events)
		return Event{}
	}
	if e := find("READ", "dir/file"); e.PID != os.Getpid() || e.Command == "" || e.Size != 7 ||
		e.Status != raw.OK || e.Took <= 0 {
		t.Errorf("traced READ of dir/file is %+v", e)
	}
	find("LOOKUP", "dir/nothing")
	n := 0
	m.fs.tracer.open.Range(func(any, any) bool { n++; return true })
	if n > 0 || m.fs.tracer.listened.Load() {
		t.Errorf("%d requests are still remembered", n)
	}
}
