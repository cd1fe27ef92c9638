package agent

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/writeback"
)

// The session remote decides which writer has a lane, because it accepts only one of two concurrent claims, and because
// the metadata on this host may be out of date. Therefore a mount waits until the session remote has acknowledged its
// claim, and is refused if another writer uses the lane. If the session remote does not answer, the mount starts
// nevertheless. If it turns out later that another writer has the lane, this mount continues in a new lane (yield).

// confirmTime is the timeout for the acknowledgement of a claim by the session remote.
const confirmTime = 5 * time.Second

// laneClaim is the claim of this process on a lane of the session.
type laneClaim struct {
	agent *Agent

	// The lock mu protects the fields below.
	mu      sync.Mutex
	writer  session.Writer // identity with which the lane is claimed; zero before the first claim
	pending bool           // whether the mount is starting, and the session remote has not answered the claim yet
	// reason why the session remote refuses the claim: a *session.HeldError or ErrClosed; nil if it does not
	refused error
	// whether a starting mount has claimed the lane, so that withdraw must release it if the mount fails
	claimed bool
	before  object.ID     // commit of the session's metadata before the first claim of this process
	waited  time.Duration // time for which AheadClaim.Wait has waited for the session remote
	unknown bool          // whether the session remote has not answered the claim of a starting mount in time
}

// ClaimOptions are the options of Agent.Claim.
type ClaimOptions struct {
	Resumed bool // whether the session was mounted on this host before
	Confirm bool // whether Claim waits until the session remote has acknowledged the claim, for at most confirmTime
}

// Claim makes this state directory the writer of a lane of the session, if there is a session repository. It must be
// called before the mount is attached to the kernel. It returns an error only if IsRefusal is true for the error, or if
// ctx has ended. After any other error the claim is repeated later.
func (a *Agent) Claim(ctx context.Context, o ClaimOptions) error {
	if !a.Active() || !statedir.HasSessionRepo(a.place.home) {
		return nil
	}
	l := &a.claim
	l.setPending(true)
	defer l.setPending(false)
	if o.Resumed && a.Options().TakeOver { // the lane may have another writer since this host last read the metadata
		l.update(ctx)
	}
	_, err := a.Open(ctx)
	if IsRefusal(err) && l.update(ctx) { // the copy of the metadata on this host was out of date
		_, err = a.Open(ctx)
	}
	if err == nil {
		l.setClaimed(true)
		if o.Confirm {
			err = l.confirm(ctx)
		}
	}
	if IsRefusal(err) || ctx.Err() != nil {
		return err
	}
	a.problems.note("open session", err) // the claim is repeated later; the mount can be used before that
	return nil
}

// IsRefusal reports whether err is the error of a claim that failed because another writer has the lane, or the session
// is closed or deleted.
func IsRefusal(err error) bool {
	var held *session.HeldError
	var gone *writeback.DeletedError
	return errors.As(err, &held) || errors.Is(err, session.ErrClosed) || errors.As(err, &gone)
}

// Refused returns a *session.HeldError if, according to the metadata meta, another writer has the lane that this mount
// would claim.
func (a *Agent) Refused(meta session.Meta) error {
	if !a.Active() || a.Options().TakeOver {
		return nil
	}
	writer, err := a.claim.identity()
	if err != nil {
		return err
	}
	if held := meta.Held(cmp.Or(laneOf(meta, writer), session.MainLane), writer, time.Now()); held != nil {
		return held
	}
	return nil
}

// identity returns the identity with which this mount writes to the session.
func (l *laneClaim) identity() (session.Writer, error) {
	w, err := l.agent.config.Writer()
	w.Identity = l.agent.Options().Identity
	return w, err
}

// lease returns the duration of the lease with which this mount claims a lane. It is 0 without a session remote,
// because signs of life are then not pushed.
func (l *laneClaim) lease() time.Duration {
	if l.agent.config.Remotes.Session() == nil {
		return 0
	}
	return cmp.Or(l.agent.Options().Lease, session.DefaultLease)
}

// setPending records whether the mount is starting and waits for the session remote to answer the claim.
func (l *laneClaim) setPending(pending bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending = pending
}

// setClaimed records whether a starting mount has claimed the lane, so that withdraw must release it if the mount
// fails.
func (l *laneClaim) setClaimed(claimed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.claimed = claimed
}

// setWaited records for how long the mount has already waited for the session remote to answer the claim.
func (l *laneClaim) setWaited(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waited = d
}

// refusal returns the reason why the session remote refuses the claim, or nil if it does not.
func (l *laneClaim) refusal() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refused
}

// owner returns the identity with which this process has claimed a lane.
func (l *laneClaim) owner() session.Writer {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.writer
}

// claimLane claims a lane in the metadata in the session repository, without pushing the claim. If takeOver is set, it
// claims the lane even if another writer holds it.
func (l *laneClaim) claimLane(ctx context.Context, repo *session.Repo, takeOver bool) (session.Claimed, error) {
	c := l.agent.config
	writer, err := l.identity()
	if err != nil {
		return session.Claimed{}, err
	}
	meta, err := session.CreateMeta(ctx, repo, c.Repository.Meta(), session.Actor())
	if err != nil {
		return session.Claimed{}, err
	}
	before, err := repo.Ref(session.MetaRef(c.Session))
	if err != nil {
		return session.Claimed{}, err
	}
	l.mu.Lock()
	if l.writer = writer; l.before.IsZero() {
		l.before = before
	}
	l.mu.Unlock()
	return session.Claim(ctx, repo, session.ClaimRequest{
		Session: c.Session, Lane: laneOf(meta, writer), Writer: writer, TakeOver: takeOver, Continued: c.Turn != nil,
		Actor:  session.Actor(),
		Reason: "mounted at " + c.Dir, Branches: l.agent.Options().Branches, Lease: l.lease(),
	})
}

// laneOf returns the name of the lane that the writer w claimed last, or "", which stands for the main lane, if w has
// claimed none.
func laneOf(meta session.Meta, w session.Writer) string {
	var newest session.Lane
	for _, l := range meta.Lanes {
		if l.Writer.Same(w) && !l.Since.Before(newest.Since) {
			newest = l
		}
	}
	return newest.Name
}

// confirm waits until the session remote has acknowledged the claim, for at most confirmTime. It returns a
// *session.HeldError if another writer has the lane, session.ErrClosed if the session was closed elsewhere, and a
// *writeback.DeletedError if it was deleted. It returns nil if the session remote does not answer.
func (l *laneClaim) confirm(ctx context.Context) error {
	a := l.agent
	l.mu.Lock()
	left := confirmTime - l.waited
	l.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, left, fault.ErrSlow)
	defer cancel()
	for try := 1; ; try++ {
		a.mu.Lock()
		queue, followed := a.work.queue, a.followed
		a.mu.Unlock()
		err := queue.Reach(ctx, session.MetaRef(a.config.Session))
		moved := errors.Is(err, writeback.ErrMoved) && try < followTries
		if moved && l.refusal() == nil {
			select {
			case <-followed:
			case <-ctx.Done():
			}
		}
		switch refused := l.refusal(); {
		case refused != nil:
			return refused
		case moved:
			continue
		case IsRefusal(err):
			return err
		case err != nil:
			a.log.Info("continue without a reply of the session remote", zap.String("session", a.config.Session), zap.Error(err))
			l.mu.Lock()
			l.unknown = true
			l.mu.Unlock()
		}
		return nil
	}
}

// update fetches the session's metadata from the session remote, and stores them if they are newer than those on this
// host. It returns whether they were newer.
func (l *laneClaim) update(ctx context.Context) bool {
	ctx, cancel := context.WithTimeoutCause(ctx, confirmTime, fault.ErrSlow)
	defer cancel()
	newer, err := l.fetchMeta(ctx)
	if err != nil {
		l.agent.log.Info("read claim from session remote", zap.String("session", l.agent.config.Session), zap.Error(err))
	}
	return newer
}

// fetchMeta fetches the session's metadata from the session remote. If their commit is a descendant of the commit on
// this host, fetchMeta stores it, and newer is true.
func (l *laneClaim) fetchMeta(ctx context.Context) (newer bool, err error) {
	c := l.agent.config
	ref, remote := session.MetaRef(c.Session), c.Remotes.Session()
	if remote == nil {
		return false, nil
	}
	refs, err := remote.Refs(ctx, []string{ref})
	if err != nil {
		return false, err
	}
	i := slices.IndexFunc(refs.List, func(r transport.Ref) bool { return r.Name == ref })
	if i < 0 {
		return false, nil
	}
	theirs := refs.List[i].ID
	repo, err := c.Repository.OpenMeta(theirs.Format())
	if err != nil {
		return false, err
	}
	defer repo.Close()
	ours, err := repo.Ref(ref)
	if err != nil || ours.IsZero() || ours == theirs {
		return false, err
	}
	if err := c.Objects.FetchMeta(ctx, theirs, ours); err != nil {
		return false, err
	}
	if !session.Within(repo, theirs, ours) {
		return false, nil
	}
	return true, repo.Update(ctx, []session.RefChange{{Name: ref, Old: ours, New: theirs}})
}

// giveUp undoes the claim of a starting mount if another writer has the lane or has closed the session, and returns
// whether the claim was undone. If the mount has started already, or takes over the lane, giveUp keeps the claim and
// returns false.
func (l *laneClaim) giveUp(ctx context.Context, t writeback.Taken) (bool, error) {
	a := l.agent
	a.mu.Lock()
	repo, lane, takeOver := a.work.repo, a.lane.Name, a.options.TakeOver
	a.mu.Unlock()
	l.mu.Lock()
	writer, pending := l.writer, l.pending
	l.mu.Unlock()
	if !pending || takeOver {
		return false, nil
	}
	theirs, err := session.MetaAt(repo, repo.Format(), t.Theirs)
	if err != nil {
		return false, err
	}
	var refused error
	if held := theirs.Held(lane, writer, time.Now()); held != nil {
		refused = held
	} else if refused = theirs.Ended(); refused == nil {
		return false, nil
	}
	ref := session.MetaRef(a.config.Session)
	ours, err := repo.Ref(ref)
	if err == nil {
		err = repo.Update(ctx, []session.RefChange{{Name: ref, Old: ours, New: t.Theirs}})
	}
	if err != nil {
		return false, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused = refused
	return true, nil
}
