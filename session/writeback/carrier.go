package writeback

import (
	"context"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/packedrefs"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
)

const (
	settle    = 15 * time.Millisecond  // after a sign: git's commands move several refs, and remove locks
	lockedFor = 20 * time.Millisecond  // then git that is moving a ref is looked at again
	unwatched = time.Second            // between looks where changes cannot be watched
	firstLook = 100 * time.Millisecond // after a sign, and then ever more rarely until lastLook: see run
	lastLook  = 10 * time.Second
	retryMost = 30 * time.Second
)

// Provider has what the mounted remote gives: fetch.Store or fetch.Local.
type Provider interface {
	// Provide has objects in packs where git reads them.
	Provide(ctx context.Context, wanted, along []object.ID) error
	// Missing gives those that are not.
	Missing(ids []object.ID) []object.ID
}

// RefCopierOptions describe a RefCopier.
type RefCopierOptions struct {
	Repo    func() (*session.Repo, error) // makes it; called when there is something to carry, so once or never
	Session string
	GitDir  string // of the mount
	Format  object.Format
	// Refs are the mounted remote's branches and tags, as far as they are known: what is there just so is not carried.
	Refs func() []packedrefs.Ref
	// Watch has something sent, if there is room, when a file comes into a directory, or it is removed, until stop. It is
	// not fresh if that is so already.
	Watch func(dir string, wake chan<- struct{}) (stop func(), fresh bool, err error)
	// Provide is set if the Repo itself is the session remote: what stock git needs to clone it is brought there.
	Provide Provider
	// Moved is told when a branch, tag, note, stash or HEAD is not where it was, before that is carried; and when the Repo
	// was made for it. It must not wait. May be nil.
	Moved  func()
	Failed func(error) // is told of failures, and of nil after them; may be nil
	Log    *zap.Logger // may be nil
}

// RefCopier brings branches, tags and notes of a mount's git directory into the session's Repo, with the objects that were
// made there, as they move.
//
// Locks: passing is held by who makes a pass, across disk and network; mu is a leaf.
type RefCopier struct {
	o      RefCopierOptions
	log    *zap.Logger
	cancel context.CancelFunc
	done   sync.WaitGroup
	wake   chan struct{}

	passing chan struct{} // a token
	refs    gitRefs
	before  *refsOf // that were read last; nil: none
	repo    *session.Repo
	watched map[string]func() // directories whose changes are told, and what ends that
	clone   *cloneable

	mu      sync.Mutex
	failure error
}

// NewRefCopier begins to watch. The refs as they are now are brought in the background.
func NewRefCopier(o RefCopierOptions) *RefCopier {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &RefCopier{
		o: o, log: o.Log, cancel: cancel, wake: make(chan struct{}, 1), passing: make(chan struct{}, 1),
		refs: gitRefs{dir: o.GitDir, format: o.Format}, watched: map[string]func(){},
	}
	c.done.Go(func() { c.run(ctx) })
	return c
}

// Flush returns when the refs that were there when it was called are in the Repo.
func (c *RefCopier) Flush(ctx context.Context) error {
	next, err := c.pass(ctx)
	if err != nil || next > 0 {
		select { // the loop sees to the rest
		case c.wake <- struct{}{}:
		default:
		}
	}
	return err
}

// Close ends the watch, and what is under way.
func (c *RefCopier) Close() {
	c.cancel()
	c.done.Wait()
	c.passing <- struct{}{}
	for _, stop := range c.watched {
		stop()
	}
	clear(c.watched)
	<-c.passing
}

// run makes a pass after each sign, and a few more after it: git removes directories of refs that become empty and makes
// them anew, and of what comes into one before it is watched there is no sign. At rest there is no timer.
func (c *RefCopier) run(ctx context.Context) {
	failures, again := 0, firstLook
	for {
		next, err := c.pass(ctx)
		if ctx.Err() != nil {
			return
		}
		if failures++; err == nil {
			failures = 0
		}
		var timer <-chan time.Time
		switch {
		case err != nil:
			timer = time.After(retryIn(failures))
		case next > 0:
			timer = time.After(next)
		case again < lastLook:
			timer = time.After(again)
			again *= 3
		}
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
			again = firstLook
		case <-timer:
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(settle):
		}
		select { // what came while things settled is seen now
		case <-c.wake:
		default:
		}
	}
}

// retryIn doubles from failure to failure, and has chance in it so that many do not come back at once.
func retryIn(failures int) time.Duration {
	d := min(200*time.Millisecond<<min(failures-1, 10), retryMost)
	return d/2 + rand.N(d/2)
}

// pass carries what has moved, and says when to look again though nothing tells of changes; 0: never.
func (c *RefCopier) pass(ctx context.Context) (next time.Duration, err error) {
	select {
	case c.passing <- struct{}{}:
		defer func() { <-c.passing }()
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	defer func() {
		if ctx.Err() == nil {
			c.tell(err)
		}
	}()
	// Watches come before the look: what is made by then is looked at again.
	for tries := 0; ; tries++ {
		now, err := c.refs.read()
		if err != nil {
			return 0, err
		}
		fresh, ok := c.watch(now.dirs)
		if fresh && ok && tries < 3 {
			continue
		}
		switch {
		case !ok:
			next = unwatched
		case fresh || now.locked:
			next = lockedFor
		}
		moved, had := c.before != nil && !c.before.same(now), c.repo != nil
		c.before = &now
		c.tellMoved(moved)
		err = c.carry(ctx, now)
		c.tellMoved(c.repo != nil && !had) // until now there was nothing to make a checkpoint in
		return next, err
	}
}

func (c *RefCopier) tellMoved(moved bool) {
	if moved && c.o.Moved != nil {
		c.o.Moved()
	}
}

// watch sees to it that every directory is watched, and says whether one was not. Each is asked for every time: one that was
// removed and made anew is watched no more, and may even have the inode number of the one before.
func (c *RefCopier) watch(dirs []string) (fresh, ok bool) {
	if c.o.Watch == nil {
		return false, false
	}
	here := map[string]bool{}
	for _, dir := range dirs {
		here[dir] = true
	}
	for dir, stop := range c.watched {
		if !here[dir] { // before it is watched by another name
			stop()
			delete(c.watched, dir)
		}
	}
	ok = true
	for _, dir := range dirs {
		stop, another, err := c.o.Watch(dir, c.wake)
		if err != nil {
			if _, statErr := os.Lstat(dir); statErr == nil {
				ok = false
			}
			continue
		}
		if !another {
			continue
		}
		if before := c.watched[dir]; before != nil {
			before()
		}
		c.watched[dir], fresh = stop, true
	}
	return fresh, ok
}

func (c *RefCopier) tell(err error) {
	c.mu.Lock()
	before := c.failure
	c.failure = err
	c.mu.Unlock()
	if err != nil && (before == nil || before.Error() != err.Error()) {
		c.log.Warn("push refs", zap.String("session", c.o.Session), zap.Error(err))
	}
	if c.o.Failed != nil && (err != nil || before != nil) {
		c.o.Failed(err)
	}
}
