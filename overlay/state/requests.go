package state

// requests are those of the kernel that changed something, the latest of them. One that comes again because nobody lived
// to answer it is found here.
type requests struct {
	ring []request
	next int // the oldest, once the ring is full
}

type request struct {
	id   uint64
	made Node
}

// maxRequests is far more than a kernel has under way at a time.
const maxRequests = 8192

func (r *requests) add(id uint64, made Node) {
	if len(r.ring) < maxRequests {
		r.ring = append(r.ring, request{id, made})
		return
	}
	r.ring[r.next] = request{id, made}
	r.next = (r.next + 1) % maxRequests
}

// each calls emit for all of them, the oldest first.
func (r *requests) each(emit func(id uint64, made Node)) {
	for i := range r.ring {
		at := r.ring[(r.next+i)%len(r.ring)]
		emit(at.id, at.made)
	}
}

// Request reports whether a request made a change, and which node it made; 0: none. It looks at all that are remembered.
func (t *Table) Request(id uint64) (made Node, ok bool) {
	for _, r := range t.requests.ring {
		if r.id == id {
			made, ok = r.made, true
		}
	}
	return made, ok
}

// Requests is how many are remembered.
func (t *Table) Requests() int { return len(t.requests.ring) }

// Requested reports whether a request that is remembered made a node.
func (t *Table) Requested(n Node) bool {
	for _, r := range t.requests.ring {
		if r.made == n {
			return true
		}
	}
	return false
}
