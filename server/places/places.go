// Package places limits what requests do at the same time: how many of them, and how much memory their git processes
// can allocate. Each limit has shares, so that no namespace, repository or token can take all. Requests over a limit
// wait in a queue.
package places

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/git/gitcmd"
)

// ErrBusy means that no place became free in time.
var ErrBusy = errors.New("too many requests do this at the same time")

// Kind is a kind of shares.
type Kind string

// The kinds of shares.
const (
	OfRepo      Kind = "repository"
	OfToken     Kind = "token"
	OfNamespace Kind = "namespace"
)

// Share is a group of requests with a limit of its own.
type Share struct {
	Kind Kind
	ID   string
}

// Of returns the shares of a request to a repository with a token. An empty id has no share.
func Of(namespace, repo, token string) (list []Share) {
	for _, s := range []Share{{OfNamespace, namespace}, {OfRepo, repo}, {OfToken, token}} {
		if s.ID != "" {
			list = append(list, s)
		}
	}
	return list
}

// Options configures Places.
type Options struct {
	Most    int          // places
	MostOf  map[Kind]int // places of each share; a kind that is missing has no limit
	Waiting int          // requests that wait; 0: 4096
	// Patience is the time for which a request waits.
	Patience time.Duration
	Memory   *Memory // for the git processes of requests with a place; nil: no limit for all together
	Class    Class   // part of Memory
}

// Places are places for requests. Requests over a limit wait in the order in which they arrived; one share with many
// requests does not delay the others. Places may be used from any goroutine.
//
// Locks: mu is above that of Memory.
type Places struct {
	o Options

	mu      sync.Mutex
	running int
	of      map[Share]use // of the requests that have a place
	queue   []*waiter     // none of them fits
}

// use is what requests use that have a place.
type use struct {
	places int
	memory int64
}

type waiter struct {
	shares []Share
	size   Size
	start  chan struct{} // closed when the request has its place
	place  *Place        // set before
}

// New returns places that are free.
func New(o Options) *Places {
	o.Waiting = cmp.Or(o.Waiting, 4096)
	p := &Places{o: o, of: map[Share]use{}}
	o.Memory.onRelease(p.admit)
	return p
}

// Parts returns the limits of the shares of a number of places: a namespace gets three quarters, a repository half, and
// a token three eighths, so none can take all.
func Parts(most int) map[Kind]int {
	return map[Kind]int{OfNamespace: max(most*3/4, 1), OfRepo: max(most/2, 1), OfToken: max(most*3/8, 1)}
}

// PartsOfReads is like Parts for requests that keep processors busy. A share gets no more places than make use of the
// processors, so that the requests of others do not become slow.
func PartsOfReads(most int) map[Kind]int {
	parts := Parts(most)
	for kind, n := range map[Kind]int{OfNamespace: 4, OfRepo: 3, OfToken: 2} {
		parts[kind] = min(parts[kind], n*max(runtime.GOMAXPROCS(0), 2))
	}
	return parts
}

// Place is the place of one request.
type Place struct {
	in     *Places
	shares []Share
	memory int64
	once   sync.Once
}

// Memory returns the memory in bytes that each git process of the request can allocate; the argument if the places have
// no limit of it.
func (p *Place) Memory(otherwise int64) int64 { return cmp.Or(p.memory/processes, otherwise) }

// Limit returns a context in which each git process can allocate its part of the memory of the place.
func (p *Place) Limit(ctx context.Context) context.Context {
	return gitcmd.WithMemory(ctx, p.memory/processes)
}

// Release gives the place back. Further calls do nothing.
func (p *Place) Release() {
	p.once.Do(func() { p.in.end(p) })
}

// Enter waits until a request has a place, which counts for all its shares. The caller calls Leave. Enter returns
// ErrBusy if the queue is full, if requests of one of the shares fill half of it, or if the wait takes too long.
func (p *Places) Enter(ctx context.Context, size Size, shares ...Share) (*Place, error) {
	p.mu.Lock()
	if place := p.begin(size, shares); place != nil {
		p.mu.Unlock()
		return place, nil
	}
	if p.full(shares) {
		p.mu.Unlock()
		return nil, ErrBusy
	}
	w := &waiter{shares: shares, size: size, start: make(chan struct{})}
	p.queue = append(p.queue, w)
	p.mu.Unlock()
	timer := time.NewTimer(p.o.Patience)
	defer timer.Stop()
	var err error
	select {
	case <-w.start:
		return w.place, nil
	case <-timer.C:
		err = ErrBusy
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	p.mu.Lock()
	i := slices.Index(p.queue, w)
	if i >= 0 {
		p.queue = slices.Delete(p.queue, i, i+1)
	}
	p.mu.Unlock()
	if i < 0 { // the request was admitted between the end of ctx and this call
		w.place.Release()
	}
	return nil, err
}

// begin returns the place of a request that fits now, and nil otherwise. The caller holds mu, as for full.
func (p *Places) begin(size Size, shares []Share) *Place {
	if p.running >= p.o.Most || slices.ContainsFunc(shares, func(s Share) bool {
		most, limited := p.o.MostOf[s.Kind]
		return limited && p.of[s].places >= most
	}) {
		return nil
	}
	place := &Place{in: p, shares: shares}
	if p.o.Memory != nil {
		room := p.o.Memory.total
		for _, s := range shares {
			if most, limited := p.o.MostOf[s.Kind]; limited && p.of[s].places > 0 {
				room = min(room, p.o.Memory.ofClass()*int64(most)/int64(p.o.Most)-p.of[s].memory)
			}
		}
		if place.memory = p.o.Memory.take(p.o.Class, size, room, p.running); place.memory == 0 {
			return nil
		}
	}
	p.running++
	for _, s := range shares {
		u := p.of[s]
		p.of[s] = use{u.places + 1, u.memory + place.memory}
	}
	return place
}

// full reports whether a request may not wait.
func (p *Places) full(shares []Share) bool {
	if len(p.queue) >= p.o.Waiting {
		return true
	}
	for _, s := range shares {
		if _, limited := p.o.MostOf[s.Kind]; !limited {
			continue
		}
		waiting := 0
		for _, w := range p.queue {
			if slices.Contains(w.shares, s) {
				waiting++
			}
		}
		if waiting >= max(p.o.Waiting/2, 1) {
			return true
		}
	}
	return false
}

// admit gives places to the requests that fit, in the order of the queue.
func (p *Places) admit() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = slices.DeleteFunc(p.queue, func(w *waiter) bool {
		if w.place = p.begin(w.size, w.shares); w.place == nil {
			return false
		}
		close(w.start)
		return true
	})
}

func (p *Places) end(place *Place) {
	p.mu.Lock()
	p.running--
	for _, s := range place.shares {
		u := use{p.of[s].places - 1, p.of[s].memory - place.memory}
		if p.of[s] = u; u.places == 0 {
			delete(p.of, s)
		}
	}
	p.mu.Unlock()
	if place.memory > 0 {
		p.o.Memory.release(p.o.Class, place.memory) // admits requests of these places, too
	} else {
		p.admit()
	}
}

// Running returns the number of requests that have a place.
func (p *Places) Running() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running
}
