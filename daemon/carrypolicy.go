package daemon

import (
	"context"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/statedir"
)

// When points are made without being asked for. Whoever writes without a pause gets one every idleMost.
const (
	idleRest = 2 * time.Second  // writes have settled when there was none for so long
	idleMost = 10 * time.Second // between the points of one who goes on writing, and after which a change is in one

	gitRest = 200 * time.Millisecond // a git command is done when it has moved no ref for so long
	gitMost = time.Second            // between the points of one that goes on moving them, and after which a move is in one

	removalRest = time.Second // between the points of one who goes on removing

	riskTime = 10 * time.Second // for which a git command is kept waiting, at most
)

// guards says whether points are made before git commands that throw work away.
func (c *carry) guards() bool {
	if !c.carries() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return (c.kind == control.PolicyIdle || c.kind == control.PolicyBeforeRisk) && !c.closed
}

// begin starts to carry, when the git directory is there.
func (c *carry) begin(ctx context.Context) {
	if !c.carries() {
		return
	}
	c.beginCarrier(ctx)
	c.goOn(ctx)
	c.mount.behind("look who works in the session", func() { c.lookForOthers(ctx) })
	c.mount.behind("look what the session's parent erased", func() { c.followErasures(ctx) })
	if c.makes() {
		c.makePoints(ctx)
	}
}

// goOn opens the session's repository, if there is one, so that what a process before this one has not sent is sent.
func (c *carry) goOn(ctx context.Context) {
	for retry := retryFirst; statedir.HasSessionRepo(c.mount.home.Dir); retry = min(2*retry, retryMost) {
		_, err := c.open(ctx)
		c.note("open the session", err)
		if err == nil || !pause(ctx, retry) {
			return
		}
	}
}

// waiting is what the policy knows of changes that no point has yet.
type waiting struct {
	noticed, signs <-chan struct{} // of files, and of the git directory; nil: they alone are no reason for a point
	removed        <-chan struct{} // many files were removed that no point has
	first          time.Time       // change of them; zero: there is none
	made           time.Time       // when the last point was
	tried          time.Time       // when somebody looked last whether one is to be made
	took           time.Duration   // that look
}

// makePoints makes points by the policy until ctx ends. It waits for the tree and the git directory to tell of a change: a
// mount at rest costs nothing.
func (c *carry) makePoints(ctx context.Context) {
	w := waiting{removed: c.mount.tree.MassRemoval()}
	if c.kind != control.PolicyBeforeRisk {
		w.noticed, w.signs = c.mount.tree.Noticed(), c.git.moved
		if c.unsaved() { // by a process before this one
			w.first = time.Now()
		}
	}
	retry := retryFirst
	for {
		reason, ok := c.rest(ctx, &w)
		if !ok {
			return
		}
		// What was told of until now is in the point.
		moved := c.git.clear()
		drain(w.noticed)
		drain(w.signs)
		w.first, w.tried = time.Time{}, time.Now()
		var made bool
		var err error
		if reason == session.Removal || c.unsaved() && !c.mount.asFollowed(ctx, false) {
			_, made, err = c.point(ctx, reason, "")
		}
		w.took = time.Since(w.tried)
		if made {
			w.made = time.Now()
		}
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			retry = retryFirst
			continue
		}
		if moved {
			c.git.movedRef()
		}
		if w.noticed != nil {
			w.first = time.Now()
		}
		if !pause(ctx, retry) {
			return
		}
		retry = min(2*retry, retryMost)
	}
}

// rest waits until a point is due, and says why; false: ctx has ended.
func (c *carry) rest(ctx context.Context, w *waiting) (session.Reason, bool) {
	for {
		if drain(w.signs) {
			c.git.told()
			if w.first.IsZero() {
				w.first = time.Now()
			}
		}
		at, reason := c.git.due(w.tried, w.took), session.Git
		if !w.first.IsZero() {
			last := c.mount.tree.LastChange()
			if told := c.git.last(); told.After(last) {
				last = told
			}
			if by := c.due(w.first, last, w.made); at.IsZero() || by.Before(at) {
				at, reason = by, session.Idle
				if c.kind == control.PolicyInterval {
					reason = session.Interval
				}
			}
		}
		if latest, full, many := c.mount.tree.MassRemoved(); many {
			drain(w.removed)
			soon := w.tried.Add(min(max(removalRest, 5*w.took), idleMost))          // what was removed is kept until then
			if rested := latest.Add(removalRest / 4); !full && rested.After(soon) { // to hash it would delay who is removing
				soon = rested
			}
			if at.IsZero() || soon.Before(at) {
				at, reason = soon, session.Removal
			}
		}
		if at.IsZero() {
			select {
			case <-w.removed:
			case <-w.noticed:
				w.first = time.Now()
			case <-w.signs:
				c.git.told()
				w.first = time.Now()
			case <-c.git.refs:
			case <-ctx.Done():
				return "", false
			}
			continue
		}
		wait := time.Until(at)
		if wait <= 0 {
			return reason, true
		}
		select {
		case <-w.removed:
		case <-time.After(wait):
		case <-c.git.refs:
		case <-ctx.Done():
			return "", false
		}
	}
}

// due is when a point is to be made.
func (c *carry) due(first, last, made time.Time) time.Time {
	if c.kind == control.PolicyInterval {
		return first.Add(c.every)
	}
	at := last.Add(idleRest)
	if most := first.Add(idleMost); most.Before(at) {
		at = most
	}
	if least := made.Add(idleMost); !made.IsZero() && at.Before(least) {
		at = least
	}
	return at
}

// pause waits; false: ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// drain empties a channel that holds one sign, and says whether there was one.
func drain(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// gitSigns tell that something has moved in the git directory: refs, HEAD, the index. Much of that changes nothing that a
// point would hold, which whoever makes one finds out. Of branches, HEAD and stashes it is known that they are not where
// they were: a commit is carried away at once, and the point that goes with it must not be long in coming.
type gitSigns struct {
	moved chan struct{} // holds one
	refs  chan struct{} // holds one, when a ref has moved

	mu            sync.Mutex
	at            time.Time
	first, latest time.Time // moves of refs that are in no point yet: the first, and the latest; zero: there are none
}

// movedRef is told when a ref is not where it was.
func (g *gitSigns) movedRef() {
	g.mu.Lock()
	g.latest = time.Now()
	if g.first.IsZero() {
		g.first = g.latest
	}
	g.mu.Unlock()
	select {
	case g.refs <- struct{}{}:
	default:
	}
}

// clear says whether refs have moved, and forgets it.
func (g *gitSigns) clear() bool {
	drain(g.refs)
	g.mu.Lock()
	defer g.mu.Unlock()
	moved := !g.first.IsZero()
	g.first, g.latest = time.Time{}, time.Time{}
	return moved
}

// due is when a point of moved refs is to be made, if somebody has looked for changes at a time, which took so long; zero:
// none has moved. What takes long is done more rarely, so that a rebase of a hundred commits is not kept waiting by it.
func (g *gitSigns) due(tried time.Time, took time.Duration) time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.first.IsZero() {
		return time.Time{}
	}
	at := g.latest.Add(gitRest)
	if by := g.first.Add(gitMost); by.Before(at) {
		at = by
	}
	if least := tried.Add(min(max(gitMost, 5*took), idleMost)); !tried.IsZero() && at.Before(least) {
		at = least
	}
	return at
}

// sign is what the watcher does.
func (g *gitSigns) sign() {
	select {
	case g.moved <- struct{}{}:
	default:
	}
}

func (g *gitSigns) told() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.at = time.Now()
}

// last is when something moved last, as far as somebody has looked.
func (g *gitSigns) last() time.Time {
	if len(g.moved) > 0 {
		return time.Now()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.at
}

// watch is the watcher's for others who watch the git directory, and tells us of the same.
func (g *gitSigns) watch(w *watcher) func(dir string, wake chan<- struct{}) (stop func(), fresh bool, err error) {
	return func(dir string, wake chan<- struct{}) (func(), bool, error) {
		theirs, fresh, err := w.watch(dir, wake)
		if err != nil || !fresh {
			return nil, false, err
		}
		ours, fresh, err := w.watch(dir, g.moved)
		if err != nil {
			theirs()
			return nil, false, err
		}
		if !fresh {
			return theirs, true, nil
		}
		return func() { theirs(); ours() }, true, nil
	}
}
