package daemon

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/filter"
	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/mount/bind"
	"github.com/artifactfs/artifactfs/mount/mountpoint"
	"github.com/artifactfs/artifactfs/mount/takeover"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session/agent"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/statedir"
	"github.com/artifactfs/artifactfs/worktree"
)

// mount is one working tree at one directory. Its fields stand in a struct for each phase of its life, in the order in which they are
// set: what was requested, the start, what was acquired, serving, git's side of it, and the end.
//
// Until state leaves control.StatePreparing only the goroutine that runs start, or succeed, may use the fields that are not said to be
// guarded; after that they are frozen, and any goroutine may read them.
type mount struct {
	daemon *Daemon
	requested
	starting
	acquired
	serving
	gitSide
	ending

	mu sync.Mutex // guards the fields of all phases that say so; see Daemon for the order of locks
}

// requested is what a mount is, and was asked to be.
type requested struct {
	id      string // of the home
	dir     string
	request control.MountRequest // as it was made: see requestNow
	since   time.Time
	session string // "" if nothing is kept; the id of all others is the session's name
	parent  *mount // that this one is a submodule of; nil: it stands for itself

	login        *login // to the mounted remote; guarded by Daemon.mu
	sessionLogin *login // to the session remote; nil: there is none; guarded by Daemon.mu
}

// starting is what the start of a mount begins with, and how it ended. A mount that is taken over has no abort and no origin.
type starting struct {
	abort   context.CancelFunc // ends the start
	aborted bool               // the start was told to end; guarded by mu
	started chan struct{}      // closed when the mount is served for the first time in this process
	reply   control.MountReply // once started is closed; guarded by mu
	before  fetch.Stats        // of the store when the mount began

	taking    chan struct{}      // closed when the takeover has ended; nil: the mount began in this process
	inherited takeover.Inherited // from a predecessor, and not taken yet

	base       *statedir.Record     // of the mount that is restored; nil: what the request names is mounted
	from       *origin              // checkpoint of a session of this host to begin with; nil: none
	far        *farOrigin           // the same of a session remote; nil: none, or a predecessor began the mount
	known      *knownSession        // session that is resumed, as read before the mount began; nil: nothing was read
	newer      map[string]object.ID // refs of the session remote that are newer than that checkpoint
	moved      map[string]bool      // those of them that the session itself has moved
	resumed    bool                 // the session existed
	otherOwner bool                 // the files of the session have another owner than was asked for
	point      mountpoint.Point
}

// acquired is what a mount holds besides the kernel's part: its home, the store, and what is read from both.
type acquired struct {
	home        *statedir.Home
	record      statedir.Record // of the session
	store       *fetch.Store
	release     func()          // gives the store back
	local       *fetch.Local    // objects of the git directory
	owned       *fetch.Local    // objects of the session
	second      *thin.Remote    // session remote; nil: none
	forkObjects *fetch.Local    // objects of the session that this one was forked from; nil: none
	forkRemote  *thin.Remote    // and its session remote
	snap        *fetch.Snapshot // guarded by mu once the mount is served
	view        *fetch.View
	filters     *filter.Programs
	shown       chan struct{} // holds one when another tree is shown than the one that was hydrated last
}

// serving is a mount while the kernel has it.
type serving struct {
	tree       *worktree.Tree
	server     *fuse.Server
	redirects  bind.Redirects
	inside     *bind.GitDir // nil: .git is a file
	submodules submodules
	agent      *agent.Agent      // of its session
	handover   takeover.Handover // to a successor

	work      sync.WaitGroup     // behind the mount
	following chan struct{}      // one token, held while the remote is asked where the branch is
	state     control.State      // guarded by mu
	cancel    context.CancelFunc // ends the work behind the mount; nil: it is not served yet; guarded by mu
	failures  map[string]error   // of the work behind the mount, by what was being done; guarded by mu
	retried   chan struct{}      // closed, and made anew, when failed work is to be tried again at once; guarded by mu
	restored  *restored          // not reported yet; nil: none; guarded by mu
}

// gitSide is what git commands in a mount use and wait for.
type gitSide struct {
	git      stockGit // guarded by mu
	gitReady bool     // guarded by mu

	// Closed when the first try is over, whether it succeeded or not.
	gitTried, historyTried, hydrateTried chan struct{}

	passes    gitPass
	hurry     atomic.Bool   // a git command waits for history
	indexed   int64         // contents that the store had fetched when this process wrote git's index; negative: it did not
	gitWanted chan struct{} // closed when a process waits for the git directory
	wantGit   func()        // closes it
}

// ending is how a mount is to end, and how it did.
type ending struct {
	stopping bool          // guarded by mu
	discard  bool          // the session is deleted; guarded by mu
	trash    bool          // with discard: into the trash; guarded by mu
	keepFor  time.Duration // how long the session is kept; 0: until it is deleted; guarded by mu
	outcome  outcome       // frozen once gone is closed; guarded by mu
	gone     chan struct{} // closed when nothing of the mount is left
}

// Mount mounts what r asks for and returns once the root of the working tree is readable, or what r.Wait names has been fetched. After
// an error, or if ctx ends, nothing of the mount is left. It is safe for concurrent use.
func (d *Daemon) Mount(ctx context.Context, r control.MountRequest, progress func(control.Progress)) (control.MountReply, error) {
	_, reply, err := d.mount(ctx, r, beginning{}, progress)
	return reply, err
}

// mount is Mount. b says what the mount begins with, if that is not what r names: a submodule, a mount that is restored, a checkpoint.
func (d *Daemon) mount(ctx context.Context, r control.MountRequest, b beginning, progress func(control.Progress)) (*mount, control.MountReply, error) {
	start := time.Now()
	ctx, abort := context.WithCancel(ctx)
	defer abort()
	ended := d.turns.begins()
	defer ended()
	defer func() { b.known.close() }()
	m, err := d.awaitEarlier(ctx, r)
	if err == nil && m == nil {
		if err = d.complete(ctx, &r, &b); err == nil {
			m, err = d.reserve(r, b, abort)
		}
	}
	if err != nil {
		return nil, control.MountReply{}, fault.Explain("mount", r.Dir, err)
	}
	reply, err := m.startOnce(ctx, start, progress)
	ended()
	if err == nil {
		if r.Submodules {
			m.submodules.enter(ctx)
		}
		m.announce(progress)
		d.failures.Forget(m.dir, progress)
		for _, note := range m.store.Stats().Notices {
			progress(control.Progress{Message: note})
		}
		err = m.await(ctx, progress)
		reply.Timings.Total = time.Since(start).Milliseconds()
		if snap := m.snapshot(); snap != nil && snap.Whole() {
			reply.Timings.Trees = snap.Took().Milliseconds()
			if r.Wait != control.WaitTree {
				reply.Files = int64(m.view.Counts(ctx).Files)
			}
		}
	}
	if err != nil {
		if ctx.Err() != nil { // whatever else went wrong, this is why
			err = ctx.Err()
		}
		if stopErr := m.takeDown(context.WithoutCancel(ctx), true); stopErr != nil {
			d.log.Warn("undo mount", zap.String("dir", m.dir), zap.Error(stopErr))
		}
		return nil, control.MountReply{}, fault.Subject{Area: fault.Mount, Verb: "mount", Object: m.dir, Remote: statedir.WithoutSecrets(m.request.Remote), Session: m.session}.Explain(err)
	}
	m.handover.Update(func(h *takeover.State) { h.Reply = reply })
	d.register(m)
	d.log.Info("mounted", zap.String("dir", m.dir), zap.String("remote", reply.Remote), zap.String("commit", reply.Commit),
		zap.Int64("total_ms", reply.Timings.Total))
	return m, reply, nil
}

// reserve adds a new mount to the registry, so that its directory is mounted once: mountpoint.ErrAlreadyMounted otherwise.
func (d *Daemon) reserve(r control.MountRequest, b beginning, abort context.CancelFunc) (*mount, error) {
	id, dir := r.Session, filepath.Clean(r.Dir)
	if r.At != "" {
		id = "" // the session itself may be mounted beside it
	} else if id == "" && !r.ReadOnly {
		id = statedir.SessionName(statedir.WithoutSecrets(r.Remote), dir)
	}
	session := id
	if session == "" {
		var random [4]byte
		rand.Read(random[:])
		id = statedir.NamelessPrefix + hex.EncodeToString(random[:])
	}
	m := d.newMount(r, id, dir, time.Now())
	m.session, m.parent, m.base, m.from, m.far, m.known, m.abort = session, b.parent, b.base, b.from, b.far, b.known, abort
	m.agent = m.newAgent()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errors.New("the daemon is shutting down")
	}
	if !d.add(m) {
		return nil, mountpoint.ErrAlreadyMounted
	}
	return m, nil
}

// newMount returns a mount that is in no registry yet and holds nothing.
func (d *Daemon) newMount(r control.MountRequest, id, dir string, since time.Time) *mount {
	m := &mount{
		daemon:    d,
		requested: requested{id: id, dir: dir, request: r, since: since},
		starting:  starting{abort: func() {}, started: make(chan struct{})},
		acquired:  acquired{shown: make(chan struct{}, 1)},
		serving: serving{
			state: control.StatePreparing, failures: map[string]error{}, following: make(chan struct{}, 1), retried: make(chan struct{}),
		},
		gitSide: gitSide{
			gitTried: make(chan struct{}), historyTried: make(chan struct{}), hydrateTried: make(chan struct{}),
			gitWanted: make(chan struct{}), indexed: -1,
		},
		ending: ending{gone: make(chan struct{})},
	}
	m.wantGit = sync.OnceFunc(func() { close(m.gitWanted) })
	m.submodules.mount = m
	m.inside = m.gitDirInside()
	return m
}

// leaveWait is how long a new mount waits for the end of one at its directory that the kernel has unmounted already.
const leaveWait = 10 * time.Second

// awaitEarlier waits for the end of a mount at the directory of a request that is about to end, and returns nil. It returns a mount
// that the same request, by its nonce, has made already: its reply did not reach the caller. Any other mount there is
// mountpoint.ErrAlreadyMounted.
func (d *Daemon) awaitEarlier(ctx context.Context, r control.MountRequest) (*mount, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, leaveWait, mountpoint.ErrAlreadyMounted)
	defer cancel()
	for {
		d.mu.Lock()
		m, ok := d.mounts[filepath.Clean(r.Dir)]
		d.mu.Unlock()
		if !ok {
			return nil, nil
		}
		asked := r.Nonce != "" && m.request.Nonce == r.Nonce
		if err := m.awaitTakeover(ctx); err != nil {
			return nil, context.Cause(ctx)
		}
		if m.isGone() {
			continue
		}
		served := m.served()
		switch {
		case m.isEnding(served): // it is removed soon
		case served && asked:
			return m, nil
		case !served && asked: // it does not know yet that its caller is gone
		default:
			return nil, mountpoint.ErrAlreadyMounted
		}
		started := m.started
		if served {
			started = nil
		}
		select {
		case <-m.gone:
		case <-started:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// isEnding reports whether a mount is being unmounted, or was served and the kernel has unmounted it.
func (m *mount) isEnding(served bool) bool {
	m.mu.Lock()
	stopping := m.stopping
	m.mu.Unlock()
	return stopping || served && !m.mounted()
}

// awaitTakeover waits until the mount of a predecessor is taken over or removed. It returns the error of ctx if that ends before.
func (m *mount) awaitTakeover(ctx context.Context) error {
	if m.taking == nil {
		return nil
	}
	select {
	case <-m.taking:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Unmount unmounts the mount at a directory. A busy mount is an error that changes nothing, unless r.Detach is set. If changes could
// not be written the mount is gone, and the error says so. It is safe for concurrent use.
func (d *Daemon) Unmount(ctx context.Context, r control.UnmountRequest) (control.UnmountReply, error) {
	m, ok := d.find(r.Dir)
	if !ok || m.dir != filepath.Clean(r.Dir) {
		if m, ok = d.departed.remove(filepath.Clean(r.Dir)); !ok { // it ended while no process served the caller
			if d.failures.Forget(filepath.Clean(r.Dir), nil) {
				return control.UnmountReply{Dir: filepath.Clean(r.Dir)}, nil
			}
			return control.UnmountReply{}, fault.NotMounted("unmount", r.Dir)
		}
	}
	if err := m.awaitTakeover(ctx); err != nil {
		return control.UnmountReply{}, fault.Explain("unmount", m.dir, err)
	}
	followed := !r.Discard && m.onlyFollowed(ctx)
	m.setEnd(r.Discard || followed, r.Trash && !followed, r.Keep)
	if m.agent.SetPatience(r.Timeout); r.Discard {
		m.agent.SetPatience(-1) // it is deleted on the session remote
	}
	if err := m.stop(ctx, r.Detach); err != nil {
		m.setEnd(false, false, 0)
		return control.UnmountReply{}, fault.Explain("unmount", m.dir, err)
	}
	d.unregister(m)
	m.mu.Lock()
	o := m.outcome
	m.mu.Unlock()
	if o.err != nil {
		return control.UnmountReply{}, &control.Error{Code: control.ExitFailed, Verb: "unmount", Object: m.dir,
			Cause: "it is unmounted, and its work is kept, but not all of it could be written out: " + o.err.Error(),
			Hint:  "artifactfs doctor shows the cause"}
	}
	reply := control.UnmountReply{ID: m.id, Dir: m.dir, Submodules: m.submodules.settle(r.Discard, r.Trash), Trashed: o.trashed, Until: o.until}
	if o.kept.Any() {
		reply.Session, reply.Kept = m.session, o.kept.Paths
	}
	if r.Discard {
		reply.NotRemoved = m.discardThere(ctx)
	} else {
		m.reportLeft(&reply)
	}
	return reply, nil
}

// setEnd sets what becomes of the session when the mount ends.
func (m *mount) setEnd(discard, trash bool, keep time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.discard, m.trash, m.keepFor = discard, discard && trash, keep
	m.handover.Update(func(h *takeover.State) { h.Discard, h.Trash, h.Keep = m.discard, m.trash, m.keepFor })
}
