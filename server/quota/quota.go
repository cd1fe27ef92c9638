// Package quota limits what each namespace stores, and how many requests it makes.
//
// What a namespace stores is measured from the records, so it is right after a crash, a removal and a collection of
// garbage, and needs no counters. It is measured again when it is older than fresh; until then, what this node adds is
// counted. So several nodes together can exceed a quota by what they store in this time, and requests are counted by
// each node for itself.
//
// Locks: Keeper.mu is a leaf.
package quota

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/artifactfs/artifactfs/internal/metrics"
	"github.com/artifactfs/artifactfs/server/records"
)

// Limits are the quotas of each namespace. Zero means no limit.
type Limits struct {
	records.Amounts
	Requests int64 // to the REST API and the page, and of git, in a minute
}

// Exceeded is the error of what would exceed a quota.
type Exceeded struct {
	What string // bytes, repositories, refs, requests
	Most int64
}

func (e Exceeded) Error() string {
	if e.What == requests {
		return fmt.Sprintf("the namespace has made its %d requests of this minute, try again later", e.Most)
	}
	return fmt.Sprintf("the namespace would exceed its quota of %d %s", e.Most, e.What)
}

// Status returns the status of HTTP: 429 for requests, which can be repeated later, and 403 for what is stored.
func (e Exceeded) Status() int {
	if e.What == requests {
		return http.StatusTooManyRequests
	}
	return http.StatusForbidden
}

// The kinds of quotas.
const (
	bytes        = "bytes"
	repositories = "repositories"
	refs         = "refs"
	requests     = "requests"
)

var kinds = [...]string{bytes, repositories, refs, requests}

// fresh is the time for which a measurement is used.
const fresh = 5 * time.Second

// most is the number of namespaces that are remembered.
const most = 10_000

// Keeper applies quotas. A nil Keeper allows everything.
type Keeper struct {
	limits  Limits
	measure func(ctx context.Context, namespace string) (records.Amounts, error)
	now     func() time.Time
	refused [len(kinds)]atomic.Int64

	mu         sync.Mutex
	namespaces map[string]*state // by the name in lower case
}

// state is what is known of a namespace.
type state struct {
	used     records.Amounts
	measured time.Time
	minute   int64 // of requests
	requests int64
}

// New returns a Keeper, nil if there are no limits.
func New(db *records.DB, l Limits) *Keeper {
	if l == (Limits{}) {
		return nil
	}
	return &Keeper{limits: l, measure: db.Namespaces.Amounts, now: time.Now, namespaces: map[string]*state{}}
}

// Limits returns the quotas of a namespace.
func (k *Keeper) Limits() Limits {
	if k == nil {
		return Limits{}
	}
	return k.limits
}

// of returns the state of a namespace. The caller holds mu.
func (k *Keeper) of(namespace string) *state {
	name := strings.ToLower(namespace)
	s := k.namespaces[name]
	if s == nil {
		if len(k.namespaces) >= most {
			clear(k.namespaces)
		}
		s = &state{}
		k.namespaces[name] = s
	}
	return s
}

// Request counts a request, and returns an error of type Exceeded if the namespace has made too many in this minute.
func (k *Keeper) Request(namespace string) error {
	if k == nil || k.limits.Requests == 0 || namespace == "" {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.of(namespace)
	if minute := k.now().Unix() / 60; s.minute != minute {
		s.minute, s.requests = minute, 0
	}
	if s.requests++; s.requests > k.limits.Requests {
		return k.refuse(requests, k.limits.Requests)
	}
	return nil
}

// Add returns an error of type Exceeded if the namespace stores too much with more. Otherwise more counts as stored.
// What is negative or zero is never refused, so that users can make room.
func (k *Keeper) Add(ctx context.Context, namespace string, more records.Amounts) error {
	if k == nil || k.limits.Amounts == (records.Amounts{}) {
		return nil
	}
	k.mu.Lock()
	stale := k.now().Sub(k.of(namespace).measured) > fresh
	k.mu.Unlock()
	if stale {
		begin := k.now()
		used, err := k.measure(ctx, namespace)
		if err != nil {
			return err
		}
		k.mu.Lock()
		s := k.of(namespace)
		s.used, s.measured = used, begin
		k.mu.Unlock()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.of(namespace)
	for _, q := range []struct {
		what             string
		limit, used, add int64
	}{
		{bytes, k.limits.Bytes, s.used.Bytes, more.Bytes},
		{repositories, k.limits.Repos, s.used.Repos, more.Repos},
		{refs, k.limits.Refs, s.used.Refs, more.Refs},
	} {
		if q.limit != 0 && q.add > 0 && q.used+q.add > q.limit {
			return k.refuse(q.what, q.limit)
		}
	}
	s.used.Bytes += more.Bytes
	s.used.Repos += more.Repos
	s.used.Refs += more.Refs
	return nil
}

func (k *Keeper) refuse(what string, limit int64) error {
	for i, kind := range kinds {
		if kind == what {
			k.refused[i].Add(1)
		}
	}
	return Exceeded{what, limit}
}

// Metrics writes the number of refusals.
func (k *Keeper) Metrics(w *metrics.Writer) {
	w.Family("artifactfs_server_quota_refusals_total", metrics.Counter,
		"Requests and changes that were refused by a quota of a namespace.")
	for i, kind := range kinds {
		n := int64(0)
		if k != nil {
			n = k.refused[i].Load()
		}
		w.Sample(float64(n), metrics.Label{Name: "quota", Value: kind})
	}
}

// Set parses quotas, such as bytes=10000000000,repositories=1000,refs=100000,requests=6000.
func (l *Limits) Set(text string) error {
	fields := map[string]*int64{bytes: &l.Bytes, repositories: &l.Repos, refs: &l.Refs, requests: &l.Requests}
	for part := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(part, "=")
		n, err := strconv.ParseInt(value, 10, 64)
		if fields[name] == nil || err != nil || n <= 0 {
			return fmt.Errorf("invalid quota %q: want bytes, repositories, refs or requests, =, and a number above 0", part)
		}
		*fields[name] = n
	}
	return nil
}

// String implements pflag.Value.
func (l *Limits) String() string { return "" }

// Type implements pflag.Value.
func (l *Limits) Type() string { return "QUOTAS" }
