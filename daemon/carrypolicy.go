package daemon

import (
	"context"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session"
)

// When points are made without being asked for. Whoever writes without a pause gets one every idleMost.
const (
	idleRest = 2 * time.Second  // writes have settled when there was none for so long
	idleMost = 10 * time.Second // between the points of one who goes on writing, and after which a change is in one

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
	c.mu.Lock()
	kind := c.kind
	c.mu.Unlock()
	if kind == control.PolicyIdle || kind == control.PolicyInterval {
		c.makePoints(ctx)
	}
}

// goOn opens the session's repository, if there is one, so that what a process before this one has not sent is sent.
func (c *carry) goOn(ctx context.Context) {
	for retry := retryFirst; hasRepo(c.mount.home.dir); retry = min(2*retry, retryMost) {
		_, err := c.open(ctx)
		c.note("open the session", err)
		if err == nil || !pause(ctx, retry) {
			return
		}
	}
}

// makePoints makes points by the policy until ctx ends. It waits for the tree to tell of a change: a mount at rest costs
// nothing.
func (c *carry) makePoints(ctx context.Context) {
	noticed := c.mount.tree.Noticed()
	changed := c.unsaved() // by a process before this one
	var made time.Time     // when the last one was
	retry := retryFirst
	for {
		if !changed {
			select {
			case <-noticed:
			case <-c.git.moved:
				c.git.told()
			case <-ctx.Done():
				return
			}
		}
		if !c.rest(ctx, time.Now(), made) {
			return
		}
		drain(noticed) // what was told of until now is in the point
		drain(c.git.moved)
		var err error
		if c.unsaved() {
			_, _, err = c.point(ctx, c.reason(), "")
			made = time.Now()
		}
		if ctx.Err() != nil {
			return
		}
		changed = err != nil
		if err == nil {
			retry = retryFirst
			continue
		}
		if !pause(ctx, retry) {
			return
		}
		retry = min(2*retry, retryMost)
	}
}

// reason is that of points that the policy makes.
func (c *carry) reason() session.Reason {
	if c.kind == control.PolicyInterval {
		return session.Interval
	}
	return session.Idle
}

// rest waits until a point is due for what was changed first at a time, the last one having been made at another; false:
// ctx has ended.
func (c *carry) rest(ctx context.Context, first, made time.Time) bool {
	for {
		if drain(c.git.moved) {
			c.git.told()
		}
		last := c.mount.tree.LastChange()
		if at := c.git.last(); at.After(last) {
			last = at
		}
		wait := time.Until(c.due(first, last, made))
		if wait <= 0 {
			return true
		}
		if !pause(ctx, wait) {
			return false
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
// point would hold, which whoever makes one finds out.
type gitSigns struct {
	moved chan struct{} // holds one

	mu sync.Mutex
	at time.Time
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
func (g *gitSigns) watch(w *watcher) func(dir string, wake chan<- struct{}) (stop func(), err error) {
	return func(dir string, wake chan<- struct{}) (func(), error) {
		theirs, err := w.watch(dir, wake)
		if err != nil {
			return nil, err
		}
		ours, err := w.watch(dir, g.moved)
		if err != nil {
			theirs()
			return nil, err
		}
		return func() { theirs(); ours() }, nil
	}
}
