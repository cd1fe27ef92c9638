package hostui

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch/fetchmap"
	"github.com/artifactfs/artifactfs/server/ui"
)

const (
	maxFeeds = 16 // feeds at the same time, so that a browser with many tabs costs a bounded amount
	// linger is the time for which a feed without users continues: for the script that follows the page, and for a reload.
	linger = 3 * time.Second
	// again is the time for which a feed waits for the next worker after the one that serves the mount has ended, and retry the interval.
	again = 10 * time.Second
	retry = 200 * time.Millisecond
)

// feedKey identifies what a feed shows.
type feedKey struct {
	mount, path string
	bytes       bool
}

// sample is what happened in a mount since the sample before.
type sample struct {
	fetchmap.Map
	Status control.MountStatus
	// Per second, since the sample before:
	Fetches, Blobs, Received float64 // requests to the remote, blobs and bytes that were received
	// Problem states why no further samples come, "" while they do.
	Problem string
}

// feed is the stream of samples from a daemon to any number of live views.
type feed struct {
	key    feedKey
	cancel context.CancelFunc
	done   chan struct{} // closed when the goroutine of the feed has ended

	mu    sync.Mutex
	last  sample
	next  chan struct{} // closed when the next sample is there
	users int
	idle  *time.Timer // ends the feed; nil while it has users
	over  bool        // idle has ended the feed
}

// feeds are all feeds of a page.
type feeds struct {
	mu     sync.Mutex
	open   map[feedKey]*feed
	closed bool
}

// use returns the feed with a key. It starts one that follows the mount m if there is none. The caller must call release.
func (fs *feeds) use(m Mount, key feedKey) (*feed, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f := fs.open[key]
	if f == nil || !f.join() {
		if f == nil && len(fs.open) >= maxFeeds || fs.closed {
			return nil, &ui.Problem{Status: http.StatusServiceUnavailable, Title: "Busy", Text: "Too many live pages are open. Close some of them."}
		}
		ctx, cancel := context.WithCancel(context.Background())
		f = &feed{key: key, cancel: cancel, done: make(chan struct{}), next: make(chan struct{})}
		f.last.Status, f.users = m.MountStatus, 1
		fs.open[key] = f
		go func() {
			defer close(f.done)
			defer cancel()
			f.run(ctx, m.Daemon)
			fs.drop(f)
		}()
	}
	return f, nil
}

// join counts a user. It returns false if the feed is ending.
func (f *feed) join() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over {
		return false
	}
	if f.users++; f.idle != nil {
		f.idle.Stop()
		f.idle = nil
	}
	return true
}

// drop removes a feed that has ended.
func (fs *feeds) drop(f *feed) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.open[f.key] == f {
		delete(fs.open, f.key)
	}
}

// release ends the use of a feed.
func (f *feed) release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.users--; f.users == 0 {
		f.idle = time.AfterFunc(linger, func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.users == 0 {
				f.over = true
				f.cancel()
			}
		})
	}
}

// close ends all feeds and waits for them.
func (fs *feeds) close() {
	fs.mu.Lock()
	fs.closed = true
	var open []*feed
	for _, f := range fs.open {
		open = append(open, f)
	}
	fs.mu.Unlock()
	for _, f := range open {
		f.cancel()
		<-f.done
	}
}

// sample returns the last sample, and a channel that is closed when the next one is there.
func (f *feed) sample() (sample, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last, f.next
}

// publish makes a sample the last one.
func (f *feed) publish(s sample) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = s
	close(f.next)
	f.next = make(chan struct{})
}

// run publishes samples until ctx ends, or the mount does.
func (f *feed) run(ctx context.Context, daemon Tracer) {
	var lost time.Time // when the connection was lost; zero while there is one
	before, at := f.last.Status.Network, time.Time{}
	for {
		err := daemon.Trace(ctx, control.TraceRequest{Dir: f.key.mount, Map: &fetchmap.MapRequest{Path: f.key.path, Bytes: f.key.bytes}},
			func(t control.Trace) error {
				if t.Map == nil {
					return errOlder
				}
				lost = time.Time{}
				s := sample{Map: *t.Map}
				s.Status = f.status(ctx, daemon)
				now, n := time.Now(), s.Status.Network
				if seconds := now.Sub(at).Seconds(); !at.IsZero() && n.Requests >= before.Requests { // a new worker counts from zero
					s.Fetches = float64(n.Requests-before.Requests) / seconds
					s.Blobs, s.Received = float64(n.Blobs-before.Blobs)/seconds, float64(n.Bytes-before.Bytes)/seconds
				}
				before, at = n, now
				f.publish(s)
				return nil
			})
		if lost.IsZero() {
			lost = time.Now()
		}
		if ctx.Err() != nil {
			return
		}
		if !errors.Is(err, control.ErrNoServer) || time.Since(lost) > again {
			f.end(err)
			return
		}
		select {
		case <-time.After(retry):
		case <-ctx.Done():
			return
		}
	}
}

// errOlder means that the daemon sends events instead of maps.
var errOlder = &control.Error{Cause: "the daemon is of an older version", Hint: "artifactfs daemon --upgrade"}

// end publishes why no further samples come.
func (f *feed) end(err error) {
	s, _ := f.sample()
	s.Problem = "The mount has ended."
	if err != nil {
		e := control.AsError(err)
		s.Problem = "The mount cannot be followed any more: " + e.Error() + "."
		if e.Hint != "" {
			s.Problem += " Hint: " + e.Hint
		}
	}
	f.publish(s)
}

// status returns the status of the mount without the numbers of its files, or the last one if the daemon does not answer.
func (f *feed) status(ctx context.Context, daemon Tracer) control.MountStatus {
	status, _ := daemon.Mounts(ctx, control.MountsRequest{}) // empty after an error
	for _, m := range status.Mounts {
		if m.Dir == f.key.mount {
			return m
		}
	}
	last, _ := f.sample()
	return last.Status
}
