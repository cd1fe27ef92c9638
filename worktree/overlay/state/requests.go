package state

// requests holds the latest requests of the kernel that changed something. If the process dies before it has replied to
// a request, the kernel sends the request again. The next process then finds the request here, and does not make the
// change twice.
type requests struct {
	ring []request
	next int // index of the oldest request in ring, once the ring is full
}

// request is one request of the kernel, with the node that it created, or 0 if it created none.
type request struct {
	id   uint64
	made Node
}

// maxRequests is the capacity of the ring. It is far above the number of requests that a kernel has in flight.
const maxRequests = 8192

// add records a request. If the ring is full, the request replaces the oldest one.
func (r *requests) add(id uint64, made Node) {
	if len(r.ring) < maxRequests {
		r.ring = append(r.ring, request{id, made})
		return
	}
	r.ring[r.next] = request{id, made}
	r.next = (r.next + 1) % maxRequests
}

// each calls emit for all recorded requests, the oldest first.
func (r *requests) each(emit func(id uint64, made Node)) {
	for i := range r.ring {
		at := r.ring[(r.next+i)%len(r.ring)]
		emit(at.id, at.made)
	}
}

// Request reports whether the request with this ID made a change, and returns the node that the request created, or 0
// if it created none. It searches all recorded requests.
func (t *Table) Request(id uint64) (made Node, ok bool) {
	for _, r := range t.requests.ring {
		if r.id == id {
			made, ok = r.made, true
		}
	}
	return made, ok
}

// Requests returns the number of recorded requests.
func (t *Table) Requests() int { return len(t.requests.ring) }

// Requested reports whether a recorded request created node n.
func (t *Table) Requested(n Node) bool {
	for _, r := range t.requests.ring {
		if r.made == n {
			return true
		}
	}
	return false
}
