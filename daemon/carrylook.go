package daemon

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/writeback"
)

// A mount that sends something learns of a take-over from the answer. A mount with nothing to send asks for one ref: every
// lookEvery while its files change, and every lookIdle after idleAfter without a change. Only a session that the session
// remote has can be taken over, so a mount without any work asks nothing.
const (
	lookEvery = 4 * time.Second
	lookIdle  = 30 * time.Second
	idleAfter = 10 * time.Minute
)

// lookForOthers notices a take-over of the session until ctx ends.
func (c *carry) lookForOthers(ctx context.Context) {
	if c.mount.second == nil {
		return
	}
	began := time.Now()
	for wait := lookEvery; pause(ctx, wait); {
		active := c.mount.tree.LastChange()
		if active.Before(began) {
			active = began
		}
		if wait = lookEvery; time.Since(active) > idleAfter {
			wait = lookIdle
		}
		if err := c.lookOnce(ctx); err != nil && ctx.Err() == nil {
			c.mount.daemon.log.Debug("look who works in the session", zap.String("session", c.mount.session), zap.Error(err))
			wait = lookIdle
		}
	}
}

// lookOnce asks the session remote what the session is, and has the queue follow what others made of it.
func (c *carry) lookOnce(ctx context.Context) error {
	c.mu.Lock()
	repo, queue := c.repo, c.queue
	c.mu.Unlock()
	if repo == nil || queue == nil {
		return nil
	}
	ref := session.MetaRef(c.mount.session)
	ours, err := repo.Ref(ref)
	if err != nil || ours.IsZero() {
		return err
	}
	refs, err := c.mount.second.Remote.Refs(ctx, []string{ref})
	if err != nil {
		return err
	}
	for _, r := range refs.List {
		if r.Name == ref && r.ID != ours && !writeback.Within(repo, ours, r.ID) {
			return queue.Sync(ctx, nil)
		}
	}
	return nil
}

// takenBy is the host that has taken the lane over in which this mount began; "": none.
func (c *carry) takenBy() string {
	if c.lane.Name == "" || c.lane.Name == session.MainLane {
		return ""
	}
	for _, l := range c.meta.Lanes {
		if l.Name == session.MainLane && !l.Writer.Same(c.writer) {
			return l.Writer.Host
		}
	}
	return ""
}
