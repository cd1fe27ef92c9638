package relay

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"
)

// flight fetches a snap or a group and writes it to a file. All clients that need it share the flight, and read the
// file while it is written.
type flight struct {
	key     string        // key under which the file is stored at the end
	starter caller        // caller on whose behalf requests are sent to the git server
	ended   chan struct{} // closed when the flight has ended
	users   atomic.Int32  // number of goroutines that use the file; the last one closes it

	mu       sync.Mutex    // protects the fields below, and those that snapFlight and groupFlight add
	changed  chan struct{} // closed and replaced by a new channel when clients can read more
	file     *os.File
	complete bool  // true when the file is complete
	err      error // error because of which the file will not be complete; nil before
}

// newFlight returns a flight for a file on behalf of a caller.
func newFlight(key string, c caller) flight {
	return flight{key: key, starter: c, ended: make(chan struct{}), changed: make(chan struct{})}
}

// base returns the part that snapFlight and groupFlight have in common.
func (f *flight) base() *flight { return f }

// wake wakes the clients that wait for more bytes or blobs. The caller holds f.mu.
func (f *flight) wake() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// release ends one use of the flight. The last call closes the file.
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

// errClosing means that the relay is being closed.
var errClosing = errors.New("relay is being closed")

// launch returns the flight for the file key in the map running. If there is none, it starts the flight that the
// function fresh returns, by calling run in another goroutine. The caller must call release.
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
	f.base().users.Store(2) // one use for the goroutine of the flight, and one for its first client
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

// end wakes all clients at the end of a flight. err is ignored if the file is complete, because clients need not know
// that it could not be stored.
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
