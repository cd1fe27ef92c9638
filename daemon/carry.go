package daemon

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/capture"
	"github.com/artifactfs/artifactfs/session/writeback"
	"github.com/artifactfs/artifactfs/statedir"
	"github.com/artifactfs/artifactfs/transport"
)

// carry is what carries a mount's work away. Nothing of it is in this process alone: points and refs are in the session's
// repository, what the session remote has of them in small files beside it, so a process that dies leaves all of it to the
// next.
//
//	files   the tree says that something changed -> policy -> capture.Capturer -> repository
//	git     writeback.Carrier watches the refs of the git directory            -> repository
//	                                                                 repository -> writeback.Queue -> session remote
//
// The repository is made when there is something to put in it: a mount in which nobody did anything leaves nothing. A mount
// that is not written to, or whose session remote is none, carries nothing.
//
// Lock order: turn, then opening, then mu.
type carry struct {
	mount *mount

	turn    chan struct{} // holds one while a point is made, or points are removed: one at a time
	opening sync.Mutex    // held while what is below is made
	git     gitSigns

	mu        sync.Mutex
	options   control.SessionOptions // what is in force; its remote may hold a secret
	kind      control.Policy         // of the options
	every     time.Duration          // of PolicyInterval
	repo      *session.Repo
	meta      session.Meta
	lane      session.Lane
	writer    session.Writer
	capturer  *capture.Capturer
	carrier   *writeback.Carrier
	queue     *writeback.Queue
	origin    *transport.Remote // that is mounted; nil: nobody asks it
	closed    bool
	claiming  bool               // the session remote has not said yet whether the lane is ours
	held      *session.HeldError // by whom it is, if it is not
	claimed   bool               // it was claimed for a mount that is just being made, and the session remote may know
	unclaimed object.ID          // what the session was, when it was first claimed here
	waited    time.Duration      // for the session remote's word, before confirm

	followed chan struct{} // closed when what others did was followed; then another one
	notes    []string
	merged   map[string]object.ID // what notes refs were moved to when those of other sessions were merged into them
	failed   map[string]error     // by what was being done
	looked   string               // process that looked for its repository last, and was let go on
	last     session.Point        // the newest point
	leftOut  []capture.LeftOut    // of last
	unread   []string             // ignore files that could not be had when it was made
	points   int64                // that there are; those of all lanes
	old      int                  // of them, for which gc is, when they were counted last
	seen     time.Time            // what had changed by then is in the newest point
	ending   ending
	counted  figures
}

// figures count what was done since this process began to serve the mount.
type figures struct {
	made   int64
	paused time.Duration // longest
	took   time.Duration // in all
	pushed writeback.Figures
}

const memoryName = "capture.json" // in a home: where the last point ended

var (
	errEnded = errors.New("the mount ends")
)

// carries says whether the mount has anything to do with a session remote.
func (c *carry) carries() bool {
	return c.mount.writable() && c.optionsNow().Remote != control.RemoteNone
}

// makes says whether checkpoints are made that are not asked for.
func (c *carry) makes() bool {
	if !c.carries() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kind != control.PolicyOff
}

func (c *carry) optionsNow() control.SessionOptions {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.options
}

// settle finds out how the work is carried: what was asked for, else what the session was carried with before. It needs the
// record, and has it say so.
func (c *carry) settle() error {
	o, before := c.mount.request.SessionOptions, c.mount.record.Carried
	if o.Remote == "" {
		o.Remote = before.Remote
	}
	if o.Remote == "" {
		o.Remote = control.RemoteEmbedded
	}
	if o.Base == "" {
		o.Base = before.Base
	}
	if o.Policy == "" {
		o.Policy = before.Policy
	}
	if o.Policy == "" {
		o.Policy = control.PolicyIdle
	}
	if o.Branches == "" {
		o.Branches = before.Branches
	}
	if o.Include == nil {
		o.Include = before.Include
	}
	if o.Exclude == nil {
		o.Exclude = before.Exclude
	}
	o.NoDenyList = o.NoDenyList || before.NoDenyList
	if o.MaxFileSize == 0 {
		o.MaxFileSize = before.MaxFileSize
	}
	kind, every, err := o.Policy.Split()
	if err != nil {
		return err
	}
	if err := errors.Join(rulesOf(o).Validate(), session.ValidBranches(o.Branches)); err != nil {
		return &control.Error{Code: control.ExitUsage, Verb: "mount", Object: c.mount.dir, Cause: err.Error()}
	}
	c.mu.Lock()
	c.options, c.kind, c.every = o, kind, every
	c.mu.Unlock()
	if c.mount.writable() {
		c.mount.record.Carried = shown(o)
	}
	return nil
}

// shown are options without what only one mount is to know.
func shown(o control.SessionOptions) control.SessionOptions {
	switch o.Remote {
	case control.RemoteEmbedded, control.RemoteOrigin, control.RemoteNone, "":
	default:
		o.Remote = fault.WithoutSecrets(o.Remote)
	}
	o.TakeOver = false
	return o
}

func rulesOf(o control.SessionOptions) capture.Rules {
	return capture.Rules{Include: o.Include, Exclude: o.Exclude, NoDenyList: o.NoDenyList, MaxFileSize: o.MaxFileSize}
}

// claim has the session be this state directory's to write to, if there is something of it already; it is asked before
// anybody can write.
func (c *carry) claim(ctx context.Context) error {
	if !c.carries() || !statedir.HasSessionRepo(c.mount.home.Dir) {
		return nil
	}
	c.setClaiming(true)
	defer c.setClaiming(false)
	if c.mount.resumed && c.optionsNow().TakeOver { // from whoever has it now
		c.hear(ctx)
	}
	_, err := c.open(ctx)
	if isRefusal(err) && c.hear(ctx) { // what was known here is of long ago
		_, err = c.open(ctx)
	}
	if err == nil {
		c.setClaimed(true)
		if far := c.mount.far; far == nil || !far.free {
			err = c.confirm(ctx)
		}
	}
	if isRefusal(err) || ctx.Err() != nil {
		return err
	}
	c.note("open the session", err) // it is tried again, and the files are there all the same
	return nil
}

// open gives the session's repository, and makes it first if there is none.
func (c *carry) open(ctx context.Context) (*session.Repo, error) {
	c.opening.Lock()
	defer c.opening.Unlock()
	c.mu.Lock()
	repo, closed := c.repo, c.closed
	c.mu.Unlock()
	switch {
	case repo != nil:
		return repo, nil
	case closed:
		return nil, errEnded
	case !c.carries():
		return nil, fault.ErrNoSessionRemote
	}
	m := c.mount
	base, err := m.record.Base()
	if err != nil {
		return nil, err
	}
	o := m.repoOptions(base.Format, m.session)
	o.Fresh = []string{filepath.Join(m.gitPath(), "objects")}
	repo, err = session.OpenRepo(m.sessionRepoDir(), o)
	if err != nil {
		return nil, err
	}
	// Somebody may resume from it by path while the history behind the base is still on its way: git must not look for that.
	ends := m.store.Boundary()
	if !base.Commit.IsZero() {
		ends = append(ends, base.Commit)
	}
	if err = repo.AddShallow(ends); err == nil {
		err = c.join(ctx, repo)
	}
	if err != nil {
		return nil, errors.Join(err, repo.Close())
	}
	return repo, nil
}

// join has this process write to the session, and begins to send what is in the repository.
func (c *carry) join(ctx context.Context, repo *session.Repo) error {
	m, o := c.mount, c.optionsNow()
	base, err := m.record.Base()
	if err != nil {
		return err
	}
	log := m.daemon.log.With(zap.String("session", m.session))
	origin, err := c.openOrigin()
	if err != nil {
		return err
	}
	far := ""
	if m.second != nil {
		far = m.second.URL()
	}
	if _, err := writeback.Mend(ctx, repo, far); err != nil { // what a power cut has left of refs
		log.Warn("repair refs", zap.Error(err))
	}
	var queue *writeback.Queue
	claimed, err := c.claimLane(ctx, repo, o.TakeOver)
	if err == nil {
		queue, err = writeback.NewQueue(writeback.QueueOptions{
			Repo: repo, Session: m.session, Dir: m.home.Dir, Remote: m.second, Origin: origin, Store: m.store, Base: baseMode(o.Base), BaseURL: readableURL(m.record.Remote), Taken: c.takenOver, Notes: m.bringNotes, Log: m.daemon.log,
		})
	}
	var capturer *capture.Capturer
	if err == nil {
		capturer, err = capture.New(capture.Options{
			Tree: m.tree, WriteBack: c.writeBack, GitDir: m.gitPath(), Repo: repo, Memory: filepath.Join(m.home.Dir, memoryName),
			Lane: claimed.Lane.Name, Segment: claimed.Lane.Segment, Base: base.Commit, BaseTree: m.snapshot().Tree, Beginning: m.beginning(), Rules: rulesOf(o), Converts: m.view.Returns,
			Blob: m.rawBlob, Trees: m.view.Tree, OthersNotes: c.othersNotes, Log: log,
		})
	}
	if err != nil {
		if queue != nil {
			err = errors.Join(err, queue.Close())
		}
		if origin != nil {
			origin.Close()
		}
		return err
	}
	c.mu.Lock()
	c.repo, c.capturer, c.queue, c.origin = repo, capturer, queue, origin
	c.meta, c.lane = claimed.Meta, claimed.Lane
	c.last, _ = capturer.Last()
	c.mu.Unlock()
	if segments, err := repo.Refs(session.LanePrefix(m.session)); err == nil && len(segments) > fewSegments {
		m.behind("count checkpoints", c.recount) // each is read
	} else {
		c.recount()
	}
	if claimed.Interrupted {
		m.daemon.log.Info("the previous mount of the session was interrupted", zap.String("session", m.session))
	}
	return nil
}

// claimLane makes this state directory the writer of a lane of the session.
func (c *carry) claimLane(ctx context.Context, repo *session.Repo, takeOver bool) (session.Claimed, error) {
	m := c.mount
	writer, err := m.daemon.writer()
	if err != nil {
		return session.Claimed{}, err
	}
	r := m.record
	first := session.Meta{Session: m.session, Remote: r.Remote, Ref: r.Ref, Base: r.Commit, Format: r.Format, Began: r.Began}
	if p := r.Point; p != nil && p.Parent != "" && p.Parent != m.session {
		first.From, first.FromRemote = p.Parent+" "+p.ID, p.ParentRemote
	}
	meta, err := session.Begin(ctx, repo, first, session.Actor())
	if err != nil {
		return session.Claimed{}, err
	}
	before, err := repo.Ref(session.MetaRef(m.session))
	if err != nil {
		return session.Claimed{}, err
	}
	c.mu.Lock()
	if c.writer = writer; c.unclaimed.IsZero() {
		c.unclaimed = before
	}
	c.mu.Unlock()
	return session.Claim(ctx, repo, session.ClaimRequest{
		Session: m.session, Lane: laneOf(meta, writer), Writer: writer, TakeOver: takeOver, Actor: session.Actor(), Reason: "mounted at " + m.dir, Branches: c.optionsNow().Branches,
	})
}

// laneOf is the lane that a writer works in, or did last; "": the first.
func laneOf(meta session.Meta, w session.Writer) string {
	var newest session.Lane
	for _, l := range meta.Lanes {
		if l.Writer.Same(w) && !l.Since.Before(newest.Since) {
			newest = l
		}
	}
	return newest.Name
}

// writer is who this process is to others that may work in the same sessions.
func (d *Daemon) writer() (session.Writer, error) {
	pid := os.Getpid()
	if d.keeper != nil { // which goes on with another process when this one dies
		pid = os.Getppid()
	}
	return session.Here(d.state, pid)
}

// openOrigin opens the mounted remote for those who send its history to a session remote that lacks it.
func (c *carry) openOrigin() (*transport.Remote, error) {
	if c.mount.second == nil {
		return nil, nil
	}
	r := c.mount.requestNow()
	r.SessionOptions.Remote = control.RemoteOrigin
	r.SessionToken, r.SessionTokenFile = "", ""
	origin, _, err := c.mount.daemon.sessionRemote(r)
	if err != nil {
		return nil, err
	}
	return origin.Remote, nil
}

// note records how carrying went; the mount itself goes on.
func (c *carry) note(what string, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, failed := c.failed[what]; err != nil {
		c.mount.daemon.log.Warn(what, zap.String("dir", c.mount.dir), zap.Error(err))
		c.failed[what] = err
	} else if failed {
		c.mount.daemon.log.Info("succeeded after all: "+what, zap.String("dir", c.mount.dir))
		delete(c.failed, what)
	}
}
