package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/clock"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/writeback"
)

// followTries is the maximum number of attempts to push if the session remote refuses a push because other writers have
// changed refs. followWait is the timeout for processing each of these changes.
const (
	followTries = 3
	followWait  = 2 * time.Second
)

// Push waits until everything in the session repository is pushed. If another writer has changed a ref of the session,
// Push waits until that change was processed and pushes again, with at most followTries attempts. progress is called
// during the push.
func (a *Agent) Push(ctx context.Context, progress func(writeback.Status)) error {
	queue := a.opened().queue
	if queue == nil {
		return nil
	}
	for try := 1; ; try++ {
		a.mu.Lock()
		followed := a.followed
		a.mu.Unlock()
		err := queue.Sync(ctx, progress)
		if !errors.Is(err, writeback.ErrMoved) || len(queue.Status().Moved) == 0 || try == followTries {
			return err
		}
		select {
		case <-followed:
		case <-time.After(followWait):
			return err
		case <-ctx.Done():
			return err
		}
	}
}

// otherWriters processes the changes that other machines make to the session: they take over the lane, change the
// metadata, or create checkpoints in the same segment. After each change it closes Agent.followed.
type otherWriters struct{ agent *Agent }

// follow processes the change t of a ref of the session by another writer, which has taken over the lane, changed the
// metadata or created a checkpoint. The push queue calls it after it has fetched the objects of the ref's new value.
// This mount continues to write to other refs, so that neither writer's checkpoints are lost.
func (o otherWriters) follow(t writeback.Taken) {
	a := o.agent
	a.log.Warn("ref of session was changed by another mount", zap.String("session", a.config.Session),
		zap.String("ref", t.Ref))
	ctx := context.Background()
	a.opening.Lock() // join holds this lock, and the queue may call follow before join has returned
	//lint:ignore SA2001 taking the lock waits for its holder
	a.opening.Unlock()
	if a.opened().queue == nil || a.Lock(ctx) != nil {
		return
	}
	defer a.Unlock()
	var err error
	if t.Ref == session.MetaRef(a.config.Session) {
		var given bool
		if given, err = a.claim.giveUp(ctx, t); err == nil && !given {
			err = o.yield(ctx, t)
		}
	} else {
		err = o.yieldSegment(ctx, t)
	}
	a.problems.note("follow changes of other mounts to the session", err)
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.followed)
	a.followed = make(chan struct{})
	if err == nil {
		a.work.queue.Wake()
	}
}

// yield accepts the metadata that another writer has pushed. If that writer has taken over the lane of this mount,
// yield moves this mount to a new lane. It adds a note for the user then, and if that writer has closed the session.
func (o otherWriters) yield(ctx context.Context, t writeback.Taken) error {
	a := o.agent
	a.mu.Lock()
	repo, lane := a.work.repo, a.lane
	a.mu.Unlock()
	theirs, err := session.MetaAt(repo, repo.Format(), t.Theirs)
	if err != nil {
		return err
	}
	before, _, err := session.ReadMeta(repo, a.config.Session)
	if err != nil {
		return err
	}
	meta, ours, err := session.Yield(ctx, repo, session.YieldRequest{
		Session: a.config.Session, Lane: lane.Name, Writer: a.claim.owner(), Theirs: t.Theirs, Actor: session.Actor(),
	})
	if err != nil {
		return err
	}
	o.sweepErased(ctx, repo, before, meta)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.meta, a.lane = meta, ours
	if n := len(theirs.Transitions); n > 0 && theirs.Ended() != nil {
		last := theirs.Transitions[n-1]
		text :=
			fmt.Sprintf("%s has %s session %s at %s, while it was mounted here: it is active again, because this mount continues",
				last.Actor, last.State, meta.Session, last.Time.Format(time.RFC3339))
		if !slices.Contains(a.notes, text) {
			a.notes = append(a.notes, text)
		}
		a.log.Warn(text, zap.String("dir", a.config.Dir))
	}
	if ours.Name != lane.Name {
		a.work.capturer.SetLane(ours.Name, ours.Segment)
		text := takeoverNote(meta, lane.Name, ours.Name)
		a.notes = append(a.notes, text)
		a.log.Warn("taken over: "+text, zap.String("dir", a.config.Dir))
	}
	return nil
}

// takeoverNote returns the note for the user that another host has taken over the lane theirs, and that this mount
// continues in the lane ours.
func takeoverNote(meta session.Meta, theirs, ours string) string {
	for _, l := range meta.Lanes {
		if l.Name == theirs {
			return fmt.Sprintf("%s took over session %s at %s: checkpoints of this mount go to lane %s",
				l.Writer.Host, meta.Session, l.Since.Format(time.RFC3339), ours)
		}
	}
	return fmt.Sprintf("session %s was taken over: checkpoints of this mount go to lane %s", meta.Session, ours)
}

// takenBy returns the host that has taken over the lane in which this mount started, or "" if no host has. The caller
// must hold a.mu.
func (a *Agent) takenBy() string {
	if a.lane.Name == "" || a.lane.Name == session.MainLane {
		return ""
	}
	owner := a.claim.owner()
	for _, l := range a.meta.Lanes {
		if l.Name == session.MainLane && !l.Writer.Same(owner) {
			return l.Writer.Host
		}
	}
	return ""
}

// ContinuedBy returns the host that has continued the session after the last mount of it on this host, or "" if none
// has. newest is the newest checkpoint of the lane that was on this host when the mount claimed the lane, or "" if
// there was none. answered is false if the session remote has not answered while the mount waited for it. Then another
// host may have continued the session, and the notes of the status say so when it answers.
func (a *Agent) ContinuedBy() (host string, newest session.CheckpointID, answered bool) {
	a.claim.mu.Lock()
	answered = !a.claim.unknown
	a.claim.mu.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	return cmp.Or(a.takenBy(), a.previous), a.checkpoints.newest.ID, answered
}

// yieldSegment processes the change t: another writer has created checkpoints in a segment of this mount. It sets the
// ref of the segment to the other writer's commit. If that commit does not contain this mount's checkpoints,
// yieldSegment moves them to a new segment.
func (o otherWriters) yieldSegment(ctx context.Context, t writeback.Taken) error {
	a := o.agent
	lane, _, ok := strings.Cut(strings.TrimPrefix(t.Ref, session.LanePrefix(a.config.Session)), "/")
	if !ok || !strings.HasPrefix(t.Ref, session.LanePrefix(a.config.Session)) {
		return nil
	}
	a.mu.Lock()
	repo, ours := a.work.repo, a.lane
	a.mu.Unlock()
	mine, err := repo.Ref(t.Ref)
	if err != nil || mine.IsZero() {
		return err
	}
	if newer, err := isOnTop(repo, t.Theirs, mine); err != nil || newer {
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
		{Name: session.SegmentRef(a.config.Session, lane, free), New: mine}, {Name: t.Ref, Old: mine, New: t.Theirs},
	}); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if lane == ours.Name {
		a.work.capturer.SetLane(lane, free+1)
	}
	a.notes = append(a.notes,
		"another mount has written checkpoints to lane "+lane+", too: those of this mount are in its segment "+
			strconv.Itoa(free))
	return nil
}

// isOnTop reports whether other is the given checkpoint, or one of its ancestors in the same segment. Both are commits
// of checkpoints.
func isOnTop(repo *session.Repo, checkpoint, other object.ID) (bool, error) {
	for at := checkpoint; !at.IsZero(); {
		if at == other {
			return true, nil
		}
		_, content, err := repo.Get(at, object.MaxCommitSize)
		if err != nil {
			return false, err
		}
		if at, err = session.CheckpointParent(repo.Format(), content); err != nil {
			return false, err
		}
	}
	return false, nil
}

// Intervals at which a mount that pushes nothing requests the metadata ref, to learn whether its lane was taken over (a
// push returns the same information): lookInterval while its files change, and lookIdleInterval if they have not
// changed for idleAfter; more often if the lease is short. A mount whose session was never pushed requests nothing,
// because other machines cannot take over such a session.
const (
	lookInterval     = 4 * time.Second
	lookIdleInterval = 30 * time.Second
	idleAfter        = 10 * time.Minute
)

// look requests the changes of the session by other writers at regular intervals until ctx ends.
func (o otherWriters) look(ctx context.Context) {
	a := o.agent
	if a.config.Remotes.Session() == nil {
		return
	}
	began := time.Now()
	for wait := lookInterval; clock.Wait(ctx, wait); {
		active := a.config.Tree.LastChange()
		if active.Before(began) {
			active = began
		}
		if wait = min(lookInterval, a.claim.lease()/3); time.Since(active) > idleAfter {
			wait = min(lookIdleInterval, a.claim.lease()/3)
		}
		if err := o.lookOnce(ctx); err != nil && ctx.Err() == nil {
			a.log.Debug("read claim of session", zap.String("session", a.config.Session), zap.Error(err))
			wait = lookIdleInterval
		}
	}
}

// lookOnce requests the metadata ref from the session remote. If another writer has changed the ref, the push queue
// fetches the change and calls follow.
func (o otherWriters) lookOnce(ctx context.Context) error {
	a := o.agent
	w := a.opened()
	if w.repo == nil || w.queue == nil {
		return nil
	}
	ref := session.MetaRef(a.config.Session)
	ours, err := w.repo.Ref(ref)
	if err != nil || ours.IsZero() {
		return err
	}
	theirs, err := a.config.Remotes.SessionRef(ctx, ref)
	switch {
	case err != nil:
		return err
	case theirs.IsZero() && !w.queue.Status().LastSync.IsZero():
		// the session was deleted, or the session remote has lost it
		return w.queue.Sync(ctx, nil)
	case theirs.IsZero():
		return nil
	case theirs == ours: // the claim is in force, and the session remote can be reached
		return o.renew(ctx, w.repo)
	case session.Within(w.repo, ours, theirs):
		return nil
	}
	return w.queue.Sync(ctx, nil)
}

// renew renews the lease of this writer: if a third of the lease has passed since the last renewal, it records the
// current time in the metadata, which the queue then pushes.
func (o otherWriters) renew(ctx context.Context, repo *session.Repo) error {
	a := o.agent
	a.mu.Lock()
	lane := a.lane
	a.mu.Unlock()
	if !lane.Due(time.Now()) {
		return nil
	}
	renewed, err := session.Renew(ctx, repo, a.config.Session, lane.Name, a.claim.owner())
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil && a.lane.Name == lane.Name {
		a.lane.Seen = renewed.Seen
	}
	return err
}
