package via

import (
	"sync"
	"time"
)

// Route is the way to one remote through a relay. It decides which requests are sent to the relay, and counts them and
// the other requests. A nil Route means that there is no relay. The methods may be called from any goroutine.
type Route struct {
	*Relay
	health health // whether the relay can be used for this remote

	mu    sync.Mutex // protects usage
	usage Usage
}

// Usage contains the URL of a relay, and counts the requests of one remote.
type Usage struct {
	URL     string // URL of the relay
	Answers int64  // answers of the relay, including those that broke off
	// number of requests that were sent to the git server because the relay has failed, at this request or shortly
	// before
	FallThroughs int64
	LastFailure  string // text of the last failure of the relay; "": none
	FailedAt     time.Time
	Paused       bool // whether requests are currently not sent to the relay because it has failed
}

// NewRoute returns the route through a relay. It returns nil if r is nil.
func NewRoute(r *Relay) *Route {
	if r == nil {
		return nil
	}
	return &Route{Relay: r}
}

// Use reports whether the next request may be sent to the relay. The caller must report the result of the request with
// Answered or Failed.
func (r *Route) Use() bool {
	if r.Relay.health.use() && r.health.use() {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.usage.FallThroughs++
	return false
}

// Answered records that the relay has begun to answer a request. If the parameter ended is true, it records that an
// answer is complete.
func (r *Route) Answered(ended bool) {
	r.Relay.health.succeeded()
	r.health.succeeded()
	if !ended {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.usage.Answers++
	}
}

// Failed records that a request to the relay has failed, so that the request is sent to the git server. If the relay
// has not answered, no remote uses it for some time. If it has answered with an error (answered is true), only this
// remote does not use it for some time.
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
