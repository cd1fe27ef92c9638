package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/writeback"
)

const (
	takenTries = 3               // what others do meanwhile
	takenWait  = 2 * time.Second // for takenOver to be done
)

// takenOver is told when somebody else has moved a ref of the session's own: he has taken the lane over, or changed what the
// session is. What he made is here by then. This mount goes on beside him, so that nothing is lost.
func (c *carry) takenOver(t writeback.Taken) {
	c.mount.daemon.log.Warn("another mount has moved a ref of the session", zap.String("session", c.mount.session), zap.String("ref", t.Ref))
	ctx := context.Background()
	c.opening.Lock() // the queue that tells us was begun there
	//lint:ignore SA2001 taking the lock waits for its holder
	c.opening.Unlock()
	c.mu.Lock()
	joined := c.queue != nil
	c.mu.Unlock()
	if !joined || c.alone(ctx) != nil {
		return
	}
	defer c.letOthers()
	var err error
	if t.Ref == session.MetaRef(c.mount.session) {
		var given bool
		if given, err = c.giveUpClaim(ctx, t); err == nil && !given {
			err = c.yield(ctx, t)
		}
	} else {
		err = c.makeWay(ctx, t)
	}
	c.note("follow what others did to the session", err)
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.followed)
	c.followed = make(chan struct{})
	if err == nil {
		c.queue.Wake()
	}
}

// yield goes on from what others made of the session, in a lane of our own if they took ours.
func (c *carry) yield(ctx context.Context, t writeback.Taken) error {
	c.mu.Lock()
	repo, lane, writer := c.repo, c.lane, c.writer
	c.mu.Unlock()
	meta, ours, err := session.Yield(ctx, repo, session.YieldRequest{
		Session: c.mount.session, Lane: lane.Name, Writer: writer, Theirs: t.Theirs, Actor: session.Actor(),
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.meta, c.lane = meta, ours
	if ours.Name != lane.Name {
		c.capturer.SetLane(ours.Name, ours.Segment)
		text := takenText(meta, lane.Name, ours.Name)
		c.notes = append(c.notes, text)
		c.mount.daemon.log.Warn("taken over: "+text, zap.String("dir", c.mount.dir))
	}
	return nil
}

// takenText says who goes on in a lane that was ours.
func takenText(meta session.Meta, theirs, ours string) string {
	for _, l := range meta.Lanes {
		if l.Name == theirs {
			return fmt.Sprintf("%s has taken session %s over at %s: checkpoints of this mount go to lane %s",
				l.Writer.Host, meta.Session, l.Since.Format(time.RFC3339), ours)
		}
	}
	return fmt.Sprintf("session %s was taken over: checkpoints of this mount go to lane %s", meta.Session, ours)
}

// makeWay leaves a segment to somebody else who has made points in it: ours are in another one from now on.
func (c *carry) makeWay(ctx context.Context, t writeback.Taken) error {
	lane, _, ok := strings.Cut(strings.TrimPrefix(t.Ref, session.LanePrefix(c.mount.session)), "/")
	if !ok || !strings.HasPrefix(t.Ref, session.LanePrefix(c.mount.session)) {
		return nil
	}
	c.mu.Lock()
	repo, ours := c.repo, c.lane
	c.mu.Unlock()
	mine, err := repo.Ref(t.Ref)
	if err != nil || mine.IsZero() {
		return err
	}
	if newer, err := follows(repo, t.Theirs, mine); err != nil || newer {
		if err == nil {
			err = repo.Update(ctx, []session.RefChange{{Name: t.Ref, Old: mine, New: t.Theirs}})
		}
		return err
	}
	segments, err := repo.Segments(lane)
	if err != nil {
		return err
	}
	free := slices.Max(append(segments, ours.Segment)) + 1
	if err := repo.Update(ctx, []session.RefChange{
		{Name: session.SegmentRef(c.mount.session, lane, free), New: mine}, {Name: t.Ref, Old: mine, New: t.Theirs},
	}); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if lane == ours.Name {
		c.capturer.SetLane(lane, free+1)
	}
	c.notes = append(c.notes, "another mount has made checkpoints in lane "+lane+" too: ours of then are in its segment "+strconv.Itoa(free))
	return nil
}

// follows says whether a point was made on top of another one, in the same segment.
func follows(repo *session.Repo, point, other object.ID) (bool, error) {
	for at := point; !at.IsZero(); {
		if at == other {
			return true, nil
		}
		_, content, err := repo.Get(at, object.MaxCommitSize)
		if err != nil {
			return false, err
		}
		if at, err = session.PointParent(repo.Format(), content); err != nil {
			return false, err
		}
	}
	return false, nil
}

// send returns when the session remote has what the repository has. If others have moved something of the session's own, it
// is sent once more when that was settled.
func (c *carry) send(ctx context.Context, progress func(writeback.Status)) error {
	c.mu.Lock()
	queue := c.queue
	c.mu.Unlock()
	if queue == nil {
		return nil
	}
	for try := 1; ; try++ {
		c.mu.Lock()
		followed := c.followed
		c.mu.Unlock()
		err := queue.Sync(ctx, progress)
		if !errors.Is(err, writeback.ErrMoved) || len(queue.Status().Moved) == 0 || try == takenTries {
			return err
		}
		select {
		case <-followed:
		case <-time.After(takenWait):
			return err
		case <-ctx.Done():
			return err
		}
	}
}
