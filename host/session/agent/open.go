package agent

import (
	"context"
	"errors"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/writeback"
	"github.com/artifactfs/artifactfs/session/writeback/refcopy"
)

// Open returns the session repository. The first call creates the repository if it is missing, claims a lane, and
// starts the queue that pushes. The error is fault.ErrNoSessionRemote if the mount makes no checkpoints, ErrEnded after
// End, or an error of the claim (see IsRefusal).
func (a *Agent) Open(ctx context.Context) (*session.Repo, error) {
	a.opening.Lock()
	defer a.opening.Unlock()
	a.mu.Lock()
	repo, closed := a.work.repo, a.closed
	a.mu.Unlock()
	switch {
	case repo != nil:
		return repo, nil
	case closed:
		return nil, ErrEnded
	case !a.Active():
		return nil, fault.ErrNoSessionRemote
	}
	repo, err := a.config.Repository.Open()
	if err != nil {
		return nil, err
	}
	if err := a.join(ctx, repo); err != nil {
		return nil, errors.Join(err, repo.Close())
	}
	return repo, nil
}

// join claims a lane of the session in repo, and starts the queue that pushes the refs of repo.
func (a *Agent) join(ctx context.Context, repo *session.Repo) error {
	o, remote := a.Options(), a.config.Remotes.Session()
	log := a.log.With(zap.String("session", a.config.Session))
	w := work{repo: repo}
	far := ""
	if remote != nil {
		var err error
		if w.origin, err = a.config.Remotes.OpenOrigin(); err != nil {
			return err
		}
		far = remote.URL()
	}
	// a power failure may have damaged refs, so check and repair the refs first
	if _, err := writeback.Mend(ctx, repo, far); err != nil {
		log.Warn("repair refs", zap.Error(err))
	}
	claimed, err := a.claim.claimLane(ctx, repo, o.TakeOver)
	if err == nil {
		w.queue, err = writeback.NewQueue(writeback.QueueOptions{
			Repo: repo, Dir: a.place.home, Remote: remote, Origin: w.origin, Store: a.place.store,
			Base: BaseMode(o.Base), BaseURL: a.place.baseURL, Taken: otherWriters{a}.follow,
			Notes: func(ctx context.Context, ref string, old, merged object.ID) error {
				return a.merged.move(ctx, a.place, ref, old, merged)
			}, Tracked: func(ctx context.Context, branch string, old, now object.ID) error {
				if !a.config.Git.Exists() {
					return nil
				}
				return a.place.tracked(ctx, repo, branch, old, now)
			}, Settled: func(ctx context.Context) {
				if a.Lock(ctx) == nil {
					a.Unlock()
				}
			}, Log: a.log,
		})
	}
	if err == nil {
		w.capturer, err = a.config.Captures.NewCapturer(CaptureRequest{Repo: repo, Lane: claimed.Lane,
			Rules: Rules(o), MergedNotes: a.merged.commit})
	}
	if err != nil {
		if w.queue != nil {
			err = errors.Join(err, w.queue.Close())
		}
		if w.origin != nil {
			w.origin.Close()
		}
		return err
	}
	a.mu.Lock()
	w.copier = a.work.copier
	a.work, a.meta, a.lane = w, claimed.Meta, claimed.Lane
	a.checkpoints.newest, _ = w.capturer.Last()
	// Without a session remote, the checkpoints of the previous writer are in this repository, too.
	if p := claimed.Previous; remote != nil || a.checkpoints.newest.Segment == p.Segment {
		a.previous = p.Writer.Host
	}
	a.mu.Unlock()
	if segments, err := repo.Refs(session.LanePrefix(a.config.Session)); err == nil && len(segments) > fewSegments {
		a.config.Background("count checkpoints", a.Recount) // in the background, because counting reads every checkpoint
	} else {
		a.Recount()
	}
	if claimed.Interrupted {
		a.log.Info("found interrupted mount of session", zap.String("session", a.config.Session))
	}
	return nil
}

// BaseMode returns the mode of the push queue for a value of the option --session-base.
func BaseMode(base control.BaseMode) writeback.Mode {
	if base == control.BaseAuto || base == "" {
		return writeback.ModeUnknown
	}
	return writeback.Mode(base)
}

// Start watches the refs of the git directory, and creates checkpoints according to the policy. It returns when ctx
// ends, or earlier if the policy is off. It must be called after the git directory was created or its creation has
// failed. format is the object format of the mounted repository.
func (a *Agent) Start(ctx context.Context, format object.Format) {
	if !a.Active() {
		return
	}
	done := a.turn.wait(ctx)
	defer done()
	a.watchRefs(ctx, format)
	close(a.turn.begun)
	a.resume(ctx, done)
	a.config.Background("read claim of session", func() { otherWriters{a}.look(ctx) })
	a.config.Background("read records erased by the parent session", func() { parentErasures{a}.follow(ctx) })
	if a.Automatic() {
		(&waiting{agent: a}).makeCheckpoints(ctx)
	}
}

// resume opens the session repository, if it exists, so that refs that an earlier process has not pushed are pushed. It
// retries until ctx ends. It calls opened after the first attempt and, if that has succeeded, the first push.
func (a *Agent) resume(ctx context.Context, opened func()) {
	for failures := 1; statedir.HasSessionRepo(a.place.home); failures++ {
		_, err := a.Open(ctx)
		a.problems.note("open session", err)
		if err == nil {
			a.turn.use(ctx, a)
		}
		opened()
		if err == nil || !pauses.Wait(ctx, failures) {
			return
		}
	}
}

// watchRefs starts to copy the refs of the git directory into the session repository, each when it is updated.
func (a *Agent) watchRefs(ctx context.Context, format object.Format) {
	o := refcopy.Options{
		Repo:    func() (*session.Repo, error) { return a.Open(context.WithoutCancel(ctx)) },
		Session: a.config.Session, GitDir: a.place.gitDir, Format: format, Refs: a.place.store.Refs,
		Watch: a.git.watch(a.place.gitDir, a.config.Watch), Moved: a.git.refMoved,
		Failed: func(err error) { a.problems.note("push refs", err) }, Log: a.log,
	}
	if a.Options().Remote == control.RemoteEmbedded {
		o.Provide = a.place.store
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.work.copier = refcopy.New(o)
}
