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
	gather     = 10 * time.Millisecond // after a sign: what moves together goes in one push
	syncRetry  = time.Second           // longest wait between tries while somebody waits for them
	queueRetry = time.Minute           // and while nobody does
	forgetIdle = 30 * time.Second      // after a push: what the session remote is known to have, which can be found out again
)

// QueueOptions describe a Queue.
type QueueOptions struct {
	Repo    *session.Repo
	Session string
	Dir     string            // where the history that a session remote lacks waits to be sent; the mount's home
	Remote  *thin.Remote      // session remote; nil: the Repo is that. It stays the caller's to close, after the Queue
	Origin  *transport.Remote // mounted remote, asked for the history that the session remote lacks; nil: it has it
	Store   Provider          // of the mounted remote; may be nil
	Base    Mode              // how the session remote comes to the base; ModeUnknown: what is best, if it is not decided yet
	BaseURL string            // of the mounted remote, without secrets, if other machines can read it there; "": they cannot
	// Taken is told when a ref of the session's own was moved by others; what it does about it is sent at once. It comes
	// from the Queue's own goroutine, so it must not wait for the Queue. May be nil.
	Taken func(Taken)
	// Notes moves a notes ref of the mount from old to merged, which the session remote has and the Repo holds, unless the
	// user has moved it. May be nil.
	Notes func(ctx context.Context, ref string, old, merged object.ID) error
	Log   *zap.Logger // may be nil
}

// Queue brings a Repo's refs to the session remote, as they move.
//
// turn is a token: who holds it talks to the session remote. mu is a leaf, and guards what Status tells.
type Queue struct {
	o      QueueOptions
	log    *zap.Logger
	cancel context.CancelFunc
	ctx    context.Context // of the goroutines
	done   sync.WaitGroup
	wake   chan struct{}
	turn   chan struct{}

	counted counters

	meta session.Meta // when the queue began

	// Of who has the turn.
	sent        idSet // objects that the session remote has; nil: not looked at yet
	noRewrite   bool  // the session remote forbids it
	refused     map[string]refusal
	unclaimable bool            // the session remote refuses session.OwnerRef
	blocked     map[string]bool // refs that could not be created there: what is in their way is asked for, too
	outrun      bool            // notes were not merged in the last round, because other sessions were quicker

	mu       sync.Mutex
	ledger   *ledger
	before   Traffic // of the queues before this one
	failure  error
	since    time.Time
	diverged []Diverged
	behind   map[string]object.ID // refs of which the session remote has more, and what it has
	moved    map[string]object.ID // the session's own refs that others moved, to what
	told     map[string]object.ID // of which Taken was told
	news     []Taken              // of which it will be
	declined []refusedRef         // the user's first
	notices  []string
	seeding  *seeding
	ground   baseTry
	// Who waits for all to be there.
	asked, answered uint64 // counts of calls of Sync, and of those that a round began after
	outcome         error  // of that round
	changed         chan struct{}
	closed          bool
}

// refusal is an update that the session remote did not want.
type refusal struct {
	id    object.ID
	until time.Time
	text  string
	count int
}

// NewQueue goes on where the Queue before it on the same Repo has stopped. It asks nothing of the network by itself but
// from goroutines of its own.
func NewQueue(o QueueOptions) (*Queue, error) {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	q := &Queue{o: o, log: o.Log, wake: make(chan struct{}, 1), turn: make(chan struct{}, 1), refused: map[string]refusal{}, blocked: map[string]bool{},
		moved: map[string]object.ID{}, told: map[string]object.ID{}, changed: make(chan struct{})}
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
	if l.mode == ModeThin {
		o.Remote.Begin()
	}
	q.Wake()
	q.done.Go(func() { q.run(q.ctx) })
	return q, nil
}

// Wake says that something has changed outside of the Repo: a new token, a network that is back. What waits tries at once.
func (q *Queue) Wake() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// Close ends what is under way. Nothing is lost by that.
func (q *Queue) Close() error {
	q.mu.Lock()
	before := q.closed
	q.closed = true
	q.mu.Unlock()
	q.cancel()
	q.done.Wait()
	if !before {
		q.turn <- struct{}{} // whoever has it ends soon
		q.keepTraffic()
		q.tell()
	}
	return nil
}

// run makes rounds whenever there is something to send, and waits longer and longer after failures.
func (q *Queue) run(ctx context.Context) {
	failures := 0
	for {
		asked := q.askedNow()
		need, busy, err := q.round(ctx, asked > q.answeredNow())
		if ctx.Err() != nil {
			return
		}
		if q.tellTaken() { // what comes of that is sent before anybody is told how it stands
			continue
		}
		if failures++; err == nil {
			failures = 0
		}
		var wait time.Duration
		if err == nil && len(need) > 0 {
			if wait, err = q.fetchBase(ctx, need, asked > q.answeredNow()); err == nil {
				continue
			}
			if ctx.Err() != nil {
				return
			}
		}
		if busy = busy && err == nil; busy { // all but notes is there, and they will be in a moment
			wait = notesRest/2 + rand.N(notesRest)
		}
		if !busy || q.Status().Pending == 0 { // they have another name there
			q.answer(asked, err, wait > baseFirst)
		}
		if !q.rest(ctx, failures, wait) {
			return
		}
	}
}

// tellTaken tells of refs that others have moved, if there is news.
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

// rest waits for a reason to make a round; false: there will be none. Failures are those to reach the session remote, wait
// is until something is worth another try, if there is such a thing.
func (q *Queue) rest(ctx context.Context, failures int, wait time.Duration) bool {
	var retry, forget <-chan time.Time
	if refused := q.refusalsEnd(); wait == 0 || refused > 0 && refused < wait {
		wait = refused
	}
	if failures > 0 {
		most := queueRetry
		if q.askedNow() > q.answeredNow() {
			most = syncRetry
		}
		retry = time.After(min(retryIn(failures), most))
	} else if wait > 0 {
		retry = time.After(wait)
	}
	forget = time.After(forgetIdle)
	changed := q.o.Repo.Changed()
	if failures > 0 { // more to send makes the session remote no easier to reach
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
		case <-forget:
			select {
			case q.turn <- struct{}{}:
				q.sent = nil
				<-q.turn
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

// refusalsEnd is how long until something that was refused is tried again; 0: nothing was.
func (q *Queue) refusalsEnd() time.Duration {
	q.turn <- struct{}{}
	defer func() { <-q.turn }()
	var first time.Duration
	for _, r := range q.refused {
		if wait := max(time.Until(r.until), time.Millisecond); first == 0 || wait < first {
			first = wait
		}
	}
	return first
}

func (q *Queue) askedNow() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.asked
}

func (q *Queue) answeredNow() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.answered
}

// answer tells who waits what came of a round that began when so many had asked. An unreachable remote is no answer,
// unless it is given up for longer than anybody waits.
func (q *Queue) answer(asked uint64, err error, givenUp bool) {
	q.mu.Lock()
	if err == nil || givenUp || final(err) {
		q.answered = max(q.answered, asked)
		q.outcome = err
	}
	q.mu.Unlock()
	q.tell()
}

// final says whether another try would come to the same.
func final(err error) bool {
	for _, is := range []error{errNoBase, transport.ErrAuth, transport.ErrForbidden, transport.ErrNotFound, transport.ErrNoPush} {
		if errors.Is(err, is) {
			return true
		}
	}
	return false
}

// tell wakes who waits for something of what mu guards.
func (q *Queue) tell() {
	q.mu.Lock()
	defer q.mu.Unlock()
	close(q.changed)
	q.changed = make(chan struct{})
}

// fail notes why a round has come to nothing; nil: it has not.
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
		q.log.Warn("send to session remote", zap.String("session", q.o.Session), zap.Error(err))
	case err == nil && before != nil:
		q.log.Info("session remote answers again", zap.String("session", q.o.Session))
	}
}

// Sync returns when the session remote has all refs that the Repo had when it was called, or newer ones, and has been asked whether
// it really does. What diverged is there under another name, which Status tells. What cannot be there because of others (moved,
// refused, no access) ends it with an error that says so. While the remote cannot be reached it tries again, at once at first,
// until ctx ends, and then says why.
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

// unfinished says what a round that went well could not do.
func (q *Queue) unfinished() error {
	st := q.Status()
	var errs []error
	for _, ref := range st.Moved {
		errs = append(errs, fmt.Errorf("%s: %w", ref, ErrMoved))
	}
	for _, text := range st.Refused {
		errs = append(errs, fmt.Errorf("%s: %w", text, ErrRefused))
	}
	return errors.Join(errs...)
}

// Acknowledged is what the session remote has of a ref, as far as is known; zero: nothing.
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

// Has says whether the session remote has a checkpoint.
func (q *Queue) Has(p session.Point) bool {
	id := q.Acknowledged(session.SegmentRef(p.Session, p.Lane, p.Segment))
	if id.IsZero() || id == p.Commit {
		return !id.IsZero()
	}
	newest, err := q.o.Repo.PointAt(id)
	return err == nil && newest.ID >= p.ID // ids sort by time, and a segment has one writer
}
