package relay

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"
)

// flight is the work of fetching a snap or a group. All clients that need the same one share it, and read its file while it is written.
type flight struct {
	key     string        // of the file that is stored at the end
	starter caller        // the git server is asked on behalf of this caller
	ended   chan struct{} // closed when the flight has ended
	users   atomic.Int32  // number of goroutines that use the file; the last one closes it

	mu       sync.Mutex    // protects the fields below, and those that snapFlight and groupFlight add
	changed  chan struct{} // closed and replaced when there is more to read
	file     *os.File
	complete bool  // the file is complete
	err      error // why it will not be complete
}

// newFlight returns a flight for a file on behalf of a caller.
func newFlight(key string, c caller) flight {
	return flight{key: key, starter: c, ended: make(chan struct{}), changed: make(chan struct{})}
}

// base returns the common part of a snapFlight or groupFlight.
func (f *flight) base() *flight { return f }

// wake wakes the clients that wait. The caller holds f.mu.
func (f *flight) wake() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// release closes the file after its last user.
func (f *flight) release() {
	if f.users.Add(-1) > 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file != nil {
		f.file.Close()
	}
}

// errClosing means that the relay ends.
var errClosing = errors.New("relay is closing")

// launch returns the flight for a file that is in running, a map of the remote. If there is none, it starts the flight that fresh returns:
// it calls run in another goroutine. The caller must call release.
func launch[F interface{ base() *flight }](m *remote, running map[string]F, key string, fresh func() F,
	run func(context.Context, F) error) F {
	m.mu.Lock()
	f, joined := running[key]
	if joined {
		f.base().users.Add(1)
		m.mu.Unlock()
		m.relay.counts.joined.Add(1)
		return f
	}
	f = fresh()
	f.base().users.Store(2) // the flight itself and its first client
	running[key] = f
	m.busy++
	m.mu.Unlock()
	land := func(err error) {
		m.mu.Lock()
		delete(running, key)
		m.busy--
		m.mu.Unlock()
		f.base().end(err)
	}
	started := m.relay.goFlight(func(ctx context.Context) {
		m.relay.counts.flights.Add(1)
		err := run(ctx, f)
		if err != nil {
			m.relay.counts.flightFailures.Add(1)
			m.relay.shelf.Failed(err)
			m.relay.log.Info("flight failed", zap.String("remote", m.name()), zap.String("key", key), zap.Error(err))
		}
		land(err)
	})
	if !started {
		land(errClosing)
	}
	return f
}

// end wakes all clients at the end of a flight. An error that occurs after the file was completed, when it is stored, does not
// concern them.
func (f *flight) end(err error) {
	f.mu.Lock()
	if !f.complete {
		f.err = err
	}
	f.wake()
	f.mu.Unlock()
	close(f.ended)
	f.release()
}
