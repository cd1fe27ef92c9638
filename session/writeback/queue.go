package writeback

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/internal/clock"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/session/writeback/objects"
)

const (
	// gather is the delay between a change of the Repo and the push. Refs that move within the delay are pushed together.
	gather = 10 * time.Millisecond
	// syncRetry is the maximum delay between retries while a caller waits in Sync.
	syncRetry = time.Second
	// retryFirst is the delay before the first retry after a failure; it doubles up to retryMost.
	retryFirst = 200 * time.Millisecond
	retryMost  = 30 * time.Second
	// settleMost is the maximum delay of the first push for refs that are being made (QueueOptions.Settled).
	settleMost = 100 * time.Millisecond
	// forgetIdle is the idle time after which Queue.sent, the set of pushed objects, is dropped to save memory. The next
	// push computes the set again.
	forgetIdle = 30 * time.Second
)

// QueueOptions configures a Queue.
type QueueOptions struct {
	// Repo is the repository whose refs are pushed.
	Repo *session.Repo
	// Session is the name of the session.
	Session string
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

// Queue pushes the refs of a Repo to the session remote whenever they move. Its goroutine works in rounds: each round compares
// the refs of both repositories and pushes the differences. Each part of a Queue is a separate type with its own lock.
//
//	run       waits for a moved ref, Wake, or the end of a delay
//	 round    at most roundTries times:
//	  try       local   refs of the Repo, by the names that they have on the session remote
//	            open    refs of the session remote
//	            compare updates; refs that moved there go to a diverged name, or to the Repo
//	            load    owned objects that the session remote lacks -> need: base commits that it lacks
//	            send    ledger: sent -> push -> accepted: ledger: acknowledged
//	                                         -> moved or locked: try again, at most movedTries times
//	                                         -> refused: a delay that doubles
//	 seeder   pushes the base commits in need, then the next round
//	 calls    answers the calls of Sync that began before the round
//
// Locks: remoteToken is a semaphore, held by the goroutine that exchanges data with the session remote. The locks of the parts are
// leaf locks (no other lock is taken while one of them is held).
type Queue struct {
	o      QueueOptions
	log    *zap.Logger
	cancel context.CancelFunc
	ctx    context.Context // context of the goroutines; Close cancels it
	done   sync.WaitGroup  // waits for the queue's goroutine
	// wake has room for one signal, which Wake sends. remoteToken, the semaphore, holds one token while a goroutine
	// exchanges data with the session remote.
	wake        chan struct{}
	remoteToken chan struct{}

	conn   connection  // connection to the session remote, with counters
	record record      // the ledger: the refs and base commits that the session remote is known to have
	report report      // results of the rounds, for Status
	calls  syncCalls   // the calls of Sync
	moved  movedRefs   // refs that another machine has moved
	seeder seeder      // pushes base commits
	merger notesMerger // merges notes of several sessions

	// remoteToken protects the fields below.

	// sent holds the objects that the session remote is known to have; nil if the set is not computed yet.
	sent objects.Set
	// based holds the objects of the mounted repository that this queue has added to a container.
	based objects.Set
	// refusals records which updates the session remote does not accept.
	refusals refusals
	// whole is set if the last push of the last round has pushed all refs that differed, and no notes have to be merged.
	whole bool
	// outrun is set if the last round did not push the notes refs, because other sessions moved them before each push.
	outrun bool
	// drained is set if Drain has taken remoteToken for good.
	drained bool
}

// NewQueue starts a queue for o.Repo. It reads the ledger of earlier queues, the file that records which values they have pushed,
// and continues from there. NewQueue does no network I/O; only the queue's goroutine does. If o.Remote is nil, the queue has no
// goroutine and pushes nothing.
func NewQueue(o QueueOptions) (*Queue, error) {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	q := newQueue(o)
	q.ctx, q.cancel = context.WithCancel(context.Background())
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
	q.done.Go(func() { q.run(q.ctx) })
	return q, nil
}

// newQueue returns a queue with its parts, without a ledger and without a goroutine.
func newQueue(o QueueOptions) *Queue {
	q := &Queue{
		o: o, log: o.Log, wake: make(chan struct{}, 1), remoteToken: make(chan struct{}, 1), refusals: newRefusals(),
		conn:   connection{repo: o.Repo, remote: o.Remote, origin: o.Origin},
		report: report{session: o.Session, log: o.Log, next: make(chan struct{})},
	}
	q.record.conn, q.record.log = &q.conn, o.Log
	q.merger = notesMerger{repo: o.Repo, conn: &q.conn, session: o.Session, log: o.Log}
	q.seeder.conn, q.seeder.dir, q.seeder.session, q.seeder.log = &q.conn, o.Dir, o.Session, o.Log
	q.seeder.record, q.seeder.changed = q.recordBase, q.report.wakeWaiters
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
	select {
	case q.remoteToken <- struct{}{}:
		q.drained = true
	case <-ctx.Done():
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

// run makes rounds until ctx is done. It makes one round at the start, and one after each change of the Repo, each call of Wake, and
// each delay after a failure or a refusal.
func (q *Queue) run(ctx context.Context) {
	failures := 0
	for {
		asked, waiting := q.calls.open()
		need, busy, err := q.round(ctx, waiting)
		if ctx.Err() != nil {
			return
		}
		if q.notifyTaken() { // Taken has made changes, which are pushed before Sync returns
			continue
		}
		if failures++; err == nil {
			failures = 0
		}
		var wait time.Duration
		if err == nil && len(need) > 0 {
			// The session remote lacks base commits. After they are pushed, the next round sends the refs that depend on
			// them.
			if wait, err = q.seeder.push(ctx, need, slices.Collect(maps.Keys(q.record.now().baseCommits)), waiting); err == nil {
				continue
			}
			if ctx.Err() != nil {
				return
			}
		}
		// Other sessions have updated the notes refs before each push of this round. Try again soon, after a random delay, so that the
		// sessions do not push at the same time again.
		if busy = busy && err == nil; busy {
			wait = notesRest/2 + rand.N(notesRest)
		}
		// Sync does not wait for notes that were pushed under a diverged name: such notes are not pending.
		if !busy || q.Status().Pending == 0 {
			q.calls.answer(q.covered(asked), err, wait > baseFirst)
			q.report.wakeWaiters()
		}
		if !q.rest(ctx, failures, wait) {
			return
		}
	}
}

// covered returns the number of calls of Sync that the last round answers. There were asked calls when the round began. Later calls are
// answered too if the last push of the round has succeeded, and the refs have not moved since. So a call that begins while its checkpoint
// is being pushed needs no further request.
func (q *Queue) covered(asked uint64) uint64 {
	late, _ := q.calls.open() // before the refs are read, so that they contain what the callers wait for
	if late == asked || !q.whole {
		return asked
	}
	if st := q.Status(); st.Pending > 0 || st.Failure != nil {
		return asked
	}
	return late
}

// notifyTaken calls QueueOptions.Taken for each ref that another machine has moved since the last call. It reports whether there
// was such a ref.
func (q *Queue) notifyTaken() bool {
	news := q.moved.takeNews()
	for _, n := range news {
		if q.o.Taken != nil {
			q.o.Taken(n)
		}
	}
	return len(news) > 0
}

// rest blocks until the next round has to start, and then returns true. It returns false if ctx is done first. The parameter
// failures is the number of consecutive failed rounds, on which the delay of the retry depends. After a success, the parameter
// wait is the delay until the next round; if wait is 0, the next round starts when the Repo changes.
func (q *Queue) rest(ctx context.Context, failures int, wait time.Duration) bool {
	var retry, forget <-chan time.Time
	// Wake up for the first refused update that may be sent again.
	if refused := q.refusalsEnd(ctx); wait == 0 || refused > 0 && refused < wait {
		wait = refused
	}
	if failures > 0 {
		most := retryMost
		// If a caller waits in Sync, retry more often.
		if _, waiting := q.calls.open(); waiting {
			most = syncRetry
		}
		retry = time.After(min(clock.Backoff(failures, retryFirst, retryMost), most))
	} else if wait > 0 {
		retry = time.After(wait)
	}
	forget = time.After(forgetIdle)
	changed := q.o.Repo.Changed()
	// A change of the Repo does not make an unreachable session remote reachable, so wait for the time of the retry.
	if failures > 0 {
		changed = nil
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-q.wake:
			return true
		case <-retry:
			return true
		// The set of pushed objects may be large. Drop the set, unless a push is in progress, which needs it.
		case <-forget:
			select {
			case q.remoteToken <- struct{}{}:
				q.sent = nil
				<-q.remoteToken
			default:
			}
		case <-changed:
			select {
			case <-time.After(gather):
			case <-ctx.Done():
				return false
			}
			return true
		}
	}
}

// refusalsEnd returns the time until the first refused update may be sent again, or 0 if no update is refused or ctx is done. The caller
// must not hold remoteToken.
func (q *Queue) refusalsEnd(ctx context.Context) time.Duration {
	select {
	case q.remoteToken <- struct{}{}:
		defer func() { <-q.remoteToken }()
		return q.refusals.next()
	case <-ctx.Done():
		return 0
	}
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
