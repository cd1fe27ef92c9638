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

// mount is one working tree at one directory.
type mount struct {
	daemon  *Daemon
	id      string
	dir     string
	request control.MountRequest // as it was made: see requestNow
	since   time.Time
	before  fetch.Stats // what the store had done when the mount began

	session string          // "" if nothing is kept; the id of all others is the session's name
	resumed bool            // it was there already
	record  statedir.Record // of the session

	otherOwner bool // than was asked for: a session's files keep theirs

	login        *login // to the mounted remote
	sessionLogin *login // to the session remote; nil: there is none

	point   mountpoint.Point
	home    *statedir.Home
	store   *fetch.Store
	release func()
	local   *fetch.Local // what its git directory has
	owned   *fetch.Local // what its session's repository has
	second  *thin.Remote // that has contents which the session made; nil: none
	elders  *fetch.Local // the same as owned, and elder as second, of the session that this one was forked from; nil: none
	elder   *thin.Remote
	snap    *fetch.Snapshot
	view    *fetch.View
	filters *filter.Programs
	tree    *worktree.Tree
	server  *fuse.Server
	git     stockGit

	handover  takeover.Handover    // to a successor
	inherited takeover.Inherited   // from a predecessor, and not taken yet
	taking    chan struct{}        // closed when it was taken over from another process, or cannot be; nil: it was made here
	base      *statedir.Record     // what it is to show, if it was mounted before; nil: what its request names
	from      *origin              // point that it is to begin with; nil: none of this host
	far       *farOrigin           // the same of a session remote; nil: none, or this process did not begin the mount
	known     *knownSession        // that it resumes, as read before the mount began; nil: nothing was
	newer     map[string]object.ID // refs of the session remote that the point it began with does not know of
	moved     map[string]bool      // those of them that the session itself has moved

	redirects  bind.Redirects
	inside     *bind.GitDir // nil: .git is a file
	around     *mount       // that this one is a submodule of; nil: it stands for itself
	submodules submodules
	agent      *agent.Agent // of its session

	abort   context.CancelFunc // ends the start
	work    sync.WaitGroup     // behind the mount
	started chan struct{}      // closed when it was there for the first time in this process
	gone    chan struct{}      // closed when nothing of the mount is left

	// Closed when the first try is over, whether it went well or not.
	gitTried, historyTried, hydrateTried chan struct{}

	passes gitPass
	hurry  atomic.Bool // a git command waits for history

	following chan struct{} // one token: of who asks the remote where the branch is

	shown chan struct{} // holds one when another tree is shown than the one that was hydrated last

	indexed   int64         // contents that had come when this process wrote git's index; negative: it did not
	gitWanted chan struct{} // closed when somebody waits for the git directory
	wantGit   func()        // closes it

	mu       sync.Mutex
	state    control.State      // until it leaves preparing, the fields above belong to start alone
	aborted  bool               // somebody ended the start
	cancel   context.CancelFunc // ends the work behind the mount
	gitReady bool
	failures map[string]error // what behind the mount fails at present, by what was being done
	stopping bool
	reply    control.MountReply // once started is closed
	discard  bool               // throw away the work at the end
	trash    bool               // with discard: it can be brought back
	keepFor  time.Duration      // how long the work is kept at the end; 0: until it is discarded
	outcome  outcome            // frozen once gone is closed
	restored *restored          // that nobody was told of; nil: none
	retried  chan struct{}      // closed, and made anew, when what failed is to be tried again at once
}

// Mount acquires and mounts. Whatever fails, or if ctx ends, nothing is left of it.
func (d *Daemon) Mount(ctx context.Context, r control.MountRequest, progress func(control.Progress)) (control.MountReply, error) {
	_, reply, err := d.mount(ctx, r, beginning{}, progress)
	return reply, err
}

// mount is Mount, also of a submodule of the mount around it, of what was mounted before, or of a point.
func (d *Daemon) mount(ctx context.Context, r control.MountRequest, b beginning, progress func(control.Progress)) (*mount, control.MountReply, error) {
	start := time.Now()
	ctx, abort := context.WithCancel(ctx)
	defer abort()
	ended := d.turns.begins()
	defer ended()
	defer func() { b.known.close() }()
	m, err := d.earlier(ctx, r)
	if err == nil && m == nil {
		if err = d.complete(ctx, &r, &b); err == nil {
			m, err = d.reserve(r, b, abort)
		}
	}
	if err != nil {
		return nil, control.MountReply{}, fault.Explain("mount", r.Dir, err)
	}
	reply, err := m.begun(ctx, start, progress)
	ended()
	if err == nil {
		if r.Submodules {
			m.submodules.enter(ctx)
		}
		m.greet(progress)
		d.failures.Forget(m.dir, progress)
		for _, note := range m.store.Stats().Notices {
			progress(control.Progress{Message: note})
		}
		err = m.await(ctx, progress)
		reply.Timings.Total = time.Since(start).Milliseconds()
		if snap := m.snapshot(); snap != nil && snap.Whole() {
			reply.Timings.Trees = snap.Took().Milliseconds()
			if r.Wait != control.WaitTree {
				reply.Files = int64(m.view.Hydration(ctx).Files)
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

// reserve takes a directory's place in the registry, so that it is mounted once.
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
	m.session, m.around, m.base, m.from, m.far, m.known, m.abort = session, b.around, b.base, b.from, b.far, b.known, abort
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

// newMount makes a mount that is nowhere yet.
func (d *Daemon) newMount(r control.MountRequest, id, dir string, since time.Time) *mount {
	m := &mount{
		daemon: d, id: id, dir: dir, request: r, since: since, state: control.StatePreparing,
		abort: func() {}, gone: make(chan struct{}), started: make(chan struct{}), failures: map[string]error{},
		gitTried: make(chan struct{}), historyTried: make(chan struct{}), hydrateTried: make(chan struct{}),
		following: make(chan struct{}, 1), shown: make(chan struct{}, 1), gitWanted: make(chan struct{}), indexed: -1,
		retried: make(chan struct{}),
	}
	m.wantGit = sync.OnceFunc(func() { close(m.gitWanted) })
	m.submodules.mount = m
	m.inside = m.gitDirInside()
	return m
}

// leaveWait is how long a new mount waits for one that the kernel has let go of to be tidied up.
const leaveWait = 10 * time.Second

// earlier waits until the directory of a request is nobody's, or belongs to a mount that goes on. Is it one that the same
// asker has asked for before, whose answer did not reach him, it is given.
func (d *Daemon) earlier(ctx context.Context, r control.MountRequest) (*mount, error) {
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
		if err := m.settled(ctx); err != nil {
			return nil, context.Cause(ctx)
		}
		if m.isGone() {
			continue
		}
		served := m.served()
		switch {
		case m.ends(served): // it is about to be gone
		case served && asked:
			return m, nil
		case !served && asked: // who asked before has not noticed yet that nobody listens
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

// ends says whether a mount is being taken down, or the kernel has let go of one that was there.
func (m *mount) ends(served bool) bool {
	m.mu.Lock()
	stopping := m.stopping
	m.mu.Unlock()
	return stopping || served && !m.mounted()
}

// settled waits until a mount of another process is taken over, or gone.
func (m *mount) settled(ctx context.Context) error {
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

// Unmount ends the mount at a directory. Work that could not be settled is an error, though the mount is gone.
func (d *Daemon) Unmount(ctx context.Context, r control.UnmountRequest) (control.UnmountReply, error) {
	m, ok := d.find(r.Dir)
	if !ok || m.dir != filepath.Clean(r.Dir) {
		if m, ok = d.departed.take(filepath.Clean(r.Dir)); !ok { // while the asker had nobody to hear him
			if d.failures.Forget(filepath.Clean(r.Dir), nil) {
				return control.UnmountReply{Dir: filepath.Clean(r.Dir)}, nil
			}
			return control.UnmountReply{}, fault.NotMounted("unmount", r.Dir)
		}
	}
	if err := m.settled(ctx); err != nil {
		return control.UnmountReply{}, fault.Explain("unmount", m.dir, err)
	}
	followed := !r.Discard && m.onlyFollowed(ctx)
	m.setEnd(r.Discard || followed, r.Trash && !followed, r.Keep)
	if m.agent.SetPatience(r.Timeout); r.Discard {
		m.agent.SetPatience(-1) // it is deleted there
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

// setEnd says what becomes of the work when the mount ends.
func (m *mount) setEnd(discard, trash bool, keep time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.discard, m.trash, m.keepFor = discard, discard && trash, keep
	m.handover.Update(func(h *takeover.State) { h.Discard, h.Trash, h.Keep = m.discard, m.trash, m.keepFor })
}
