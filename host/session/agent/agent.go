// Package agent makes the checkpoints of one mount, and pushes them to the session remote together with the branches,
// tags and notes in the mount's git directory. There are three paths:
//
//	working tree    reports a change -> schedule -> Capturer -> session repository
//	git directory   refs, watched by refcopy.Copier     -> session repository
//	session repository                    -> writeback.Queue -> session remote
//
// The memory of this process has nothing that must survive a crash. Checkpoints and refs are stored in the session
// repository. Small files beside it record which checkpoints and refs the session remote has acknowledged, so that the
// next process can continue after a crash.
//
// A lane is the chain of checkpoints of one writer; a segment is a part of a lane that has a separate ref, so that gc
// can drop it as a whole. A writer is a daemon with its state directory (session.Writer). It claims a lane in the
// session's metadata before it makes checkpoints in the lane, so that no two writers extend the same chain.
//
// The repository is created when the first checkpoint or ref is stored, so a mount without changes leaves no
// repository. For a read-only mount, or if the session remote is control.RemoteNone, no checkpoint is made and nothing
// is pushed.
//
// The Agent does not know the type of the mount. It accesses the mount through the interfaces in Config.
//
// Lock order: checkpointLock, then Agent.opening, then Agent.mu. No other lock is acquired while a mutex of laneClaim,
// gitSigns, mergedNotes, lastLook or problems is held.
package agent

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/internal/backoff"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/capture"
	"github.com/artifactfs/artifactfs/session/writeback"
	"github.com/artifactfs/artifactfs/session/writeback/refcopy"
)

// ErrEnded means that an operation has failed because the mount is being unmounted.
var ErrEnded = errors.New("mount is being unmounted")

// pauses defines the time between two attempts of an operation that fails.
var pauses = backoff.Backoff{First: time.Second, Longest: 30 * time.Second}

// Agent makes and pushes the checkpoints of one mount. Its methods may be called from any goroutine.
type Agent struct {
	config Config
	log    *zap.Logger

	// checkpointLock is held while checkpoints are made or removed.
	checkpointLock
	opening  sync.Mutex  // held while Open opens the repository
	git      gitSigns    // changes of the mount's git directory since the last checkpoint
	claim    laneClaim   // claim of this process on a lane
	problems problems    // operations that failed at their last attempt
	merged   mergedNotes // notes refs that this process has updated with notes of other sessions
	looked   lastLook    // git process that last searched for its repository
	place    place       // set by Configure, before any other method is called
	turn     turn        // time for which Start waits after a takeover

	// The lock mu protects the fields below.
	mu       sync.Mutex
	options  control.SessionOptions // options in force; the URL of the session remote may contain a secret
	schedule schedule               // policy of the field options, which decides when checkpoints are made
	work     work                   // repository and connections that Open has opened; empty before Open
	// metadata of the session when this process last claimed a lane, or lost its lane to another writer
	meta session.Meta
	lane session.Lane // lane in which this mount makes checkpoints
	// host that continued the session before this process claimed the lane; "" if none did
	previous    string
	closed      bool          // whether End was called; then Open fails
	followed    chan struct{} // closed, and replaced by a new channel, after each change by another writer was processed
	checkpoints checkpoints
	notes       []string // lines for the user, which Notices returns
	ending      ending   // progress of ending the mount
}

// place has the directories of the mount's session, and the store of the mounted remote.
type place struct {
	home    string // home of the session; "" before Configure
	gitDir  string // git directory of the mount
	store   Store
	baseURL string // URL of the mounted remote without secrets; "" if other machines cannot use that URL
}

// work has the repository and the connections that Open opens and End closes.
type work struct {
	repo     *session.Repo    // the session's repository; nil if not opened yet
	capturer Capturer         // creates checkpoints; nil if not opened yet
	copier   *refcopy.Copier  // nil until Start watches the refs of the git directory
	queue    *writeback.Queue // pushes the refs of the repository; nil if not opened yet
	// origin is a connection to the mounted remote, from which history that the session remote lacks is fetched; nil if
	// there is no session remote.
	origin *transport.Remote
}

// checkpoints has what this process knows about the checkpoints of the session.
type checkpoints struct {
	newest  session.Checkpoint // newest checkpoint that this process has made or found
	leftOut []capture.LeftOut  // files that the checkpoint newest does not contain, with the reasons
	unread  []string           // ignore files that could not be read when the checkpoint newest was made
	// files that the latest checkpoint lacks because a required filter has failed
	unfiltered []string
	count      int64 // number of checkpoints in all lanes
	old        int   // number of checkpoints that gc would have dropped when they were last counted
	// time of the start of the latest capture; the checkpoint newest contains all changes before it
	seen time.Time
	made Figures
}

// Figures counts the checkpoints that this process has made for the mount, and the time that they took.
type Figures struct {
	Made   int           // number of checkpoints
	Paused time.Duration // longest time for which a checkpoint blocked writers
	Took   time.Duration // total duration of all checkpoints
	Pushed writeback.Figures
}

// New returns the agent of a mount. Configure must be called before the other methods.
func New(c Config) *Agent {
	a := &Agent{config: c, log: c.Log, checkpointLock: make(checkpointLock, 1), followed: make(chan struct{}),
		git:  newGitSigns(),
		turn: turn{take: c.Turn, begun: make(chan struct{})}}
	a.claim.agent = a
	a.problems = problems{log: c.Log.With(zap.String("dir", c.Dir)), failed: map[string]error{}}
	return a
}

// Settings is the part of the configuration of an Agent that is known only after the home of the session was locked.
type Settings struct {
	Home    string // home of the session
	GitDir  string // git directory of the mount
	Store   Store
	BaseURL string // URL of the mounted remote without secrets; "" if other machines cannot use that URL

	Asked    control.SessionOptions // options that the mount request contains
	Recorded control.SessionOptions // options of the previous mount of the session
}

// Configure determines the options in force: for each option the requested value, or the recorded value if none was
// requested, or the default. It returns a *control.Error if an option is invalid.
func (a *Agent) Configure(s Settings) error {
	o := combine(s.Asked, s.Recorded)
	kind, every, err := o.Policy.Split()
	if err != nil {
		return err
	}
	if err := errors.Join(Rules(o).Validate(), session.ValidBranches(o.Branches)); err != nil {
		return &control.Error{Code: control.ExitUsage, Verb: "mount", Object: a.config.Dir, Cause: err.Error()}
	}
	a.place = place{home: s.Home, gitDir: s.GitDir, store: s.Store, baseURL: s.BaseURL}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.options, a.schedule = o, schedule{kind, every}
	return nil
}

// combine returns the options o of a mount request, in which unset options are replaced by the recorded ones or, if
// none is recorded, by the defaults.
func combine(o, recorded control.SessionOptions) control.SessionOptions {
	if o.Remote == "" {
		o.Remote = recorded.Remote
	}
	if o.Remote == "" {
		o.Remote = control.RemoteEmbedded
	}
	if o.Base == "" {
		o.Base = recorded.Base
	}
	if o.Policy == "" {
		o.Policy = recorded.Policy
	}
	if o.Policy == "" {
		o.Policy = control.PolicyIdle
	}
	if o.Branches == "" {
		o.Branches = recorded.Branches
	}
	if o.Include == nil {
		o.Include = recorded.Include
	}
	if o.Exclude == nil {
		o.Exclude = recorded.Exclude
	}
	o.NoDenyList = o.NoDenyList || recorded.NoDenyList
	if o.MaxFileSize == 0 {
		o.MaxFileSize = recorded.MaxFileSize
	}
	o.Lease, o.Identity = cmp.Or(o.Lease, recorded.Lease), cmp.Or(o.Identity, recorded.Identity)
	return o
}

// Rules returns the rules that decide which files checkpoints contain, from the options of a session.
func Rules(o control.SessionOptions) capture.Rules {
	return capture.Rules{Include: o.Include, Exclude: o.Exclude, NoDenyList: o.NoDenyList, MaxFileSize: o.MaxFileSize}
}

// Options returns the options in force. The URL of the session remote may contain a secret.
func (a *Agent) Options() control.SessionOptions {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.options
}

// Active reports whether the mount makes checkpoints and pushes them: it is writable and has a session remote, which
// may be the embedded one.
func (a *Agent) Active() bool {
	return a.config.Writable && a.Options().Remote != control.RemoteNone
}

// Automatic reports whether the mount makes checkpoints without an explicit request.
func (a *Agent) Automatic() bool {
	return a.Active() && a.policy() != control.PolicyOff
}

// policy returns the checkpoint policy of the options in force.
func (a *Agent) policy() control.Policy {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.schedule.kind
}

// opened returns a copy of a.work, which is empty before Open. The caller must not hold a.mu.
func (a *Agent) opened() work {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.work
}

// Repo returns the session repository and the queue that pushes its refs; both are nil before Open. The caller must not
// close them.
func (a *Agent) Repo() (*session.Repo, *writeback.Queue) {
	w := a.opened()
	return w.repo, w.queue
}

// Retry makes the push queue repeat a failed push immediately.
func (a *Agent) Retry() {
	if queue := a.opened().queue; queue != nil {
		queue.Wake()
	}
}

// AddNote adds a line to the notes for the user that Notices returns. The line is lost when this process ends.
func (a *Agent) AddNote(note string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.notes = append(a.notes, note)
}

// Figures returns the counts and durations of the checkpoints that this process has made, and the figures of its push
// queue.
func (a *Agent) Figures() Figures {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.checkpoints.made
	if a.work.queue != nil {
		f.Pushed = a.work.queue.Figures()
	}
	return f
}

// problems has the operations of an Agent whose last attempt has failed, with the errors.
type problems struct {
	log *zap.Logger

	mu     sync.Mutex
	failed map[string]error // error of the last attempt, by operation; protected by mu
}

// note records the result of an attempt of an operation. A nil error removes the recorded failure of the operation. The
// result of a canceled operation is ignored. Each failure is logged as a warning, and the first success after a failure
// is also logged.
func (p *problems) note(operation string, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, failed := p.failed[operation]; err != nil {
		p.log.Warn(operation, zap.Error(err))
		p.failed[operation] = err
	} else if failed {
		p.log.Info("succeeded after earlier failures: " + operation)
		delete(p.failed, operation)
	}
}
