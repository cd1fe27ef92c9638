// Package agent makes the checkpoints of one mount and pushes them, with the branches, tags and notes of the mount's git
// directory, to the session remote.
//
//	working tree   reports a change -> schedule -> Capturer                  -> session repository
//	git directory  writeback.RefCopier watches its refs                      -> session repository
//	                                  session repository -> writeback.Queue -> session remote
//
// No work exists in the memory of this process alone. Checkpoints and refs are in the session's repository, and small files
// beside it record which of them the session remote has acknowledged, so that the next process continues after a crash.
//
// The repository is created when there is something to store: a mount without changes leaves nothing. A mount that is
// read-only, or whose session remote is control.RemoteNone, makes and pushes nothing.
//
// The Agent does not depend on the type of the mount. It uses the mount through the interfaces of Config.
//
// Lock order: checkpointLock, then Agent.opening, then Agent.mu. The mutexes of laneClaim, gitSigns, mergedNotes, lastLook
// and problems are leaves.
package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/capture"
	"github.com/artifactfs/artifactfs/session/writeback"
	"github.com/artifactfs/artifactfs/transport"
)

// ErrEnded reports that the mount is being unmounted.
var ErrEnded = errors.New("the mount ends")

// A failed operation is tried again after retryFirst, and then after twice as long each time, up to retryMost.
const (
	retryFirst = time.Second
	retryMost  = 30 * time.Second
)

// Agent makes and pushes the checkpoints of one mount. Its methods may be called from any goroutine.
type Agent struct {
	config Config
	log    *zap.Logger

	// checkpointLock serializes making and removing checkpoints.
	checkpointLock
	opening  sync.Mutex // held while the repository is opened
	git      gitSigns
	claim    laneClaim
	problems problems
	merged   mergedNotes
	looked   lastLook
	place    place // set by Configure, before any other method is called

	// mu guards the fields below.
	mu          sync.Mutex
	options     control.SessionOptions // options in force; the URL of the session remote may contain a secret
	schedule    schedule               // policy of options
	work        work
	meta        session.Meta
	lane        session.Lane
	closed      bool
	followed    chan struct{} // closed when a change by another writer was followed, and replaced by a new channel
	checkpoints checkpoints
	notes       []string
	ending      ending
}

// place is the location of the mount's session and its surroundings.
type place struct {
	home    string // directory of the session in the state directory; "" before Configure
	gitDir  string
	store   Store
	baseURL string // URL of the mounted remote, without secrets, if other machines can read it there; otherwise ""
}

// work is everything that Open opens and End closes.
type work struct {
	repo     *session.Repo // nil if not opened yet
	capturer Capturer
	copier   *writeback.RefCopier // nil until Start watches the refs of the git directory
	queue    *writeback.Queue
	// Connection to the mounted remote, for history that the session remote lacks; nil if there is no session remote.
	origin *transport.Remote
}

// checkpoints is the knowledge about the checkpoints of the session.
type checkpoints struct {
	newest  session.Checkpoint
	leftOut []capture.LeftOut // files that newest excludes
	unread  []string          // ignore files that could not be read for newest
	count   int64             // number of checkpoints in all lanes
	old     int               // number of them that gc would drop, at the last count
	seen    time.Time         // time of the latest capture: newest contains all changes until then
	made    Figures
}

// Figures counts the work of this process for the mount.
type Figures struct {
	Made   int
	Paused time.Duration // longest time that a checkpoint blocked writers
	Took   time.Duration // total time of all checkpoints
	Pushed writeback.Figures
}

// New returns the agent of a mount. It must be configured before it is used.
func New(c Config) *Agent {
	a := &Agent{config: c, log: c.Log, checkpointLock: make(checkpointLock, 1), followed: make(chan struct{}), git: newGitSigns()}
	a.claim.agent = a
	a.problems = problems{log: c.Log.With(zap.String("dir", c.Dir)), failed: map[string]error{}}
	return a
}

// Settings is the part of the configuration that is known once the session's directory is locked.
type Settings struct {
	Home    string // directory of the session in the state directory
	GitDir  string // git directory of the mount
	Store   Store
	BaseURL string // URL of the mounted remote, without secrets, if other machines can read it there; otherwise ""

	Asked    control.SessionOptions // options in the request for the mount
	Recorded control.SessionOptions // options of the previous mount of the session
}

// Configure determines the options in force: those of the request, then the recorded ones, then the defaults. The error
// is a *control.Error if an option is invalid.
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

// combine returns the options of a request, completed from the recorded ones and the defaults.
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
	return o
}

// Rules returns the rules by which checkpoints exclude files.
func Rules(o control.SessionOptions) capture.Rules {
	return capture.Rules{Include: o.Include, Exclude: o.Exclude, NoDenyList: o.NoDenyList, MaxFileSize: o.MaxFileSize}
}

// Options returns the options in force. The URL of the session remote may contain a secret.
func (a *Agent) Options() control.SessionOptions {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.options
}

// Active reports whether the mount makes and pushes checkpoints.
func (a *Agent) Active() bool {
	return a.config.Writable && a.Options().Remote != control.RemoteNone
}

// Automatic reports whether checkpoints are made without a request for them.
func (a *Agent) Automatic() bool {
	return a.Active() && a.policy() != control.PolicyOff
}

// policy returns the policy of the options in force.
func (a *Agent) policy() control.Policy {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.schedule.kind
}

// opened returns a copy of the work that Open has opened.
func (a *Agent) opened() work {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.work
}

// Repo returns the session's repository and the queue of its pushes; nil if Open was not called yet. The caller must not
// close them.
func (a *Agent) Repo() (*session.Repo, *writeback.Queue) {
	w := a.opened()
	return w.repo, w.queue
}

// Retry repeats a failed push immediately.
func (a *Agent) Retry() {
	if queue := a.opened().queue; queue != nil {
		queue.Wake()
	}
}

// AddNote adds a line to Notices for as long as this process serves the mount.
func (a *Agent) AddNote(note string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.notes = append(a.notes, note)
}

// Figures returns the figures of this process.
func (a *Agent) Figures() Figures {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.checkpoints.made
	if a.work.queue != nil {
		f.Pushed = a.work.queue.Figures()
	}
	return f
}

// problems are the operations whose last attempt failed, with their errors.
type problems struct {
	log *zap.Logger

	mu     sync.Mutex
	failed map[string]error // by operation; guarded by mu
}

// note records the result of an operation. A nil error removes its failure. A canceled operation is ignored. Only the
// first of several failures in a row is logged.
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
		p.log.Info("succeeded after all: " + operation)
		delete(p.failed, operation)
	}
}

// drain removes the token from a channel of capacity 1, and reports whether there was one.
func drain(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
