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
	maxFeeds = 16 // maximum number of feeds at the same time, so that a browser with many tabs causes a bounded load
	// linger is the time for which a feed without users continues: the script of a page connects to the feed after the
	// page was loaded, and a page may be reloaded.
	linger = 3 * time.Second
	// again is the time for which a feed waits for the next worker after the worker that serves the mount has ended,
	// and retry the interval of its attempts.
	again = 10 * time.Second
	retry = 200 * time.Millisecond
)

// feedKey identifies a feed by the part of a mount that it shows: the directory path, by bytes or by files.
type feedKey struct {
	mount, path string
	bytes       bool
}

// sample describes the state of a mount, and its requests and traffic since the previous sample.
type sample struct {
	fetchmap.Map
	Status control.MountStatus
	// Rates per second since the previous sample:
	Fetches, Blobs, Received float64 // requests to the remote, blobs and bytes that were received
	// Problem is the reason why no further samples follow, or "" if they do.
	Problem string
}

// feed receives samples of a mount from its daemon, and passes them to any number of live views.
type feed struct {
	key    feedKey
	cancel context.CancelFunc
	done   chan struct{} // closed when the goroutine of the feed has ended

	mu    sync.Mutex
	last  sample
	next  chan struct{} // closed when the next sample is there
	users int
	idle  *time.Timer // timer that ends the feed; nil while the feed has users
	over  bool        // whether the timer idle has ended the feed
}

// feeds has all feeds of a page by their keys.
type feeds struct {
	mu     sync.Mutex
	open   map[feedKey]*feed
	closed bool
}

// use returns the feed with the given key, and starts it for the mount m if it does not run. The caller must call
// release.
func (fs *feeds) use(m Mount, key feedKey) (*feed, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f := fs.open[key]
	if f == nil || !f.join() {
		if f == nil && len(fs.open) >= maxFeeds || fs.closed {
			return nil, &ui.Problem{Status: http.StatusServiceUnavailable, Title: "Busy",
				Text: "Too many live pages are open. Close some of them."}
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

// join adds a user to the feed. It returns false if the feed is ending.
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

// drop removes the feed f, which has ended, from the list.
func (fs *feeds) drop(f *feed) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.open[f.key] == f {
		delete(fs.open, f.key)
	}
}

// release removes a user from the feed. A feed without users ends after the time linger.
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

// close ends all feeds and waits for their goroutines.
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

// sample returns the last sample, and a channel that is closed when the next sample is available.
func (f *feed) sample() (sample, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last, f.next
}

// publish makes s the last sample, and notifies the users of the feed.
func (f *feed) publish(s sample) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = s
	close(f.next)
	f.next = make(chan struct{})
}

// run publishes samples that it receives from the daemon until ctx or the mount ends.
func (f *feed) run(ctx context.Context, daemon Tracer) {
	var lost time.Time // when the connection was lost; zero while there is one
	before, at := f.last.Status.Network, time.Time{}
	for {
		err := daemon.Trace(ctx, control.TraceRequest{Dir: f.key.mount,
			Map: &fetchmap.MapRequest{Path: f.key.path, Bytes: f.key.bytes}},
			func(t control.Trace) error {
				if t.Map == nil {
					return errOldDaemon
				}
				lost = time.Time{}
				s := sample{Map: *t.Map}
				s.Status = f.status(ctx, daemon)
				now, n := time.Now(), s.Status.Network
				// a new worker counts from zero
				if seconds := now.Sub(at).Seconds(); !at.IsZero() && n.Requests >= before.Requests {
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

// errOldDaemon means that the daemon is of an older version, which sends single events instead of maps of the tree.
var errOldDaemon = &control.Error{Cause: "daemon has an older version", Hint: "artifactfs daemon --upgrade"}

// end publishes a last sample that states why no further samples follow. err is the error of the connection to the
// daemon, or nil if the mount has ended.
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

// status returns the status of the mount without the numbers of its files. If the daemon does not answer, it returns
// the status of the last sample.
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
