// Package upkeep does the background work of a server on its repositories: it joins packs, collects garbage, and
// removes cache entries that have expired, packs that no repository lists, unneeded replicas, and old events.
//
// Any number of nodes do this work. Leases keep two nodes from doing the same work at the same time, which would be
// harmless but useless: every result becomes visible by one transaction, which fails if the packs that it replaces are
// not listed any more, or if a push may need an object that was removed. A node that dies leaves packs that no
// repository lists.
//
// Objects that no ref reaches are garbage. The first collection that finds some moves them to a pack of their own, with
// the time in a file .mtimes (a cruft pack of git); a collection after the grace period removes them. Packs that
// several repositories list stay as they are.
package upkeep

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/clock"
	"github.com/artifactfs/artifactfs/server/objects"
	"github.com/artifactfs/artifactfs/server/places"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/replica"
)

// Options configures a Worker. Durations and numbers that are 0 have the defaults of Default.
type Options struct {
	Records  *records.DB
	Objects  objects.Store
	Replicas *replica.Set
	Log      *zap.Logger
	Node     string // name of the process in leases, unique among all nodes
	Account  string // id of the account in events
	// MaxEntries is the maximum size in bytes of the values of all cache entries of a repository; 0: no limit.
	MaxEntries int64
	// Retention applies the rules of namespaces to their sessions, which it does under leases of its own. It is called
	// once an hour; nil: never.
	Retention func(ctx context.Context) error
	Places    *places.Places // for the git processes of a round; nil: no limit
	Times
}

// Times are the durations and numbers that tests change.
type Times struct {
	Interval time.Duration // time between two rounds
	Crowd    int           // number of unshared packs of a repository from which on they are joined
	Large    int           // number of objects from which on a pack gets a bitmap
	Check    time.Duration // time between two searches for garbage in a repository that changes
	Grace    time.Duration // time for which garbage is kept
	Unused   time.Duration // time for which a pack that no repository lists is kept; it must be longer than a push takes
	History  time.Duration // time for which events and audit entries are kept
	// time after which another node can work on a repository whose node died; renewed three times within it
	Lease time.Duration
}

// Default returns the times of a server.
func Default() Times {
	return Times{
		Interval: time.Minute, Crowd: 11, Large: defaultLarge, Check: 12 * time.Hour, Grace: 14 * 24 * time.Hour,
		Unused:  24 * time.Hour,
		History: 90 * 24 * time.Hour, Lease: defaultLease,
	}
}

const (
	batch        = 100 // maximum number of repositories or packs of one kind in a round
	defaultLease = 2 * time.Minute
	jobLimit     = time.Hour // time limit for the work on one repository
)

// Worker does the work of one node.
type Worker struct {
	o   Options
	now func() time.Time // time.Now except in tests

	dropped time.Time // time of the last call of drop; only Round uses it
	kept    time.Time // time of the last call of keep; only Round uses it
}

// New returns a Worker.
func New(o Options) *Worker {
	d := Default()
	if o.Times != (Times{}) {
		d = o.Times
	}
	if d.Large <= 0 {
		d.Large = defaultLarge
	}
	if d.Lease <= 0 {
		d.Lease = defaultLease
	}
	o.Times = d
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	if o.Node == "" {
		o.Node = records.NewID()
	}
	return &Worker{o: o, now: time.Now}
}

// Run works until ctx ends.
func (w *Worker) Run(ctx context.Context) {
	for clock.Wait(ctx, w.o.Interval) {
		if err := w.placed(ctx); err != nil && ctx.Err() == nil {
			w.o.Log.Warn("could not do all upkeep", zap.Error(err))
		}
	}
}

// placed waits for a place and does a round.
func (w *Worker) placed(ctx context.Context) error {
	if w.o.Places == nil {
		return w.Round(ctx)
	}
	place, err := w.o.Places.Enter(ctx, places.Large)
	if err != nil {
		return err
	}
	defer place.Release()
	return w.Round(place.Limit(ctx))
}

// Round does all work that is due, once.
func (w *Worker) Round(ctx context.Context) error {
	return errors.Join(
		w.once(ctx, "bitmaps", w.indexAll),
		w.repackAll(ctx),
		w.collectAll(ctx),
		w.once(ctx, "sweep", w.sweep),
		w.drop(ctx),
		w.keep(ctx),
		w.o.Replicas.Prune(ctx),
	)
}

// drop removes old events, audit entries and tokens, once an hour, because it reads whole tables.
func (w *Worker) drop(ctx context.Context) error {
	now := w.now()
	if now.Sub(w.dropped) < time.Hour {
		return nil
	}
	w.dropped = now
	return w.once(ctx, "history",
		func(ctx context.Context) error { return w.o.Records.Events.Drop(ctx, now.Add(-w.o.History)) })
}

// keep applies the rules of namespaces, once an hour.
func (w *Worker) keep(ctx context.Context) error {
	now := w.now()
	if w.o.Retention == nil || now.Sub(w.kept) < time.Hour {
		return nil
	}
	w.kept = now
	return w.o.Retention(ctx)
}

// each does a job on repositories, except those on which another node is working.
func (w *Worker) each(ctx context.Context, what string, ids []string,
	job func(ctx context.Context, id string) error) error {
	var failed []error
	for _, id := range ids {
		if ctx.Err() != nil {
			break
		}
		err := w.once(ctx, what+"/"+id, func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, jobLimit)
			defer cancel()
			return job(ctx, id)
		})
		switch {
		case errors.Is(err, records.ErrNotFound), errors.Is(err, records.ErrChanged):
			// The repository was deleted, or changed by another node or by a push. A later round finds the work that remains.
		case err != nil:
			failed = append(failed, fmt.Errorf("%s repository %s: %w", what, id, err))
		}
	}
	return errors.Join(failed...)
}

// once does a job while it holds a lease. It does nothing if another node has the lease.
func (w *Worker) once(ctx context.Context, name string, job func(ctx context.Context) error) error {
	name = "upkeep/" + name
	acquired, err := w.acquire(ctx, name)
	if err != nil || !acquired {
		return err
	}
	inner, cancel := context.WithCancel(ctx)
	renewed := make(chan struct{})
	go func() {
		defer close(renewed)
		for clock.Wait(inner, w.o.Lease/3) {
			if held, err := w.acquire(inner, name); err != nil || !held {
				cancel() // the lease is lost, so another node may begin the same work
			}
		}
	}()
	err = job(inner)
	cancel()
	<-renewed
	release, end := context.WithTimeout(context.WithoutCancel(ctx), w.o.Lease/3)
	defer end()
	return errors.Join(err, w.o.Records.Leases.Release(release, name, w.o.Node))
}

// acquire takes or renews a lease. It fails before the lease can have ended if the database does not answer.
func (w *Worker) acquire(ctx context.Context, name string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, w.o.Lease/3)
	defer cancel()
	return w.o.Records.Leases.Acquire(ctx, name, w.o.Node, w.o.Lease)
}

// sweep removes packs that no repository lists.
func (w *Worker) sweep(ctx context.Context) error {
	before := w.now().Add(-w.o.Unused)
	for {
		packs, err := w.o.Records.Packs.Unused(ctx, before, batch)
		if err != nil {
			return err
		}
		for _, p := range packs {
			if err := w.remove(ctx, p, before); err != nil {
				return err
			}
		}
		if len(packs) < batch {
			return nil
		}
	}
}

// remove removes a pack that no repository has listed since a time. If the process dies in the middle, the record
// remains.
func (w *Worker) remove(ctx context.Context, p records.Pack, before time.Time) error {
	condemned, err := w.o.Records.Packs.Condemn(ctx, p.ID, before)
	if err != nil || !condemned {
		return err
	}
	for _, x := range p.Extensions {
		if err := w.o.Objects.Delete(ctx, p.Key(x)); err != nil {
			return err
		}
	}
	return w.o.Records.Packs.Forget(ctx, p.ID)
}
