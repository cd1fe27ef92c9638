// Package mount serves one mount: it connects the store of a remote, a working tree and the kernel, and starts and stops their parts
// in order. A mount serves git commands by its git directory, follows a branch of the remote, stores the work of a session in
// checkpoints, and survives the process that serves it.
//
// The registry of all mounts and the requests of clients are in package daemon, which calls the exported methods of Mount. A mount
// calls the daemon by the interface Registry. Terms of this package: the home of a mount is its directory below the state directory;
// the successor is the process that takes over the mounts of a dead process, its predecessor; the keeper is the interface to the
// supervisor, which holds descriptors for a successor.
//
// Lock order: the lock of the registry, then Mount.mu. Neither is held across waits for the network, the disk or the kernel.
package mount

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"path/filepath"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/filter"
	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/mount/background"
	"github.com/artifactfs/artifactfs/mount/bind"
	"github.com/artifactfs/artifactfs/mount/follow"
	"github.com/artifactfs/artifactfs/mount/gitside"
	"github.com/artifactfs/artifactfs/mount/mountpoint"
	"github.com/artifactfs/artifactfs/mount/moves"
	"github.com/artifactfs/artifactfs/mount/origin"
	"github.com/artifactfs/artifactfs/mount/remotes"
	"github.com/artifactfs/artifactfs/mount/takeover"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session/agent"
	"github.com/artifactfs/artifactfs/statedir"
	"github.com/artifactfs/artifactfs/worktree"
)

// Mount is one working tree at one directory. Its fields are grouped into structs by the phase of the mount in which they are
// set: the request, the start, the acquired resources, the serving, and the end.
//
// New creates a mount in the state preparing. Start acquires its resources and mounts it, and goBehind sets the state mounted.
// finish sets the state unmounted, removes the mount from the registry and closes gone. In a takeover, Inherit replaces New, and
// Succeed replaces Start.
//
// Some fields are guarded by mu, as their comments state. Until the state is no longer control.StatePreparing, the other fields may
// be used by one goroutine, which runs Start or Succeed. After that they are constant, and every goroutine may read them. Mount is
// safe for concurrent use otherwise.
type Mount struct {
	host *Host
	requested
	starting
	acquired
	serving
	ending

	mu sync.Mutex // guards the fields of all phases that name it; see the package comment for the lock order
}

// requested holds the identity of a mount and its request.
type requested struct {
	ID      string               // name of the home, the directory of the mount below the state directory
	Dir     string               // clean absolute path of the root
	Request control.MountRequest // the original request; requestNow has the current tokens
	since   time.Time            // start of the mount, also of one that was taken over
	Session string               // name of the session, equal to ID; "": the mount keeps no work
	Parent  *Mount               // mount that has this one as a submodule; nil: this one is no submodule

	login        *remotes.Login // credentials for the mounted remote
	sessionLogin *remotes.Login // credentials for the session remote; nil: there is no session remote; guarded by mu
}

// starting holds the inputs and the result of the start of a mount. In a mount that is taken over, abort does nothing, and from,
// far and known are nil.
type starting struct {
	abort   context.CancelFunc // cancels the start
	aborted bool               // the start was cancelled by abort; guarded by mu
	started chan struct{}      // closed when this process has mounted and reply is set
	reply   control.MountReply // reply to the mount request, valid once started is closed; guarded by mu
	before  fetch.Stats        // statistics of the store at the start of the mount

	takeoverDone chan struct{}      // closed when the takeover has ended; nil: the mount was started in this process
	inherited    takeover.Inherited // descriptors of the predecessor that no part of the mount has taken yet

	// base is the record of an earlier mount whose base commit is mounted again; nil: the request names the commit.
	base       *statedir.Record
	from       *origin.Local        // checkpoint of a session of this host to start from; nil: none
	far        *origin.Far          // checkpoint of a session on a session remote to start from; nil: none
	known      *origin.KnownSession // metadata of the session to resume, if it was read before the start; nil: it was not
	newer      map[string]object.ID // refs on the session remote that are newer than the checkpoint that the mount started from
	moved      map[string]bool      // names of the refs in newer that the session itself has changed as well
	resumed    bool                 // the session existed before the mount
	otherOwner bool                 // the files of the session have another owner than the request names
	point      mountpoint.Point     // directories that were created for the mount
}

// acquired holds the resources of a mount that exist without the kernel: its home, the store, and data that is read from both.
type acquired struct {
	home    *statedir.Home   // directory of the mount below the state directory; locked
	record  statedir.Record  // record of the session, as stored in the home
	store   *fetch.Store     // shared with other mounts of the remote
	release func()           // releases the store
	objects objects          // objects of the mount that the store reads, and session remotes
	snap    *fetch.Snapshot  // mounted commit; guarded by mu once the mount is served
	view    *fetch.View      // converted contents of the trees
	filters *filter.Programs // programs that convert contents
	shown   *shownTree       // tree that prefetch uses
}

// serving holds the parts of a mount that work while the kernel has it mounted.
type serving struct {
	tree       *worktree.Tree    // base tree and overlay
	server     *fuse.Server      // serves the requests of the kernel; nil: not mounted
	redirects  bind.Redirects    // redirected directories
	inside     *bind.GitDir      // git directory that is bind-mounted as .git; nil: .git is a file
	submodules submodules        // mounts of submodules inside this one
	agent      *agent.Agent      // makes and pushes the checkpoints of the session
	handover   takeover.Handover // state and descriptors for a successor

	Events   *gitside.Events    // events in the background work that requests wait for
	side     *gitside.Side      // serves git commands; nil: the tree is not open yet; guarded by mu until the mount is served
	moves    *moves.Mover       // switches, restores and merges; set when the mount is served
	work     *background.Work   // background work, and its failures
	follower *follow.Follower   // follows the branch; nil: the mount is not served yet; guarded by mu
	state    control.State      // phase of the mount; guarded by mu
	cancel   context.CancelFunc // ends the background work; nil: the mount is not served yet; guarded by mu
}

// ending holds the options of the unmount, and its result.
type ending struct {
	stopping bool           // finish has been called; guarded by mu
	options  unmountOptions // what the unmount does with the session
	outcome  outcome        // what was kept of the work; guarded by mu, constant once gone is closed
	gone     chan struct{}  // closed when all parts of the mount have ended
}

// StartPoint is the start of a mount, if the request alone does not name it.
type StartPoint struct {
	Parent *Mount               // parent of a submodule
	Base   *statedir.Record     // record of an earlier mount without changes, whose base is used again
	From   *origin.Local        // checkpoint of a session on this host
	Far    *origin.Far          // checkpoint of a session on a session remote
	Known  *origin.KnownSession // refs and meta of the resumed session; nil if they were not read yet
}

// New returns a mount for the request r, which the caller adds to the registry. The mount calls abort to cancel its start.
func New(host *Host, r control.MountRequest, b StartPoint, abort context.CancelFunc) *Mount {
	id, dir := r.Session, filepath.Clean(r.Dir)
	if r.At != "" {
		id = "" // a mount of a checkpoint has a home of its own, since the session may be mounted too
	} else if id == "" && !r.ReadOnly {
		id = statedir.SessionName(statedir.WithoutSecrets(r.Remote), dir)
	}
	session := id
	if session == "" {
		var random [4]byte
		rand.Read(random[:])
		id = statedir.NamelessPrefix + hex.EncodeToString(random[:])
	}
	m := newMount(host, r, id, dir, time.Now())
	m.Session, m.Parent, m.base, m.from, m.far, m.known, m.abort = session, b.Parent, b.Base, b.From, b.Far, b.Known, abort
	m.agent = m.newAgent()
	return m
}

// newMount returns a mount that has no resources and is not in the registry yet.
func newMount(host *Host, r control.MountRequest, id, dir string, since time.Time) *Mount {
	m := &Mount{
		host:      host,
		requested: requested{ID: id, Dir: dir, Request: r, since: since},
		starting:  starting{abort: func() {}, started: make(chan struct{})},
		serving: serving{
			state: control.StatePreparing, work: background.New(dir, host.State, host.Log),
		},
		ending: ending{gone: make(chan struct{})},
	}
	m.Events = gitside.NewEvents(m.gone)
	m.submodules.mount = m
	m.inside = m.gitDirInside()
	return m
}

// LeaveWait is how long a mount request waits for an earlier mount on the same directory to end.
const LeaveWait = 10 * time.Second

// AwaitEnd waits until the mount has ended, if it is ending, so that another mount can use its directory. If the mount was
// created by a request with the given nonce, the caller repeats a request whose reply was lost: AwaitEnd then waits until the
// mount is served, and returns true. Otherwise it returns mountpoint.ErrAlreadyMounted. It returns the cause of the end of ctx if
// ctx ends first. If it returns false and nil, the mount may have ended, and the caller looks at the registry again.
func (m *Mount) AwaitEnd(ctx context.Context, nonce string) (repeated bool, err error) {
	asked := nonce != "" && m.Request.Nonce == nonce // the same request made m
	if err := m.AwaitTakeover(ctx); err != nil {
		return false, context.Cause(ctx)
	}
	if m.IsGone() {
		return false, nil
	}
	served := m.Served()
	switch {
	case m.isEnding(served): // wait until it has left the registry
	case served && asked:
		return true, nil
	case !served && asked: // the first try of the request is still starting: wait until it is served or gone
	default:
		return false, mountpoint.ErrAlreadyMounted
	}
	started := m.started
	if served {
		started = nil // receiving from a nil channel blocks forever: only gone counts
	}
	select {
	case <-m.gone:
	case <-started:
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	return false, nil
}

// isEnding reports whether a mount is being unmounted, or was served before and is not mounted in the kernel any more.
func (m *Mount) isEnding(served bool) bool {
	m.mu.Lock()
	stopping := m.stopping
	m.mu.Unlock()
	return stopping || served && !mountpoint.HasFUSE(m.Dir)
}

// AwaitTakeover waits until the takeover of the mount has ended, whether it succeeded or not. It returns at once if the mount
// was started in this process. It returns the error of ctx if ctx ends first.
func (m *Mount) AwaitTakeover(ctx context.Context) error {
	if m.takeoverDone == nil {
		return nil
	}
	select {
	case <-m.takeoverDone:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Unmount unmounts the mount as r requests, and returns the reply. If the mount is busy and r.Detach is not set, unmount returns
// an error and changes nothing. If some changes could not be written to the state directory, the mount is unmounted, and the error
// reports that.
func (m *Mount) Unmount(ctx context.Context, r control.UnmountRequest) (control.UnmountReply, error) {
	if err := m.AwaitTakeover(ctx); err != nil {
		return control.UnmountReply{}, fault.Explain("unmount", m.Dir, err)
	}
	// If all changes of the mount were made by following the branch, and its session has no checkpoints and no session remote, nothing is
	// lost: the session is deleted and does not appear in the trash.
	followed := !r.Discard && m.Request.SessionOptions.Remote == "" && m.Following().Unchanged(ctx, true) &&
		m.Listed().Status().Checkpoints == 0
	m.options.set(r.Discard || followed, r.Trash && !followed, r.Keep, &m.handover)
	if m.agent.SetPatience(r.Timeout); r.Discard {
		m.agent.SetPatience(-1) // no wait for a push: the session is about to be deleted on the session remote
	}
	if err := m.Stop(ctx, r.Detach); err != nil {
		m.options.set(false, false, 0, &m.handover) // the mount stays, and so does its session
		return control.UnmountReply{}, fault.Explain("unmount", m.Dir, err)
	}
	m.host.Registry.Unregister(m)
	m.mu.Lock()
	o := m.outcome
	m.mu.Unlock()
	if o.err != nil {
		return control.UnmountReply{}, &control.Error{Code: control.ExitFailed, Verb: "unmount", Object: m.Dir,
			Cause: "it is unmounted, and its work is kept, but not all of it could be written out: " + o.err.Error(),
			Hint:  "artifactfs doctor shows the cause"}
	}
	reply := control.UnmountReply{ID: m.ID, Dir: m.Dir, Submodules: m.submodules.settle(r.Discard, r.Trash),
		Trashed: o.trashed, Until: o.until}
	if o.unsaved.Any() {
		reply.Session, reply.Kept = m.Session, o.unsaved.Paths
	}
	if r.Discard {
		reply.NotRemoved = m.discardThere(ctx)
	} else {
		m.reportLeft(&reply)
	}
	return reply, nil
}
