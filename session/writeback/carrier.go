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
	// settle is the delay after a change: git commands move several refs, and remove their locks.
	settle = 15 * time.Millisecond
	// lockedFor is the delay before refs are read again while git holds a lock on one.
	lockedFor = 20 * time.Millisecond
	// unwatched is the polling interval for directories that cannot be watched.
	unwatched = time.Second
	// firstLook is the delay of the first extra pass after a change. It grows up to lastLook: see run.
	firstLook = 100 * time.Millisecond
	lastLook  = 10 * time.Second
	// retryMost is the maximum delay between retries.
	retryMost = 30 * time.Second
)

// Provider fetches objects of the mounted remote: fetch.Store or fetch.Local.
type Provider interface {
	// Provide fetches wanted into packs that git can read, and may fetch along with them.
	Provide(ctx context.Context, wanted, along []object.ID) error
	// Missing returns those of ids that are in no such pack.
	Missing(ids []object.ID) []object.ID
}

// RefCopierOptions configures a RefCopier.
type RefCopierOptions struct {
	// Repo creates or opens the Repo. It is called at most once, when there is a ref to copy.
	Repo func() (*session.Repo, error)
	// Session is the name of the session.
	Session string
	// GitDir is the git directory of the mount.
	GitDir string
	// Format is the object format of the mount's repository.
	Format object.Format
	// Refs returns the known branches and tags of the mounted remote. A ref with the same name and value is not copied.
	Refs func() []packedrefs.Ref
	// Watch sends to wake, without blocking, whenever a file appears in dir, or dir is removed, until stop is called.
	// fresh is false if dir was already watched; stop is not used then.
	Watch func(dir string, wake chan<- struct{}) (stop func(), fresh bool, err error)
	// Provide is set if the Repo itself is the session remote: the contents that stock git needs to clone it are
	// fetched.
	Provide Provider
	// Moved is called when a branch, tag, note, stash or HEAD has moved, before it is copied, and after the Repo was
	// created. It must not block. May be nil.
	Moved func()
	// Failed is called with each failure, and with nil after the next success. May be nil.
	Failed func(error)
	Log    *zap.Logger // may be nil
}

// RefCopier copies branches, tags and notes of a mount's git directory into the session's Repo whenever they move, with
// the objects that git created for them.
//
// Locks: passing is a semaphore that is held during a pass, across disk and network I/O. It guards the fields below it
// up to mu. mu is a leaf lock, which guards failure.
type RefCopier struct {
	o      RefCopierOptions
	log    *zap.Logger
	cancel context.CancelFunc
	done   sync.WaitGroup
	wake   chan struct{} // has room for one signal

	passing chan struct{} // semaphore, held during a pass
	// refs reads the git directory.
	refs   gitRefs
	before *refsOf // refs that the last pass read; nil: no pass yet
	// repo is nil until there is a ref to copy.
	repo    *session.Repo
	watched map[string]func() // stop functions of the watched directories
	// clone is set if the Repo is the session remote.
	clone *cloneable

	mu sync.Mutex
	// failure is the error of the last pass; nil: it succeeded.
	failure error
}

// NewRefCopier starts the watch, and copies the present refs in the background.
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

// Flush copies all refs as they are when it is called, and returns when they are in the Repo.
func (c *RefCopier) Flush(ctx context.Context) error {
	next, err := c.pass(ctx)
	if err != nil || next > 0 {
		select { // the goroutine does the next pass
		case c.wake <- struct{}{}:
		default:
		}
	}
	return err
}

// Close stops the watch and a pass in progress, and waits for both.
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

// run makes a pass after each signal, and a few more at growing intervals: git removes directories of refs that become
// empty and creates them again, and a file that appears in one before it is watched causes no signal. It uses no timer
// when the git directory is idle.
func (c *RefCopier) run(ctx context.Context) {
	failures, again := 0, firstLook
	for {
		next, err := c.pass(ctx)
		if ctx.Err() != nil {
			return
		}
		// Failures in a row: the delay of the next retry depends on them.
		if failures++; err == nil {
			failures = 0
		}
		var timer <-chan time.Time
		switch {
		case err != nil:
			timer = time.After(retryIn(failures))
		case next > 0:
			timer = time.After(next)
		// Extra passes find what no signal announced: see above.
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
		select { // the next pass sees changes made during the delay
		case <-c.wake:
		default:
		}
	}
}

// retryIn returns the delay after a number of failures in a row: it doubles, and is randomized so that retries spread.
func retryIn(failures int) time.Duration {
	d := min(200*time.Millisecond<<min(failures-1, 10), retryMost)
	return d/2 + rand.N(d/2)
}

// pass copies the refs that moved. next is the time after which to read the refs again although no signal announces
// changes; 0: never.
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
	// Watches are set before the refs are read: if a directory is new, refs that appeared in it meanwhile are read
	// again. The number of tries is bounded, because a process may create directories all the time.
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
		// A first pass has nothing to compare with, so it reports no move.
		moved, had := c.before != nil && !c.before.same(now), c.repo != nil
		c.before = &now
		c.tellMoved(moved)
		err = c.carry(ctx, now)
		c.tellMoved(c.repo != nil && !had) // only now can a checkpoint be made
		return next, err
	}
}

// tellMoved calls Options.Moved if moved is set.
func (c *RefCopier) tellMoved(moved bool) {
	if moved && c.o.Moved != nil {
		c.o.Moved()
	}
}

// watch watches every directory of dirs. fresh reports whether one was not watched before, ok whether all that exist are
// watched now. Each directory is passed to Options.Watch every time: one that was removed and created again has lost its
// watch, and may even have the same inode number.
func (c *RefCopier) watch(dirs []string) (fresh, ok bool) {
	// Without Watch the refs are polled.
	if c.o.Watch == nil {
		return false, false
	}
	here := map[string]bool{}
	for _, dir := range dirs {
		here[dir] = true
	}
	for dir, stop := range c.watched {
		// Stop the old watch before the same directory is watched under another name.
		if !here[dir] {
			stop()
			delete(c.watched, dir)
		}
	}
	ok = true
	for _, dir := range dirs {
		stop, another, err := c.o.Watch(dir, c.wake)
		if err != nil {
			// A directory that was removed meanwhile needs no watch.
			if _, statErr := os.Lstat(dir); statErr == nil {
				ok = false
			}
			continue
		}
		if !another {
			continue
		}
		// The old watch belongs to the removed directory of the same name.
		if before := c.watched[dir]; before != nil {
			before()
		}
		c.watched[dir], fresh = stop, true
	}
	return fresh, ok
}

// tell records err as the result of the last pass, logs it once, and calls Options.Failed.
func (c *RefCopier) tell(err error) {
	c.mu.Lock()
	before := c.failure
	c.failure = err
	c.mu.Unlock()
	// Retries that fail for the same reason are not logged again.
	if err != nil && (before == nil || before.Error() != err.Error()) {
		c.log.Warn("push refs", zap.String("session", c.o.Session), zap.Error(err))
	}
	// A success is reported only after a failure.
	if c.o.Failed != nil && (err != nil || before != nil) {
		c.o.Failed(err)
	}
}
