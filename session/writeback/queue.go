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
	// Dir is the directory for packs of history that are to be pushed in ModeSeed: the mount's directory below the
	// state directory.
	Dir string
	// Remote is the session remote; nil means that the Repo itself is the session remote, so that nothing is pushed.
	// The caller closes Remote after the Queue.
	Remote *thin.Remote
	// Origin is the mounted remote, from which the queue fetches history that the session remote lacks; if Origin is nil,
	// the queue does not push such history.
	Origin *transport.Remote
	// Store fetches objects of the mounted remote that a push has to contain. Store may be nil.
	Store objects.Provider
	// Base is the way in which the session remote gets the base commits; ModeUnknown means that the queue chooses it at
	// the first push.
	Base Mode
	// BaseURL is the URL of the mounted remote, without secrets; it is empty if other machines cannot read the mounted
	// remote.
	BaseURL string
	// Taken is called when another machine has changed a ref that only this session writes, such as its metadata.
	// Changes that Taken makes to the Repo are pushed at once. Taken must not wait for the Queue, whose goroutine calls
	// it. Taken may be nil.
	Taken func(Taken)
	// Notes changes a notes ref in the mount's git directory from the commit old to the commit merged, unless the user
	// has changed the ref. When Notes is called, the session remote and the Repo have the commit merged. Notes may be
	// nil.
	Notes func(ctx context.Context, ref string, old, merged object.ID) error
	// Tracked is called when a branch of the mounted remote, which the mount has under the same name, is known to have
	// changed from the commit old to the commit now. The zero id means that the branch does not exist. Tracked may be
	// nil.
	Tracked func(ctx context.Context, branch string, old, now object.ID) error
	// Settled waits until no checkpoint is being made, or until ctx ends. The Queue calls it before the first push, so
	// that this push contains the first checkpoint, which may be in progress. Settled may be nil.
	Settled func(ctx context.Context)
	Log     *zap.Logger // logger; nil disables logging
}

// Queue pushes the refs of a Repo to the session remote whenever they change. Its goroutine runs the method run in
// pipeline.go; the methods of this file start it, wait for it and end it. Each part of a Queue is a type with its own
// lock.
//
// Locks: remoteToken is a semaphore that the goroutine holds which exchanges data with the session remote. While a lock
// of a part is held, no other lock is acquired.
type Queue struct {
	o      QueueOptions
	cancel context.CancelFunc
	done   sync.WaitGroup // waits for the queue's goroutine
	// wake has room for one signal, which Wake sends. remoteToken contains a value while a goroutine exchanges data
	// with the session remote.
	wake        chan struct{}
	remoteToken chan struct{}
	drained     bool // whether Drain has taken remoteToken, which it does not release

	conn     connection // connection to the session remote, with counters
	record   record     // the ledger
	report   report     // results of the rounds, for Status
	calls    syncCalls  // the calls of Sync
	moved    movedRefs  // refs that another machine has changed
	seeder   seeder     // pushes base commits
	pipeline *pipeline  // pushes refs; remoteToken protects it
}

// NewQueue starts a queue for o.Repo. It reads the ledger of earlier queues and continues from there. It sends no
// requests itself; only the queue's goroutine does. If o.Remote is nil, the queue has no goroutine and pushes nothing.
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

// newQueue returns a queue with all its parts, but without a ledger and a goroutine.
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

// Wake makes the queue start a round at once. It is called after changes outside of the Repo, for example when there is
// a new credential or the network is reachable again. It does not block.
func (q *Queue) Wake() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// Drain waits until a push in progress has ended, and prevents further pushes. It is called before a session is deleted
// on the session remote, because the server may make the changes of a push although Close has cancelled it. The caller
// must call Close next. If ctx ends, Drain returns, and Close cancels the push.
func (q *Queue) Drain(ctx context.Context) {
	if q.o.Remote == nil {
		return
	}
	if _, err := q.take(ctx); err == nil {
		q.drained = true
	}
}

// take waits for remoteToken until ctx ends. It returns a function that releases remoteToken.
func (q *Queue) take(ctx context.Context) (release func(), err error) {
	select {
	case q.remoteToken <- struct{}{}:
		return func() { <-q.remoteToken }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Close cancels a push in progress and waits for the queue's goroutine. Refs that were not pushed are pushed by the
// next queue of the Repo. Calls of Sync return ErrClosed. Close may be called several times, and always returns nil.
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

// recordBase adds base commits to the ledger that the session remote is known to have. The caller must not hold
// remoteToken.
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

// Sync waits until the session remote has confirmed the present object ids of all refs of the Repo, or newer ones. A
// diverged ref counts as pushed, because its object is on the session remote under another name; Status lists these
// refs. Sync returns an error if a ref cannot be pushed because another session has changed it (ErrMoved), because the
// session remote refuses it (ErrRefused), or because access is denied. While the session remote cannot be reached, Sync
// waits for a retry until ctx ends, and then returns an error that contains the last failure. Sync calls progress,
// which may be nil, every 200 ms.
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
		answered, outcome := q.calls.isAnswered(mine)
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

// unfinished returns an error that lists the refs that a successful round could not push, because another session has
// changed them or the session remote refuses them. It returns nil if there are none.
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

// Acknowledged returns the last object id of a ref of the Repo that the session remote has confirmed, or the zero id if
// the ref is not known to exist there.
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
	// If id is zero, no checkpoint of the segment has been pushed. If id is p.Commit, p is the last checkpoint that was
	// pushed.
	if id.IsZero() || id == p.Commit {
		return !id.IsZero()
	}
	newest, err := q.o.Repo.CheckpointAt(id)
	// The checkpoints of a segment form one chain in the order of their IDs. So the session remote has p if the ID of the
	// last pushed checkpoint is not smaller than the ID of p.
	return err == nil && newest.ID >= p.ID
}
