package writeback

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/transport"
)

const (
	// gather is the delay after a change of the Repo, so that refs that move together are pushed together.
	gather = 10 * time.Millisecond
	// syncRetry is the maximum delay between retries while a caller waits in Sync.
	syncRetry = time.Second
	// queueRetry is the maximum delay between retries otherwise.
	queueRetry = time.Minute
	// forgetIdle is the idle time after which the set of pushed objects is dropped. It can be computed again.
	forgetIdle = 30 * time.Second
)

// QueueOptions configures a Queue.
type QueueOptions struct {
	Repo *session.Repo
	// Session is the name of the session.
	Session string
	// Dir is the directory for packs of history that wait to be pushed (ModeSeed): the mount's home.
	Dir string
	// Remote is the session remote; nil: the Repo is the session remote. The caller closes it, after the Queue.
	Remote *thin.Remote
	// Origin is the mounted remote, from which history that the session remote lacks is fetched; nil: no history is
	// sent.
	Origin *transport.Remote
	// Store is the store of the mounted remote; may be nil.
	Store Provider
	// Base is the way in which the session remote gets the base commits; ModeUnknown: chosen at the first push.
	Base Mode
	// BaseURL is the URL of the mounted remote, without secrets, if other machines can read it; "": they cannot.
	BaseURL string
	// Taken is called when another machine moved a ref of the session's own; the changes that Taken makes to the Repo
	// are pushed at once. It is called from the Queue's own goroutine, so it must not wait for the Queue. May be nil.
	Taken func(Taken)
	// Notes moves a notes ref of the mount from old to merged, unless the user has moved it. The session remote and the
	// Repo hold merged when Notes is called. May be nil.
	Notes func(ctx context.Context, ref string, old, merged object.ID) error
	Log   *zap.Logger // may be nil
}

// Queue pushes a Repo's refs to the session remote whenever they move.
//
// Locks: remoteToken is a semaphore; its holder talks to the session remote. mu is a leaf lock, which guards the state that
// Status reports.
type Queue struct {
	o      QueueOptions
	log    *zap.Logger
	cancel context.CancelFunc
	ctx    context.Context // context of the goroutines; Close cancels it
	done   sync.WaitGroup
	// wake has room for one signal: see Wake. remoteToken holds one token while a goroutine talks to the session remote.
	wake        chan struct{}
	remoteToken chan struct{}

	counted counters

	meta session.Meta // the session's metadata when the queue started

	// remoteToken guards the fields from sent to outrun.

	// sent are objects that the session remote is known to have; nil: not computed yet.
	sent idSet
	// noRewrite is set if the session remote accepts only fast-forward updates of branches.
	noRewrite bool
	// refused maps refs, by their names on the session remote, to the last refusal.
	refused map[string]refusal
	// unclaimable is set if the session remote refuses session.OwnerRef.
	unclaimable bool
	// blocked are refs that could not be created. Refs that may be in their way are requested, too.
	blocked map[string]bool
	// outrun is set if notes were not merged in the last round, because other sessions won every race.
	outrun bool

	mu sync.Mutex
	// ledger is the knowledge of the session remote; it is replaced, never changed in place.
	ledger *ledger
	// before is the traffic of earlier queues of the session.
	before Traffic
	// failure is the error of the last round, since the time of the first failure in a row.
	failure  error
	since    time.Time
	diverged []Diverged
	// behind maps refs whose value on the session remote contains the Repo's value to the former.
	behind map[string]object.ID
	// moved maps the session's own refs that another session moved to their new values.
	moved map[string]object.ID
	// reported are the values of moved that were queued in news or reported to Taken.
	reported map[string]object.ID
	// news are the moved refs that Taken has yet to be called with.
	news []Taken
	// declined are the refused refs, the user's first.
	declined []refusedRef
	notices  []string
	// seeding is the push of base commits in progress; nil: none.
	seeding *seeding
	// baseAttempt is the last attempt to push base commits.
	baseAttempt baseAttempt
	// asked is the number of calls of Sync; answered, how many of them a finished round covers.
	asked, answered uint64
	// outcome is the error of the last finished round.
	outcome error
	// changed is closed and replaced whenever the state that mu guards changes.
	changed chan struct{}
	closed  bool
}

// refusal is an update that the session remote refused.
type refusal struct {
	// id is the refused value; it is not sent again before until. count is the number of refusals of id in a row.
	id    object.ID
	until time.Time
	text  string
	count int
}

// NewQueue starts a queue on o.Repo. It reads the ledger that earlier queues wrote and continues from it. It does no
// network I/O itself; the queue's goroutines do. Without o.Remote it starts no goroutine.
func NewQueue(o QueueOptions) (*Queue, error) {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	q := &Queue{o: o, log: o.Log, wake: make(chan struct{}, 1), remoteToken: make(chan struct{}, 1),
		refused: map[string]refusal{}, blocked: map[string]bool{},
		moved: map[string]object.ID{}, reported: map[string]object.ID{}, changed: make(chan struct{})}
	q.ctx, q.cancel = context.WithCancel(context.Background())
	if o.Remote == nil {
		return q, nil
	}
	l, err := readLedger(o.Repo, o.Remote.URL())
	if err == nil {
		q.meta, err = metaOf(o.Repo)
	}
	if err != nil {
		q.cancel()
		return nil, err
	}
	q.ledger, q.before = l, l.traffic
	// An earlier queue chose a container: the remote has to use it from the first push.
	if l.mode == ModeThin {
		o.Remote.UseContainer()
	}
	// Refs may be pending since the last queue of this Repo.
	q.Wake()
	q.done.Go(func() { q.run(q.ctx) })
	return q, nil
}

// Wake makes the queue retry at once. The caller calls it when something outside of the Repo changed: a new credential,
// a network that is reachable again.
func (q *Queue) Wake() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// Close cancels pushes in progress and waits for the queue's goroutines. Pending refs stay pending for the next queue.
func (q *Queue) Close() error {
	q.mu.Lock()
	before := q.closed
	q.closed = true
	q.mu.Unlock()
	q.cancel()
	q.done.Wait()
	if !before {
		// The holder of remoteToken returns soon: its context was cancelled.
		q.remoteToken <- struct{}{}
		q.keepTraffic()
		q.tell()
	}
	return nil
}

// run makes a round whenever there is something to push, and backs off after failures. It returns when ctx is done.
func (q *Queue) run(ctx context.Context) {
	failures := 0
	for {
		asked := q.askedNow()
		need, busy, err := q.round(ctx, asked > q.answeredNow())
		if ctx.Err() != nil {
			return
		}
		if q.tellTaken() { // the changes that Taken made are pushed before Sync returns
			continue
		}
		if failures++; err == nil {
			failures = 0
		}
		var wait time.Duration
		if err == nil && len(need) > 0 {
			// The session remote lacks base commits. After they are pushed, the next round sends the refs that depend on
			// them.
			if wait, err = q.fetchBase(ctx, need, asked > q.answeredNow()); err == nil {
				continue
			}
			if ctx.Err() != nil {
				return
			}
		}
		// If only notes are left, retry them soon.
		if busy = busy && err == nil; busy {
			wait = notesRest/2 + rand.N(notesRest)
		}
		// Notes that were pushed under a diverged name are not pending: that is enough for Sync.
		if !busy || q.Status().Pending == 0 {
			q.answer(asked, err, wait > baseFirst)
		}
		if !q.rest(ctx, failures, wait) {
			return
		}
	}
}

// tellTaken calls Options.Taken for each moved ref in news, and reports whether there was one.
func (q *Queue) tellTaken() bool {
	q.mu.Lock()
	news := q.news
	q.news = nil
	q.mu.Unlock()
	for _, n := range news {
		if q.o.Taken != nil {
			q.o.Taken(n)
		}
	}
	return len(news) > 0
}

// rest blocks until a reason for a round occurs, and returns false if ctx is done first. failures is the number of
// failed rounds in a row; wait is the time until a retry is worthwhile, 0 if none is.
func (q *Queue) rest(ctx context.Context, failures int, wait time.Duration) bool {
	var retry, forget <-chan time.Time
	// Wake up for the first refused update that may be sent again.
	if refused := q.refusalsEnd(); wait == 0 || refused > 0 && refused < wait {
		wait = refused
	}
	if failures > 0 {
		most := queueRetry
		// A caller waits in Sync: retry more often.
		if q.askedNow() > q.answeredNow() {
			most = syncRetry
		}
		retry = time.After(min(retryIn(failures), most))
	} else if wait > 0 {
		retry = time.After(wait)
	}
	forget = time.After(forgetIdle)
	changed := q.o.Repo.Changed()
	// Another change of the Repo does not make the session remote reachable: wait for the retry.
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
		// The set of pushed objects may be large. It is dropped unless a push is in progress.
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

// refusalsEnd returns the time until the first refused update may be sent again; 0: no update is refused. It holds
// remoteToken while it looks.
func (q *Queue) refusalsEnd() time.Duration {
	q.remoteToken <- struct{}{}
	defer func() { <-q.remoteToken }()
	var first time.Duration
	for _, r := range q.refused {
		if wait := max(time.Until(r.until), time.Millisecond); first == 0 || wait < first {
			first = wait
		}
	}
	return first
}

// askedNow returns the number of calls of Sync.
func (q *Queue) askedNow() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.asked
}

// answeredNow returns the number of calls of Sync that a finished round covers.
func (q *Queue) answeredNow() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.answered
}

// answer records err as the outcome of a round for the first asked calls of Sync, and wakes them. An unreachable session
// remote ends no call, because the queue retries, unless givenUp is set: the next retry is too far off.
func (q *Queue) answer(asked uint64, err error, givenUp bool) {
	q.mu.Lock()
	// Calls that began after the round started are not covered: asked was read before the round.
	if err == nil || givenUp || final(err) {
		q.answered = max(q.answered, asked)
		q.outcome = err
	}
	q.mu.Unlock()
	q.tell()
}

// final reports whether err would be the same after a retry.
func final(err error) bool {
	for _, is := range []error{errNoBase, transport.ErrAuth, transport.ErrForbidden, transport.ErrNotFound, transport.ErrNoPush} {
		if errors.Is(err, is) {
			return true
		}
	}
	return false
}

// tell wakes the callers that wait for a change of the state below mu.
func (q *Queue) tell() {
	q.mu.Lock()
	defer q.mu.Unlock()
	close(q.changed)
	q.changed = make(chan struct{})
}

// fail records err as the failure of the last round; nil: the round succeeded. It logs a failure once.
func (q *Queue) fail(err error) {
	q.mu.Lock()
	before := q.failure
	q.failure = err
	if err != nil && before == nil {
		q.since = time.Now()
	}
	q.mu.Unlock()
	switch {
	case err != nil && (before == nil || before.Error() != err.Error()):
		q.log.Warn("push to session remote", zap.String("session", q.o.Session), zap.Error(err))
	case err == nil && before != nil:
		q.log.Info("reached session remote again", zap.String("session", q.o.Session))
	}
}

// Sync returns when the session remote has all refs that the Repo had when Sync was called, or newer ones, and the
// session remote has been asked to confirm it. A diverged ref counts as pushed, because its value is on the session
// remote under another name; Status lists it. A ref that cannot be pushed (moved, refused, no access) ends Sync with an
// error. While the session remote cannot be reached, Sync retries until ctx is done, and then returns an error with the
// last failure. progress, which may be nil, is called every 200 ms.
func (q *Queue) Sync(ctx context.Context, progress func(Status)) error {
	if q.o.Remote == nil {
		return nil
	}
	q.mu.Lock()
	q.asked++
	mine := q.asked
	q.mu.Unlock()
	q.Wake()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		q.mu.Lock()
		answered, outcome, changed, closed := q.answered >= mine, q.outcome, q.changed, q.closed
		q.mu.Unlock()
		switch {
		case answered && outcome != nil:
			return outcome
		// The round succeeded, but single refs may have been refused.
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

// unfinished returns the errors of the refs that a successful round could not push: moved and refused ones.
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

// Acknowledged returns the value that the session remote is known to have of a ref of the Repo; zero: none.
func (q *Queue) Acknowledged(ref string) object.ID {
	if q.o.Remote == nil {
		id, err := q.o.Repo.Ref(ref)
		if err != nil {
			return object.ID{}
		}
		return id
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.ledger.refs[q.layout(q.ledger).There(ref)].acked
}

// Has reports whether the session remote is known to have checkpoint p.
func (q *Queue) Has(p session.Checkpoint) bool {
	id := q.Acknowledged(session.SegmentRef(p.Session, p.Lane, p.Segment))
	// No checkpoint of the segment, or exactly p, has been pushed.
	if id.IsZero() || id == p.Commit {
		return !id.IsZero()
	}
	newest, err := q.o.Repo.CheckpointAt(id)
	// Checkpoint ids sort by time, and a segment has one writer.
	return err == nil && newest.ID >= p.ID
}
