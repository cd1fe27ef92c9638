// Package refcopy copies the branches, tags and notes refs of a mount's git directory into the bare repository of the
// session: session.Repo, "the Repo" below. It copies them whenever they move, with the objects that git created for
// them. A Copier works in passes. Copier.pass reads the refs (gitRefs.read), compares them with the Repo and with the
// list of the refs that were copied before (Copier.moves), copies the objects, and then updates the refs of the Repo
// (Copier.carry).
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
	// settle is the delay between a change and the pass that copies the change. During the delay, the git command that made the
	// change can move further refs and remove its lock files.
	settle = 15 * time.Millisecond
	// lockedFor is the delay before the refs are read again while git holds the lock of a ref.
	lockedFor = 20 * time.Millisecond
	// unwatched is the polling interval for directories that cannot be watched.
	unwatched = time.Second
	// firstLook is the delay before the first extra pass that Copier.run makes after a change. The delay triples with each
	// extra pass; when the delay has reached lastLook, there are no more extra passes.
	firstLook = 100 * time.Millisecond
	lastLook  = 10 * time.Second
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
	// Refs returns the known branches and tags of the mounted remote. A ref of the mount that has the same name and value as
	// one of them is not copied.
	Refs func() []packedrefs.Ref
	// Watch starts a watch of the directory dir: until the function stop is called, Watch sends to the channel wake, without
	// blocking, whenever a file appears in dir or dir is removed. The result fresh is false if dir is watched already; the
	// Copier does not use stop in this case. If the field Watch is nil, the refs are read at regular intervals.
	Watch func(dir string, wake chan<- struct{}) (stop func(), fresh bool, err error)
	// Provide is set if the Repo itself is the session remote. It fetches the contents that stock git needs when it
	// fetches from the Repo.
	Provide objects.Provider
	// Moved is called when a branch, tag, notes ref, stash or HEAD has moved, before the ref is copied. It is also called
	// after the Repo was opened. It must not block. Moved may be nil.
	Moved func()
	// Failed is called with the error of each failed pass, and with nil after the next success. Failed may be nil.
	Failed func(error)
	Log    *zap.Logger // logger; nil disables logging
}

// Copier copies the branches, tags and notes refs of a mount's git directory into the session's Repo whenever they
// move, with the objects that git created for them. It works in passes: each reads the refs and copies the changed ones.
//
// Locks: passing is a semaphore that is held during a pass, also during disk and network I/O. It protects the fields from
// refs to reused. mu is a leaf lock (no other lock is taken while mu is held), which protects the field failure.
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
	// repo is the session's bare repository; nil while it was not opened, because there was no ref to copy yet.
	repo    *session.Repo
	watched map[string]func() // functions that stop the watches, by directory
	reused  *reused           // nil unless the Repo is the session remote

	mu sync.Mutex // protects failure
	// failure is the error of the last pass; nil if that pass succeeded.
	failure error
}

// New starts a goroutine that copies the present refs, watches the git directory and copies refs that move. The
// caller must call Close.
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

// Flush copies all refs with their present values, and returns after the Repo has these values.
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

// run makes a pass after each signal of a watch, and a few extra passes at growing intervals. The extra passes find refs
// that no watch has reported: git removes directories of refs that become empty and creates them again, and a file that
// appears in a new directory before the directory is watched causes no signal. When the git directory stays unchanged,
// run only waits for a signal. It returns when ctx is done.
func (c *Copier) run(ctx context.Context) {
	failures, again := 0, firstLook
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
		if !clock.Wait(ctx, settle) {
			return
		}
		select { // drop a signal that arrived during the delay, because the next pass also reads the changes that caused the signal
		case <-c.wake:
		default:
		}
	}
}

// pass copies the refs that have moved since the last pass. The result next is the delay until a pass that must be made even if
// no watch reports a change; next is 0 if no such pass is needed.
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
	// Read the refs after the watches were set. If a directory was not watched before, refs may have appeared in the directory
	// after the reading and before the watch, so read the refs again. The number of tries is limited, because a process may
	// create directories without end.
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
		// The first pass has no earlier values to compare with, so it does not report a move.
		moved, had := c.before != nil && !c.before.same(now), c.repo != nil
		c.before = &now
		c.notifyMoved(moved)
		err = c.carry(ctx, now)
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

// watch starts watches of all directories in dirs, and stops the watches of other directories. fresh reports whether a directory
// was not watched before; ok reports whether all existing directories are watched now. watch passes each directory to
// Options.Watch in every call, because a directory that was removed and created again is not watched any more. The inode
// number does not show this, because the new directory may have the inode number of the old one. The caller holds passing.
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

// reportPass records err as the result of the last pass; err is nil if the pass succeeded. It logs a failure unless the pass before
// failed with the same text. It calls Options.Failed for each failure and for the first success after a failure.
func (c *Copier) reportPass(err error) {
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
