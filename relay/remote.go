package relay

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/relay/plan"
)

const (
	maxRemotes = 128 // whose state is in memory
	maxPlans   = 6   // of one remote; clients that read older commits are served by the git server until their snap is read again
	// maxListed is the maximum number of files in all plans in memory, which need up to 100 bytes for each.
	maxListed = 8 << 20
	// refusalTime is the time for which a remote that refuses requests for blobs is not sent such requests of the relay's own.
	refusalTime = time.Minute
)

// remote is the state of a remote.
//
// Locks: mu is a leaf.
type remote struct {
	relay  *Relay
	url    *url.URL
	prefix string // of the keys of its files

	mu       sync.Mutex
	used     time.Time
	busy     int // flights
	filter   bool
	sizes    bool // the git server reports sizes of objects
	known    bool // filter and sizes are known
	plans    []*planned
	scanned  *sync.Once // reads the plans of the snaps on the local disk
	snaps    map[string]*snapFlight
	groups   map[string]*groupFlight
	tables   map[string]*remoteTable // of groups in the object store
	refusing time.Time               // the remote does not get requests for blobs before this time
}

// remoteOf returns the state of a remote.
func (r *Relay) remoteOf(u *url.URL) *remote {
	sum := sha256.Sum256([]byte(u.String()))
	key := hex.EncodeToString(sum[:])
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.remotes[key]
	if m == nil {
		if len(r.remotes) >= maxRemotes {
			r.forgetRemote()
		}
		m = &remote{relay: r, url: u, prefix: "v1/" + key + "/", scanned: new(sync.Once), snaps: map[string]*snapFlight{},
			groups: map[string]*groupFlight{}, tables: map[string]*remoteTable{}}
		r.remotes[key] = m
	}
	m.mu.Lock()
	m.used = time.Now()
	m.mu.Unlock()
	return m
}

// forgetRemote removes the remote that was not used for the longest time from memory. Its files stay. The caller holds r.mu.
func (r *Relay) forgetRemote() {
	oldest, at := "", time.Now()
	for key, m := range r.remotes {
		m.mu.Lock()
		if m.busy == 0 && m.used.Before(at) {
			oldest, at = key, m.used
		}
		m.mu.Unlock()
	}
	delete(r.remotes, oldest)
}

// name returns the URL for logs, without the query, which may be a secret.
func (m *remote) name() string {
	u := *m.url
	u.RawQuery = ""
	return u.String()
}

// learn records the capabilities of the git server.
func (m *remote) learn(caps map[string]string) {
	fetch, ok := caps["fetch"]
	if !ok {
		return
	}
	_, sizes := caps["object-info"]
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known, m.sizes, m.filter = true, sizes, slices.Contains(strings.Fields(fetch), "filter")
}

// filters reports whether the git server supports filters, as far as it is known.
func (m *remote) filters() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.filter || !m.known
}

// reportsSizes reports whether the git server reports sizes of objects.
func (m *remote) reportsSizes() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sizes
}

// planned is a plan with the sizes of its blobs, if they are known. It does not change.
type planned struct {
	*plan.Plan
	sizes map[object.ID]int64
}

// size returns the size of a blob, or an estimate if it is not known.
func (p *planned) size(id object.ID) int64 {
	if n, ok := p.sizes[id]; ok {
		return n
	}
	return plan.AssumedSize
}

// add adds a plan, as the one that was used last. If there are too many files in all plans, those of the remotes that were not used for
// the longest time are forgotten; they are read from the local disk when they are needed.
func (m *remote) add(p *planned) {
	m.mu.Lock()
	m.plans = slices.DeleteFunc(m.plans, func(q *planned) bool { return q.Want == p.Want })
	m.plans = append([]*planned{p}, m.plans...)
	m.plans = m.plans[:min(len(m.plans), maxPlans)]
	m.mu.Unlock()
	m.relay.mu.Lock()
	defer m.relay.mu.Unlock()
	m.relay.forgetPlans(m)
}

// forgetPlans removes plans until maxListed is kept, but not those of the remote keep. The caller holds r.mu.
func (r *Relay) forgetPlans(keep *remote) {
	for {
		listed, oldest, at := 0, (*remote)(nil), time.Now()
		for _, m := range r.remotes {
			m.mu.Lock()
			for _, p := range m.plans {
				listed += p.Files()
			}
			if m != keep && len(m.plans) > 0 && m.used.Before(at) {
				oldest, at = m, m.used
			}
			m.mu.Unlock()
		}
		if listed <= maxListed || oldest == nil {
			return
		}
		oldest.mu.Lock()
		oldest.plans, oldest.scanned = nil, new(sync.Once)
		oldest.mu.Unlock()
	}
}

// find returns a plan for which match returns true, that which was used last. It returns nil if there is none.
func (m *remote) find(match func(*planned) bool) *planned {
	m.mu.Lock()
	all := slices.Clone(m.plans)
	m.mu.Unlock()
	for i, p := range all {
		if match(p) {
			if i > 0 {
				m.add(p)
			}
			return p
		}
	}
	return nil
}

// await returns a plan for which match returns true. If there is none, it reads the plans of snaps that an earlier process has stored, and
// waits for snaps in flight, which may be the reason for the request.
func (m *remote) await(ctx context.Context, match func(*planned) bool) (*planned, error) {
	for scanned := false; ; {
		m.mu.Lock()
		var running *snapFlight
		for _, f := range m.snaps {
			running = f
		}
		scan := m.scanned
		m.mu.Unlock()
		if p := m.find(match); p != nil {
			return p, nil
		}
		switch {
		case running != nil:
			select {
			case <-running.ended:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		case !scanned:
			scan.Do(func() { m.scan(m.relay.ctx) })
			scanned = true
		default:
			return nil, nil
		}
	}
}

// scan reads the plans of the snaps on the local disk that were used last.
func (m *remote) scan(ctx context.Context) {
	keys := m.relay.shelf.List(m.prefix + "snap/")
	keys = keys[:min(len(keys), maxPlans)]
	slices.Reverse(keys) // the last one that is added is the first in the list
	for _, key := range keys {
		if id, err := object.ParseID(key[strings.LastIndexByte(key, '/')+1:]); err == nil {
			if f, ok := m.relay.shelf.Local(key); ok {
				if p, err := m.read(ctx, caller{}, f, id); err == nil {
					m.add(p)
				}
				f.Close()
			}
		}
	}
}

// refuse records that the git server refuses requests for blobs by their ids. refuses reports whether it has done so shortly before.
func (m *remote) refuse() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refusing = time.Now().Add(refusalTime)
}

func (m *remote) refuses() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Now().Before(m.refusing)
}
