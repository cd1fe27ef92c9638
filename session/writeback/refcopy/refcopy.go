// Package refcopy copies the branches, tags and notes refs of a mount's git directory into the bare repository of the
// session: session.Repo, "the Repo" below. It copies them whenever they change, with the objects that git has created
// for them. A Copier works in passes. Copier.pass reads the refs (gitRefs.read), compares them with the Repo and with
// the list of the refs that were copied before (Copier.compareRefs), copies the objects, and then updates the refs of
// the Repo (Copier.copyRefs).
package refcopy

import (
	"context"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/internal/backoff"
	"github.com/artifactfs/artifactfs/internal/clock"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/writeback/objects"
)

const (
	// settle is the delay between a change and the pass that copies it, so that the git command can finish its changes
	// and remove its lock files.
	settleDelay = 15 * time.Millisecond
	// lockedFor is the delay before the refs are read again if git holds the lock of a ref.
	lockedDelay = 20 * time.Millisecond
	// unwatched is the interval at which refs are read if their directories cannot be watched.
	pollInterval = time.Second
	// firstLook is the delay before the first extra pass after a change. The delay triples with each extra pass, until
	// it reaches lastLook; then there are no more extra passes.
	extraPassDelay    = 100 * time.Millisecond
	maxExtraPassDelay = 10 * time.Second
)

// pauses are the delays before retries after consecutive failures.
var pauses = backoff.Backoff{First: 200 * time.Millisecond, Longest: 30 * time.Second}

// Options configures a Copier.
type Options struct {
	// Repo opens the session's bare repository, or creates it. It is called before the first ref is copied.
	Repo func() (*session.Repo, error)
	// Session is the name of the session.
	Session string
	// GitDir is the git directory of the mount.
	GitDir string
	// Format is the object format of the mount's repository.
	Format object.Format
	// Refs returns the known branches and tags of the mounted remote. A ref of the mount that has the same name and value
	// as one of them is not copied.
	Refs func() []packedrefs.Ref
	// Watch starts to watch the directory dir: until the function stop is called, it sends to the channel wake, without
	// blocking, whenever a file appears in dir or dir is removed. fresh is false if dir is watched already; stop is
	// then not used. If Watch is nil, the refs are read at regular intervals.
	Watch func(dir string, wake chan<- struct{}) (stop func(), fresh bool, err error)
	// Provide fetches the contents that git needs to serve a fetch from the Repo. It is nil unless the Repo itself is
	// the session remote.
	Provide objects.Provider
	// Moved is called when a branch, tag, notes ref, stash or HEAD has changed, before the ref is copied, and after the
	// Repo was opened. It must not block. Moved may be nil.
	Moved func()
	// Failed is called with the error of each failed pass, and with nil after the next success. Failed may be nil.
	Failed func(error)
	Log    *zap.Logger // logger; nil disables logging
}

// Copier copies the branches, tags and notes refs of a mount's git directory into the session's Repo whenever they
// change, with the objects that git has created for them. It works in passes: each pass reads the refs and copies those
// that have changed.
//
// Locks: passing is a semaphore that is held during a pass, including disk and network I/O. It protects the fields from
// refs to reused. No other lock is acquired while mu is held, which protects failure.
type Copier struct {
	o      Options
	log    *zap.Logger
	ctx    context.Context    // ends with Close
	cancel context.CancelFunc // ends the goroutines
	done   sync.WaitGroup     // waits for the goroutines of the method run and of fetches
	// wake starts a pass. The channel has room for one signal.
	wake chan struct{}

	passing chan struct{} // semaphore, held during a pass
	// refs reads the refs of the git directory.
	refs   gitRefs
	before *refsOf // refs that the last pass read; nil before the first pass
	// repo is the session's bare repository; nil until it is opened, before the first ref is copied.
	repo    *session.Repo
	watched map[string]func() // functions that stop the watches, by directory
	reused  *reused           // fetches contents for git; nil unless the Repo is the session remote

	mu sync.Mutex // protects failure
	// failure is the error of the last pass; nil if that pass succeeded.
	failure error
}

// New starts a goroutine that copies the present refs, watches the git directory, and copies refs whenever they change.
// The caller must call Close.
func New(o Options) *Copier {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &Copier{
		o: o, log: o.Log, ctx: ctx, cancel: cancel, wake: make(chan struct{}, 1), passing: make(chan struct{}, 1),
		refs: gitRefs{dir: o.GitDir, format: o.Format}, watched: map[string]func(){},
	}
	c.done.Go(func() { c.run(ctx) })
	return c
}

// Flush copies all refs with their present object ids. It returns when the Repo has them.
func (c *Copier) Flush(ctx context.Context) error {
	next, err := c.pass(ctx)
	if err != nil || next > 0 {
		select { // wake the goroutine of the method run, because another pass is needed
		case c.wake <- struct{}{}:
		default:
		}
	}
	return err
}

// Close cancels a pass in progress, waits for its end, and stops all watches.
func (c *Copier) Close() {
	c.cancel()
	c.done.Wait()
	c.passing <- struct{}{}
	for _, stop := range c.watched {
		stop()
	}
	clear(c.watched)
	<-c.passing
}

// run makes a pass after each signal of a watch, and a few extra passes at growing intervals. The extra passes find
// refs that no watch has reported: git removes empty directories of refs and creates them again, and a file in a new
// directory causes no signal until the directory is watched. If the git directory does not change, run only waits for a
// signal. It returns when ctx ends.
func (c *Copier) run(ctx context.Context) {
	failures, again := 0, extraPassDelay
	for {
		next, err := c.pass(ctx)
		if ctx.Err() != nil {
			return
		}
		// Count the consecutive failures, on which the delay of the next retry depends.
		if failures++; err == nil {
			failures = 0
		}
		var timer <-chan time.Time
		switch {
		case err != nil:
			timer = time.After(pauses.Pause(failures))
		case next > 0:
			timer = time.After(next)
		// Make an extra pass, which finds refs that no watch has reported.
		case again < maxExtraPassDelay:
			timer = time.After(again)
			again *= 3
		}
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
			again = extraPassDelay
		case <-timer:
			continue
		}
		if !clock.Wait(ctx, settleDelay) {
			return
		}
		// drop a signal that arrived during the delay, because the next pass also reads the changes that caused the signal
		select {
		case <-c.wake:
		default:
		}
	}
}

// pass copies the refs that have changed since the last pass. next is the delay until a further pass that must be made
// even if no watch reports a change; 0 if none is needed.
func (c *Copier) pass(ctx context.Context) (next time.Duration, err error) {
	select {
	case c.passing <- struct{}{}:
		defer func() { <-c.passing }()
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	defer func() {
		if ctx.Err() == nil {
			c.reportPass(err)
		}
	}()
	// Read the refs after the watches were set. If a directory was not watched before, refs may have appeared in the
	// directory after the reading and before the watch, so read the refs again. The number of tries is limited, because a
	// process may create directories without end.
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
			next = pollInterval
		case fresh || now.locked:
			next = lockedDelay
		}
		// The first pass has no earlier values to compare with, so it does not report a move.
		moved, had := c.before != nil && !c.before.same(now), c.repo != nil
		c.before = &now
		c.notifyMoved(moved)
		err = c.copyRefs(ctx, now)
		c.notifyMoved(c.repo != nil && !had) // a checkpoint can be made from now on, because the Repo exists
		return next, err
	}
}

// notifyMoved calls Options.Moved if moved is set.
func (c *Copier) notifyMoved(moved bool) {
	if moved && c.o.Moved != nil {
		c.o.Moved()
	}
}

// watch starts to watch the directories dirs, and stops to watch other directories. fresh states that a directory was
// not watched before; ok states that all existing directories are watched now. watch passes each directory to
// Options.Watch in every call, because a directory that was removed and created again is not watched any more, even if
// it has the same inode number. The caller holds passing.
func (c *Copier) watch(dirs []string) (fresh, ok bool) {
	// If the field Watch is nil, the refs are read at regular intervals instead.
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
			// A directory that was removed after dirs was read needs no watch.
			if _, statErr := os.Lstat(dir); statErr == nil {
				ok = false
			}
			continue
		}
		if !another {
			continue
		}
		// An old watch under this name belongs to a directory that was removed.
		if before := c.watched[dir]; before != nil {
			before()
		}
		c.watched[dir], fresh = stop, true
	}
	return fresh, ok
}

// reportPass records err as the result of the last pass; nil means that it succeeded. It logs an error, unless the
// previous pass returned an error with the same text. It calls Options.Failed for each error, and for the first success
// after an error.
func (c *Copier) reportPass(err error) {
	c.mu.Lock()
	before := c.failure
	c.failure = err
	c.mu.Unlock()
	// Retries that fail for the same reason are not logged again.
	if err != nil && (before == nil || before.Error() != err.Error()) {
		c.log.Warn("copy refs to the session repository", zap.String("session", c.o.Session), zap.Error(err))
	}
	// A success is reported only after a failure.
	if c.o.Failed != nil && (err != nil || before != nil) {
		c.o.Failed(err)
	}
}
