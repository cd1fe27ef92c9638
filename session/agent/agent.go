// Package agent makes the checkpoints of one mount and pushes them, with the branches, tags and notes of the mount's git
// directory, to the session remote.
//
//	working tree   it reports a change -> schedule -> Capturer             -> session repository
//	git directory  writeback.RefCopier watches its refs                      -> session repository
//	                                  session repository -> writeback.Queue -> session remote
//
// Nothing of the work exists in this process alone. Checkpoints and refs are in the session's repository, and small files
// beside it record what the session remote has acknowledged, so that the next process continues after a crash.
//
// The repository is made when there is something to put into it: a mount in which nothing was done leaves nothing. A mount
// that is read-only, or whose session remote is control.RemoteNone, makes and pushes nothing.
//
// The Agent does not know the mount. It gets what it needs through the interfaces of Config.
//
// Lock order: the turn of Lock, then Agent.opening, then Agent.mu. The mutexes of laneClaim, gitSigns, mergedNotes, lastLook
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

// ErrEnded reports that the mount is being taken down.
var ErrEnded = errors.New("the mount ends")

// What failed is tried again after retryFirst, and after twice as long each time, up to retryMost.
const (
	retryFirst = time.Second
	retryMost  = 30 * time.Second
)

// Agent makes and pushes the checkpoints of one mount. Its methods may be called from any goroutine.
type Agent struct {
	config Config
	log    *zap.Logger

	turn
	opening  sync.Mutex // held while the repository is opened
	git      gitSigns
	claim    laneClaim
	problems problems
	merged   mergedNotes
	looked   lastLook
	place    place // set by Configure, before anything else is called

	mu          sync.Mutex
	options     control.SessionOptions // in force; the URL of the remote may hold a secret
	schedule    schedule               // of options
	work        work
	meta        session.Meta
	lane        session.Lane
	closed      bool
	followed    chan struct{} // closed when a change by another writer was followed, and replaced by a new channel
	checkpoints checkpoints
	notes       []string
	ending      ending
}

// place is where the session of the mount is kept.
type place struct {
	home    string // directory of the session in the state directory; "" before Configure
	gitDir  string
	store   Store
	baseURL string // of the mounted remote, without secrets, if other machines can read it there; "": they cannot
}

// work is open from the first Open to End.
type work struct {
	repo     *session.Repo // nil: not opened yet
	capturer Capturer
	copier   *writeback.RefCopier // nil: refs of the git directory are not watched yet
	queue    *writeback.Queue
	origin   *transport.Remote // mounted remote, for history that the session remote lacks; nil: not needed
}

// checkpoints is what is known of the checkpoints of the session.
type checkpoints struct {
	newest  session.Point
	leftOut []capture.LeftOut // of newest
	unread  []string          // ignore files that could not be read when newest was made
	count   int64             // in all lanes
	old     int               // of them, those that gc would drop, when they were last counted
	seen    time.Time         // every change until then is in newest
	made    Figures
}

// Figures count what was done since this process began to serve the mount.
type Figures struct {
	Made   int
	Paused time.Duration // longest time that writers had to wait for a checkpoint
	Took   time.Duration // to make all of them
	Pushed writeback.Figures
}

// New returns the agent of a mount. It does nothing before Configure.
func New(c Config) *Agent {
	a := &Agent{config: c, log: c.Log, turn: make(turn, 1), followed: make(chan struct{}), git: newGitSigns()}
	a.claim.agent = a
	a.problems = problems{log: c.Log.With(zap.String("dir", c.Dir)), failed: map[string]error{}}
	return a
}

// Settings are known once the directory of the session is locked.
type Settings struct {
	Home    string // directory of the session in the state directory
	GitDir  string // of the mount
	Store   Store
	BaseURL string // of the mounted remote, without secrets, if other machines can read it there; "": they cannot

	Asked    control.SessionOptions // of the request for the mount
	Recorded control.SessionOptions // that the session was mounted with before
}

// Configure decides which options are in force: those of the request, then those on record, then the defaults. The error is
// a *control.Error if an option is invalid.
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

// combine returns the options of a request, completed from those on record and the defaults.
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

// Rules returns the rules by which checkpoints leave files out.
func Rules(o control.SessionOptions) capture.Rules {
	return capture.Rules{Include: o.Include, Exclude: o.Exclude, NoDenyList: o.NoDenyList, MaxFileSize: o.MaxFileSize}
}

// Options returns the options in force. The URL of the remote may hold a secret.
func (a *Agent) Options() control.SessionOptions {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.options
}

// Active reports whether the mount has checkpoints and pushes.
func (a *Agent) Active() bool {
	return a.config.Writable && a.Options().Remote != control.RemoteNone
}

// Automatic reports whether checkpoints are made without a request for them.
func (a *Agent) Automatic() bool {
	return a.Active() && a.policy() != control.PolicyOff
}

func (a *Agent) policy() control.Policy {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.schedule.kind
}

// opened returns what Open has opened.
func (a *Agent) opened() work {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.work
}

// Repo returns the session's repository and the queue of its pushes; nil if Open was not called yet. They stay the Agent's to
// close.
func (a *Agent) Repo() (*session.Repo, *writeback.Queue) {
	w := a.opened()
	return w.repo, w.queue
}

// Retry tries at once what failed to be pushed.
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

// problems are the operations that failed last time, and why.
type problems struct {
	log *zap.Logger

	mu     sync.Mutex
	failed map[string]error // by operation
}

// note records the result of an operation; nil ends its failure.
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

// drain empties a channel that holds one token, and reports whether it held one.
func drain(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
