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
	maxRemotes = 128 // maximum number of remotes whose state is in memory
	// maximum number of plans of one remote in memory; requests for other commits are passed until their snap is read
	// again
	maxPlans = 6
	// maxListed is the maximum number of files in all plans in memory. A file needs up to 100 bytes.
	maxListed = 8 << 20
	// refusalTime is the time for which the relay itself requests no blobs from a remote that has refused such a
	// request.
	refusalTime = time.Minute
)

// remote is the state of one remote.
//
// Locks: a goroutine that holds mu acquires no other lock.
type remote struct {
	relay  *Relay
	url    *url.URL
	prefix string // prefix of the keys of its files

	mu       sync.Mutex
	used     time.Time
	busy     int // number of flights in progress
	filter   bool
	sizes    bool // true if the git server reports the sizes of objects
	known    bool // true if filter and sizes are known
	plans    []*planned
	scanned  *sync.Once // makes sure that the plans of the snaps on the local disk are read once
	snaps    map[string]*snapFlight
	groups   map[string]*groupFlight
	tables   map[string]*remoteTable // tables of groups in the object store, by key
	refusing time.Time               // time before which the relay requests no blobs from the remote
}

// remoteOf returns the state of the remote with this URL, and creates it if it is not in memory.
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

// forgetRemote removes the least recently used remote from memory. Its files on disk are kept. The caller holds r.mu.
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

// name returns the URL for logs, without the query, which may contain a secret.
func (m *remote) name() string {
	u := *m.url
	u.RawQuery = ""
	return u.String()
}

// learn records the capabilities that the git server has listed.
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

// filters reports whether the git server supports filters. It returns false while that is not known.
func (m *remote) filters() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.filter || !m.known
}

// reportsSizes reports whether the git server reports the sizes of objects.
func (m *remote) reportsSizes() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sizes
}

// planned is a plan with the sizes of its blobs in bytes, if they are known. It does not change.
type planned struct {
	*plan.Plan
	sizes map[object.ID]int64
}

// size returns the size of a blob in bytes, or an estimate if the size is not known.
func (p *planned) size(id object.ID) int64 {
	if n, ok := p.sizes[id]; ok {
		return n
	}
	return plan.AssumedSize
}

// add adds a plan as the most recently used one. If the plans in memory contain too many files, plans of the least
// recently used remotes are removed from memory; they are read from the local disk when they are needed.
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

// forgetPlans removes plans from memory until they contain at most maxListed files. It does not remove plans of the
// remote keep. The caller holds r.mu.
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

// find returns the most recently used plan for which match returns true, or nil if there is none.
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

// await returns a plan for which match returns true, or nil if there is none. If no plan in memory matches, it reads
// the plans of snaps that an earlier process has stored, and waits for the flights of snaps in progress, because one of
// them may contain the requested commit.
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

// scan reads the plans of the most recently used snaps on the local disk.
func (m *remote) scan(ctx context.Context) {
	keys := m.relay.shelf.List(m.prefix + "snap/")
	keys = keys[:min(len(keys), maxPlans)]
	slices.Reverse(keys) // the plan that is added last is the first in the list, so it must be the most recent one
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

// refuse records that the git server refuses requests for blobs by their ids. refuses reports whether that has happened
// within refusalTime.
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
