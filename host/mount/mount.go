// Package mount serves one mount. It connects the store of a remote, a working tree and the kernel, and starts and
// stops these parts in order. Git commands work in a mount; it can follow a branch of the remote, stores the changes of
// a session in checkpoints, and survives the death of the process that serves it.
//
// Package daemon has the registry of all mounts and answers the requests of clients. It calls the exported methods of
// Mount. A mount calls the daemon through the interface Registry. Terms of this package: the home of a mount is its
// directory below the state directory; the successor is the process that takes over the mounts of a dead process, its
// predecessor; the keeper is the interface to the supervisor, which stores descriptors for a successor.
//
// Lock order: the lock of the registry, then the lock of a mount's phase, then the locks of its other parts. No
// goroutine holds one of these locks while it waits for the network, the disk or the kernel.
package mount

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/mount/attach"
	"github.com/artifactfs/artifactfs/host/mount/background"
	"github.com/artifactfs/artifactfs/host/mount/contents"
	"github.com/artifactfs/artifactfs/host/mount/gitside"
	"github.com/artifactfs/artifactfs/host/mount/home"
	"github.com/artifactfs/artifactfs/host/mount/mountpoint"
	"github.com/artifactfs/artifactfs/host/mount/origin"
	"github.com/artifactfs/artifactfs/host/mount/phase"
	"github.com/artifactfs/artifactfs/host/mount/takeover"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/session/lifecycle"
)

// Mount is one working tree at one directory. It owns the following parts, and starts and ends them in order. Only
// submodules uses other mounts; the other parts get what they need when they are created.
//
//	beginning    finds and acquires what is mounted
//	home         the directory below the state directory, with the record of the session
//	contents     what the mount reads: the store, the objects of the session, the snapshot, and the view of the files
//	attachment   the working tree, and what attaches it to the kernel
//	sessionSide  the agent, which makes and pushes checkpoints, and the locks of other sessions
//	git          serves git commands
//	activity     the background work, and the changes of the working tree that requests and the followed branch cause
//	submodules   mounts inside this one
//	succession   the predecessor and the successor of this process
//	ending       what the unmount does with the session
//
// New creates a mount that is being prepared. Start opens its parts and attaches it to the kernel, and startBackground
// makes it served. finish ends it and removes it from the registry. The part phase decides which goroutine does this.
// In a takeover, Inherit is called instead of New, and Succeed instead of Start.
//
//	New ----> preparing -- Start ----> mounted <-> degraded    degraded: the last request to the remote has failed
//	              |                       |
//	              | Stop, or a failure    | Stop, or the kernel has ended the mount
//	              |                       v
//	              |                    submodules, last push, bind mounts, the kernel's mount; a busy mount stays mounted
//	              v                       |
//	          unmounted <-- finish -------+
//
//	Inherit -> preparing -- Succeed --> mounted                the mount of a dead process
//	                          |
//	                          +-> failed                       a later successor may serve it
//
// As long as the mount is being prepared, only the goroutine that runs Start or Succeed may use the fields, except
// phase and Events. After that they do not change, and every goroutine may read them. The methods may be called from
// any goroutine.
type Mount struct {
	host    *Host
	ID      string   // name of the home
	Dir     string   // clean absolute path of the mount's root directory
	Session string   // name of the session, which equals ID; "" if the mount has no session
	Request *Request // request for the mount, with its current credentials
	Parent  *Mount   // mount that contains this one as a submodule; nil if this mount is not a submodule

	phase      *phase.Phase
	succession *takeover.Succession
	beginning  *beginning
	home       *home.Home
	contents   *contents.Contents
	attachment *attach.Attachment

	sessionSide *sessionSide
	git         atomic.Pointer[gitside.Side] // nil until the working tree is open
	Events      *gitside.Events              // events of the background work for which requests wait
	activity    *activity
	submodules  submodules
	ending      ending
}

// StartPoint is what a mount starts from, if the request alone does not determine it. All fields may be zero.
type StartPoint struct {
	Parent *Mount               // mount that contains the new mount as a submodule
	Base   *statedir.Record     // record of an earlier mount without changes, whose base commit is mounted again
	From   *origin.Local        // checkpoint of a session on this host
	Far    *origin.Far          // checkpoint of a session on a session remote
	Known  *origin.KnownSession // refs and metadata of the session to resume, if they were read already
	Head   *control.NewHead     // where HEAD of the new session is, if not where HEAD of From, Far or Base was
	// Missing is what the new mount does not have of the mount that is forked.
	Missing Missing
}

// Missing is what a fork does not have of the mount that is forked.
type Missing struct {
	Known      bool              // whether Paths and All are known; if not, the checkpoint has similar ones
	Paths      []control.LeftOut // the first paths that the checkpoint leaves out
	All        int64             // number of all these paths
	Submodules []string          // paths of submodules that are mounted in the mount that is forked, but not in the fork
}

// New returns a mount for the request r. The caller adds the mount to the registry. abort cancels the context with
// which the caller then calls Start.
func New(host *Host, r control.MountRequest, b StartPoint, abort context.CancelFunc) *Mount {
	id, dir := r.Session, filepath.Clean(r.Dir)
	if r.At != "" {
		id = "" // a mount that shows a checkpoint has a separate home, because the session may be mounted at the same time
	} else if id == "" && !r.ReadOnly {
		id = statedir.SessionName(statedir.WithoutSecrets(r.Remote), dir)
	}
	session := id
	if session == "" {
		var random [4]byte
		rand.Read(random[:])
		id = statedir.NamelessPrefix + hex.EncodeToString(random[:])
	}
	return newMount(host, r, home.Owner{ID: id, Session: session, Dir: dir, Since: time.Now()},
		takeover.NewSuccession(), b, abort)
}

// newMount returns a mount that has no resources yet and is not in the registry. abort cancels its start, or is nil.
func newMount(host *Host, r control.MountRequest, of home.Owner, s *takeover.Succession, b StartPoint,
	abort context.CancelFunc) *Mount {
	of.Homes, of.Log = host.Homes, host.Log
	m := &Mount{
		host: host, ID: of.ID, Dir: of.Dir, Session: of.Session, Parent: b.Parent,
		Request: &Request{MountRequest: r, remotes: host.Remotes},
		phase:   phase.New(abort), succession: s, home: home.New(of),
	}
	m.contents = contents.New(contents.Owner{
		ID: of.ID, Dir: of.Dir, State: host.State, Since: of.Since, Request: &m.Request.MountRequest, Log: host.Log,
	})
	m.Events = gitside.NewEvents(m.phase.Gone())
	m.submodules.mount = m
	m.attachment = attach.New(attach.Owner{
		ID: of.ID, Dir: of.Dir, State: host.State, Session: of.Session, TakenOver: s.TakenOver(),
		Request: &m.Request.MountRequest, Home: m.home, Contents: m.contents, Handover: &s.Handover,
		Latencies: &host.Times, Log: host.Log, Sampled: host.Sampled,
	})
	m.activity = &activity{
		work: background.New(of.Dir, host.State, host.Log), dir: of.Dir, host: host, request: m.Request, home: m.home,
		contents: m.contents, attachment: m.attachment, events: m.Events, succession: s,
	}
	m.sessionSide = newSessionSide(&sessionSide{
		name: of.Session, dir: of.Dir, host: host, request: m.Request, phase: m.phase, home: m.home,
		contents: m.contents, attachment: m.attachment, events: m.Events, work: m.activity.work, git: m.Git,
	}, s, func(ctx context.Context) bool { return m.Following().Unchanged(ctx, false) })
	m.beginning = &beginning{
		base: b.Base, from: b.From, far: b.Far, known: b.Known, head: b.Head, missing: b.Missing,
		session: of.Session, since: of.Since,
		request: m.Request, home: m.home, contents: m.contents, remotes: host.Remotes, agent: m.sessionSide.agent,
	}
	return m
}

// Writable reports whether the mount has a session and is not read-only.
func (m *Mount) Writable() bool { return m.attachment.Writable() }

// LeaveWait is the maximum time for which a mount request waits for the end of an earlier mount at the same directory.
const LeaveWait = 10 * time.Second

// AwaitEnd waits for the end of a mount that is being unmounted, so that its directory can be used for another mount.
// If the mount was created by a request with the given nonce, the client has repeated a request whose reply was lost:
// AwaitEnd then waits until the mount is served, and returns true. In other cases it returns
// mountpoint.ErrAlreadyMounted. If ctx ends first, it returns the cause. If it returns false and no error, the caller
// has to search a mount at the directory again.
func (m *Mount) AwaitEnd(ctx context.Context, nonce string) (repeated bool, err error) {
	// whether the mount was created by an earlier attempt of the same request
	asked := nonce != "" && m.Request.Nonce == nonce
	if err := m.AwaitTakeover(ctx); err != nil {
		return false, context.Cause(ctx)
	}
	if m.IsGone() {
		return false, nil
	}
	served := m.Served()
	switch {
	// The mount is being unmounted, or is no longer mounted in the kernel: wait until the registry no longer contains it.
	case m.phase.Ending() || served && !mountpoint.HasFUSE(m.Dir):
	case served && asked:
		return true, nil
	// The first attempt of the request is still in progress: wait until the mount is served or has ended.
	case !served && asked:
	default:
		return false, mountpoint.ErrAlreadyMounted
	}
	started := m.phase.Started()
	if served {
		started = nil // a receive from a nil channel blocks forever, so the select waits for the end
	}
	select {
	case <-m.phase.Gone():
	case <-started:
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	return false, nil
}

// AwaitTakeover waits until the takeover of the mount has ended, successfully or not. It returns at once if the mount
// was started by this process. If ctx ends first, it returns the error of ctx.
func (m *Mount) AwaitTakeover(ctx context.Context) error {
	return m.succession.Await(ctx)
}

// Unmount unmounts the mount as r requests. If the mount is busy and r.Detach is not set, Unmount returns an error and
// changes nothing. If some changes could not be written to the state directory, the mount is unmounted nevertheless,
// and Unmount returns an error.
func (m *Mount) Unmount(ctx context.Context, r control.UnmountRequest) (control.UnmountReply, error) {
	if err := m.AwaitTakeover(ctx); err != nil {
		return control.UnmountReply{}, fault.Explain("unmount", m.Dir, err)
	}
	if repo, _ := m.sessionSide.agent.Repo(); r.Discard && repo != nil {
		if err := lifecycle.OnHold(repo, m.Session); err != nil {
			return control.UnmountReply{}, fault.ExplainDelete("delete session", m.Session, err)
		}
	}
	// If following the branch was the only cause of changes, and the session has no checkpoints and no session remote,
	// nothing is lost with the session. Then it is deleted, without a copy in the trash.
	followed := !r.Discard && m.Request.SessionOptions.Remote == "" && m.Following().Unchanged(ctx, true) &&
		m.Listed().Status().Checkpoints == 0 && m.attachment.Tree.Overlay().Stats().Carried == 0
	m.ending.set(r.Discard || followed, r.Trash && !followed, r.Discard, r.Keep, &m.succession.Handover)
	if m.sessionSide.agent.SetPatience(r.Timeout); r.Discard {
		// The session will be deleted on the session remote, so it is not pushed first.
		m.sessionSide.agent.SetPatience(-1)
	}
	if err := m.Stop(ctx, r.Detach); err != nil {
		// the mount remains, so the options of this failed request must have no effect
		m.ending.set(false, false, false, 0, &m.succession.Handover)
		return control.UnmountReply{}, fault.Explain("unmount", m.Dir, err)
	}
	m.host.Registry.Unregister(m)
	o := m.ending.result()
	if o.Err != nil {
		return control.UnmountReply{}, &control.Error{Code: control.ExitFailed, Verb: "unmount", Object: m.Dir,
			Cause: "mount was unmounted and its session is kept, but some changes could not be written: " + o.Err.Error(),
			Hint:  "run artifactfs doctor to see the cause"}
	}
	reply := control.UnmountReply{ID: m.ID, Dir: m.Dir, Submodules: m.submodules.settle(r.Discard, r.Trash),
		Trashed: o.Trashed, Until: o.Until}
	if o.Unsaved.Any() {
		reply.Session, reply.Kept = m.Session, o.Unsaved.Paths
	}
	if r.Discard {
		reply.NotRemoved = m.sessionSide.deleteThere()
	} else {
		m.sessionSide.reportUnpushed(&reply)
	}
	return reply, nil
}
