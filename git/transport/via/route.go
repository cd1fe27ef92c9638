package via

import (
	"sync"
	"time"
)

// Route is the way to one remote through a relay. It decides whether a request takes the route, and counts the requests that did and
// those that did not. A nil Route is that of a remote without a relay. The methods may be called from any goroutine.
type Route struct {
	*Relay
	health health // whether the relay serves this remote

	mu    sync.Mutex // protects usage
	usage Usage
}

// Usage is how much a remote was reached through a relay.
type Usage struct {
	URL          string // of the relay
	Answers      int64  // answers of the relay, including those that broke off
	FallThroughs int64  // requests that were sent to the git server, because the relay has failed, or had failed shortly before
	LastFailure  string // text of the last failure of the relay; "": none
	FailedAt     time.Time
	Paused       bool // requests are not sent to the relay at the moment, because it has failed
}

// NewRoute returns the route through a relay. It returns nil if r is nil.
func NewRoute(r *Relay) *Route {
	if r == nil {
		return nil
	}
	return &Route{Relay: r}
}

// Use reports whether the next request may take the route. The caller must report the result with Answered or Failed.
func (r *Route) Use() bool {
	if r.Relay.health.use() && r.health.use() {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.usage.FallThroughs++
	return false
}

// Answered records that the relay has answered, or that an answer is complete if ended is true.
func (r *Route) Answered(ended bool) {
	r.Relay.health.succeeded()
	r.health.succeeded()
	if !ended {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.usage.Answers++
	}
}

// Failed records that a request failed and is sent to the git server. A relay that does not answer is not used for a while by any
// remote; one that has answered with an error is not used for this remote.
func (r *Route) Failed(cause error, answered bool) {
	if answered {
		r.Relay.health.succeeded()
		r.health.failed()
	} else {
		r.Relay.health.failed()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.usage.FallThroughs++
	r.usage.LastFailure, r.usage.FailedAt = cause.Error(), time.Now()
}

// Usage returns the counters since NewRoute. It returns nil for a nil Route.
func (r *Route) Usage() *Usage {
	if r == nil {
		return nil
	}
	paused := r.Relay.health.paused() || r.health.paused()
	r.mu.Lock()
	defer r.mu.Unlock()
	u := r.usage
	u.URL, u.Paused = r.Relay.URL(), paused
	return &u
}
