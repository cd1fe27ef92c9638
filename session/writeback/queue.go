package writeback

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/session/writeback/objects"
)

// QueueOptions configures a Queue.
type QueueOptions struct {
	// Repo is the repository whose refs are pushed.
	Repo *session.Repo
	// Dir is the directory in which packs of history wait to be pushed in ModeSeed. It is the mount's directory below the state
	// directory.
	Dir string
	// Remote is the session remote; nil means that the Repo itself is the session remote, and nothing is pushed. The caller
	// closes Remote after it has closed the Queue.
	Remote *thin.Remote
	// Origin is the mounted remote, from which the queue fetches history that the session remote lacks; if Origin is nil, the
	// queue does not push such history.
	Origin *transport.Remote
	// Store fetches objects of the mounted remote that a push has to contain. Store may be nil.
	Store objects.Provider
	// Base is the way in which the session remote gets the base commits; with ModeUnknown, the queue chooses a way at the first
	// push.
	Base Mode
	// BaseURL is the URL of the mounted remote, without secrets; it is empty if other machines cannot read the mounted remote.
	BaseURL string
	// Taken is called when another machine moved a ref that only this session writes, such as its metadata. The changes
	// that Taken makes to the Repo are pushed at once. The Queue's goroutine calls Taken, so Taken must not wait for the Queue.
	// Taken may be nil.
	Taken func(Taken)
	// Notes changes a notes ref in the mount's git directory from the commit old to the commit merged, unless the user has moved
	// the ref away from old. When Notes is called, the session remote and the Repo have the commit merged. Notes may be nil.
	Notes func(ctx context.Context, ref string, old, merged object.ID) error
	// Tracked is called for a branch of the mount that the mounted remote has under the same name, when it is known to have the value now
	// there. The value was that of the parameter old before; zero values mean that the branch does not exist. Tracked may be nil.
	Tracked func(ctx context.Context, branch string, old, now object.ID) error
	// Settled waits until no checkpoint is being made, or ctx ends. The first push waits for it, because a session gets its repository, and
	// so its Queue, with the first checkpoint: one push then contains both. Settled may be nil.
	Settled func(ctx context.Context)
	Log     *zap.Logger // logger; nil disables logging
}

// Queue pushes the refs of a Repo to the session remote whenever they move. Its goroutine runs the method run, which
// pipeline.go describes from top to bottom; the methods of this file start it, wait for it and end it. Each part of a
// Queue is a separate type with its own lock.
//
// Locks: remoteToken is a semaphore, held by the goroutine that exchanges data with the session remote. The locks of the parts are
// leaf locks (no other lock is taken while one of them is held).
type Queue struct {
	o      QueueOptions
	cancel context.CancelFunc
	done   sync.WaitGroup // waits for the queue's goroutine
	// wake has room for one signal, which Wake sends. remoteToken, the semaphore, holds one token while a goroutine
	// exchanges data with the session remote.
	wake        chan struct{}
	remoteToken chan struct{}
	drained     bool // Drain has taken remoteToken for good

	conn     connection // connection to the session remote, with counters
	record   record     // the ledger: the refs and base commits that the session remote is known to have
	report   report     // results of the rounds, for Status
	calls    syncCalls  // the calls of Sync
	moved    movedRefs  // refs that another machine has moved
	seeder   seeder     // pushes base commits
	pipeline *pipeline  // pushes refs; remoteToken protects it
}

// NewQueue starts a queue for o.Repo. It reads the ledger of earlier queues, the file that records which values they have pushed,
// and continues from there. NewQueue does no network I/O; only the queue's goroutine does. If o.Remote is nil, the queue has no
// goroutine and pushes nothing.
func NewQueue(o QueueOptions) (*Queue, error) {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	q := newQueue(o)
	ctx, cancel := context.WithCancel(context.Background())
	q.cancel = cancel
	if o.Remote == nil {
		return q, nil
	}
	l, err := readLedger(o.Repo, o.Remote.URL())
	if err != nil {
		q.cancel()
		return nil, err
	}
	q.record.ledger, q.conn.before = l, l.traffic
	// An earlier queue chose ModeThin, in which the refs are stored in a container, a single ref of the session remote.
	// The remote has to use the container from the first push.
	if l.mode == ModeThin {
		o.Remote.UseContainer()
	}
	// The last queue of this Repo may have left refs pending, so start with a round.
	q.Wake()
	q.done.Go(func() { q.run(ctx) })
	return q, nil
}

// newQueue returns a queue with its parts, without a ledger and without a goroutine.
func newQueue(o QueueOptions) *Queue {
	q := &Queue{
		o: o, wake: make(chan struct{}, 1), remoteToken: make(chan struct{}, 1),
		conn:   connection{repo: o.Repo, remote: o.Remote, origin: o.Origin},
		report: report{session: o.Repo.Session(), log: o.Log, next: make(chan struct{})},
	}
	q.record = record{conn: &q.conn, report: &q.report, log: o.Log}
	q.moved.log = o.Log
	q.seeder = seeder{conn: &q.conn, dir: o.Dir, log: o.Log, record: q.recordBase, changed: q.report.wakeWaiters}
	q.pipeline = q.newPipeline()
	return q
}

// Wake makes the queue start a round at once. It is called after a change outside of the Repo, for example when there is a new
// credential or the network is reachable again. It does not block.
func (q *Queue) Wake() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// Drain waits until a push in progress has ended, and prevents later ones. The caller must call Close next. The session remote may apply a
// push after Close has cancelled it, so a session that is to be deleted there is drained first. If ctx ends, Drain returns, and Close
// cancels the push.
func (q *Queue) Drain(ctx context.Context) {
	if q.o.Remote == nil {
		return
	}
	if _, err := q.take(ctx); err == nil {
		q.drained = true
	}
}

// take waits for remoteToken until ctx is done. It returns the function that releases remoteToken.
func (q *Queue) take(ctx context.Context) (release func(), err error) {
	select {
	case q.remoteToken <- struct{}{}:
		return func() { <-q.remoteToken }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Close cancels a push in progress and waits for the queue's goroutine. Pending refs stay pending; the next queue of the
// Repo pushes them. Calls of Sync end with ErrClosed. Close may be called several times, and always returns nil.
func (q *Queue) Close() error {
	first := q.report.close()
	q.cancel()
	q.done.Wait()
	if first {
		if !q.drained {
			// A goroutine that holds remoteToken releases it soon, because Close has cancelled the context of that goroutine.
			q.remoteToken <- struct{}{}
		}
		if q.o.Remote != nil {
			q.record.keepTraffic()
		}
		q.report.wakeWaiters()
	}
	return nil
}

// recordBase adds base commits to the ledger after the session remote has confirmed them. The caller must not hold remoteToken.
func (q *Queue) recordBase(ctx context.Context, ids []object.ID) error {
	// The push was made without remoteToken, so that other goroutines could use the session remote.
	release, err := q.take(ctx)
	if err != nil {
		return err
	}
	defer release()
	l := q.record.now().clone()
	local, err := localRefs(l, q.o.Repo)
	if err != nil {
		return err
	}
	for _, id := range ids {
		l.baseCommits[id] = true
	}
	q.record.keep(l, local)
	return nil
}

// Sync waits until the session remote has confirmed that it has the values that the refs of the Repo had when Sync was
// called, or newer values. A diverged ref counts as pushed, because its value is on the session remote under another
// name; Status lists such refs. Sync returns an error if a ref cannot be pushed because another session moved it
// (ErrMoved), the session remote refused it (ErrRefused), or access is denied. While the session remote cannot be
// reached, Sync waits for a retry until ctx is done, and then returns an error that contains the last failure. Sync
// calls progress, which may be nil, every 200 ms.
func (q *Queue) Sync(ctx context.Context, progress func(Status)) error {
	if q.o.Remote == nil {
		return nil
	}
	mine := q.calls.ask()
	q.Wake()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		// Get the channel changed before the answer is read, so that no change is missed.
		changed, closed := q.report.changed()
		answered, outcome := q.calls.answeredTo(mine)
		switch {
		case answered && outcome != nil:
			return outcome
		// The round as a whole has succeeded, but the session remote may have refused some refs.
		case answered:
			return q.unfinished()
		case closed:
			return fmt.Errorf("sync: %w", ErrClosed)
		}
		select {
		case <-changed:
		case <-tick.C:
			if progress != nil {
				progress(q.Status())
			}
		case <-ctx.Done():
			err := fmt.Errorf("sync: %w", context.Cause(ctx))
			if st := q.Status(); st.Failure != nil {
				err = fmt.Errorf("%w; %w", err, st.Failure)
			}
			return err
		}
	}
}

// unfinished returns an error for each ref that a successful round could not push, because another session moved the ref or the
// session remote refused it. It returns nil if all refs were pushed.
func (q *Queue) unfinished() error {
	st := q.Status()
	var errs []error
	for _, ref := range st.Moved {
		errs = append(errs, fmt.Errorf("push %s: %w", ref, ErrMoved))
	}
	for _, text := range st.Refused {
		errs = append(errs, fmt.Errorf("push %s: %w", text, ErrRefused))
	}
	return errors.Join(errs...)
}

// Acknowledged returns the last value of a ref of the Repo that the session remote has confirmed, or the zero id if the ref is
// not known to exist there.
func (q *Queue) Acknowledged(ref string) object.ID {
	if q.o.Remote == nil {
		id, err := q.o.Repo.Ref(ref)
		if err != nil {
			return object.ID{}
		}
		return id
	}
	return q.record.now().known(ref)
}

// Has reports whether the session remote is known to have the checkpoint p.
func (q *Queue) Has(p session.Checkpoint) bool {
	id := q.Acknowledged(session.SegmentRef(p.Session, p.Lane, p.Segment))
	// If id is zero, no checkpoint of the segment has been pushed. If id is p.Commit, p is the last checkpoint that was pushed.
	if id.IsZero() || id == p.Commit {
		return !id.IsZero()
	}
	newest, err := q.o.Repo.CheckpointAt(id)
	// The checkpoints of a segment form one chain in the order of their IDs. So the session remote has p if the ID of the last pushed
	// checkpoint is not smaller than the ID of p.
	return err == nil && newest.ID >= p.ID
}
