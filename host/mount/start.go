package mount

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/control/sessionlink"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/mount/attach"
	"github.com/artifactfs/artifactfs/host/mount/contents"
	"github.com/artifactfs/artifactfs/host/mount/gitside"
	"github.com/artifactfs/artifactfs/host/mount/mountpoint"
	"github.com/artifactfs/artifactfs/host/mount/takeover"
	"github.com/artifactfs/artifactfs/host/remotes"
	"github.com/artifactfs/artifactfs/host/session/agent"
	"github.com/artifactfs/artifactfs/host/statedir"
)

// Start starts the mount, and waits for all background work for which the request wants to wait. It calls served when
// the mount is served or has failed. If the start fails, Start removes the mount. If a client has repeated its request
// and the mount is served already, Start returns the reply of the earlier request.
func (m *Mount) Start(ctx context.Context, start time.Time, served func(),
	progress func(control.Progress)) (control.MountReply, error) {
	reply, err := m.startOnce(ctx, start, progress)
	served()
	if err == nil {
		if m.Request.Submodules {
			m.submodules.enter(ctx)
		}
		m.announce(progress)
		m.host.Failures.Forget(m.Dir, progress)
		for _, note := range m.contents.Store.Stats().Notices {
			progress(control.Progress{Message: note})
		}
		err = m.activity.await(ctx, m.phase.Gone(), m.Git().Relinks(), progress)
		reply.Timings.Total = time.Since(start).Milliseconds()
		if snap := m.contents.Snapshot(); snap != nil && snap.Whole() {
			reply.Timings.Trees = snap.Took().Milliseconds()
			if m.Request.Wait != control.WaitTree {
				reply.Files = int64(m.contents.View.Counts(ctx).Files)
			}
		}
	}
	if err != nil {
		switch { // the error of start may only be a consequence of the cancellation
		case m.attachment.Server != nil && (errors.Is(ctx.Err(), context.Canceled) || m.attachment.Server.Ended()):
			err = fault.ErrUnmounted
		case ctx.Err() != nil:
			err = ctx.Err()
		}
		if stopErr := m.takeDown(context.WithoutCancel(ctx), true); stopErr != nil {
			m.host.Log.Warn("undo mount", zap.String("dir", m.Dir), zap.Error(stopErr))
		}
		return control.MountReply{}, fault.Subject{Area: fault.Mount, Verb: "mount", Object: m.Dir,
			Remote: statedir.WithoutSecrets(m.Request.Remote), Session: m.Session}.Explain(err)
	}
	// If this process dies before the client has received the reply, the successor sends the same reply when the client
	// repeats its request.
	m.succession.Update(func(h *takeover.State) { h.Reply = reply })
	return reply, nil
}

// startOnce calls start, or returns the reply of the earlier start if the mount is served already.
func (m *Mount) startOnce(ctx context.Context, start time.Time,
	progress func(control.Progress)) (control.MountReply, error) {
	if m.Served() {
		return m.phase.Reply(), nil
	}
	return m.start(ctx, start, progress)
}

// start opens the parts of the mount, attaches it to the kernel, and returns when its root directory can be read. If it
// fails, the caller must call takeDown, which reverses the steps that were made.
func (m *Mount) start(ctx context.Context, start time.Time,
	progress func(control.Progress)) (control.MountReply, error) {
	var reply control.MountReply
	err := attach.CheckGitDir(m.Request.MountRequest, m.Dir, m.Session)
	if err != nil {
		return reply, err
	}
	// If this process dies from now on, the successor removes everything that start has created.
	m.beginHandover()
	if err = m.attachment.Prepare(ctx, m.parentDir()); err != nil {
		return reply, err
	}
	if err = m.contents.OpenStore(m.host.Remotes, m.Request.main); err != nil {
		return reply, err
	}
	if base, ok := m.beginning.knownBase(); ok { // connect to the remote while the home is prepared
		m.contents.Store.ConnectFor(base)
	}
	progress(control.Progress{Phase: "connect"})
	if err = m.home.Enter(ctx, &m.Request.MountRequest, m.contents.Store.URL()); err != nil {
		return reply, err
	}
	// Another request may have created the session since the daemon has looked for it.
	if m.home.Resumed && m.beginning.forks() {
		return reply, fmt.Errorf("%w: %s", fault.ErrSessionExists, m.Session)
	}
	if !m.home.Resumed {
		if err = gitside.KeepNew(m.home.Dir, m.Request.NewGit); err != nil {
			return reply, err
		}
	}
	if err = m.attachment.GuardGitDir(); err != nil {
		return reply, err
	}
	// The supervisor keeps a copy of the lock's descriptor, so that no other process can lock the home between two
	// workers.
	m.succession.Keep(takeover.PartLock, m.home.LockFile)
	if err = m.sessionSide.configure(); err != nil {
		return reply, err
	}
	create := remotes.Creation{
		Remotes: m.host.Remotes, Store: m.contents.Store, Request: m.Request.MountRequest, Now: m.Request.Now,
		Format: m.home.Record.Format,
	}
	if err = create.Run(ctx, progress); err != nil {
		return reply, err
	}
	// Reading the checkpoint needs the objects of the session.
	if err = m.beginning.openObjects(); err != nil {
		return reply, err
	}
	read := make(chan gitdir.Checkout, 1)
	// The configuration is read while requests are sent to the remote.
	own := m.beginning.settings()
	go func() { read <- gitside.ReadCheckout(ctx, m.home.Dir, m.Request.Environment.ForPrograms(), own) }()
	err = m.beginning.acquire(ctx, progress)
	checkout := <-read
	if err != nil {
		return reply, err
	}
	// If the client waits for git, the refs of the remote are listed while the trees arrive, and otherwise while the index
	// is written. An earlier request would delay the commit.
	if m.Request.Wait != control.WaitTree && !gitdir.Exists(m.home.GitDir()) {
		m.contents.Listing = m.contents.Store.List()
	}
	if err = m.contents.OpenView(checkout, m.filtering()); err != nil {
		return reply, err
	}
	// The kernel may send requests as soon as it has the mount, so the working tree is opened before that.
	if err = m.open(); err != nil {
		return reply, err
	}
	progress(control.Progress{Phase: "trees"})
	rootReady := m.contents.ReadRoot(ctx)
	if err = m.attachment.PlanRedirects(ctx); err != nil {
		return reply, err
	}
	besides := m.beginning.besides()
	if err = m.Git().SetUp(ctx, m.beginning.takeTimes(), besides.Files()); err != nil {
		return reply, err
	}
	// The session is claimed before the mount exists, so that no process writes to a session that another machine holds.
	claim := agent.ClaimOptions{Resumed: m.home.Resumed, Confirm: m.beginning.confirms()}
	if err = m.sessionSide.agent.Claim(ctx, claim); err != nil {
		return reply, err
	}
	// The kernel gets the mount when its root directory can be read: a system call that waited for the remote in the new
	// mount could not be cancelled.
	if err = <-rootReady; err != nil {
		return reply, fault.Remote(err)
	}
	// Programs can change the files from now on. Until then, the home of a fork is removed if this process dies, so that
	// the repeated request finds no session with its name.
	if err = m.home.Finish(); err != nil {
		return reply, err
	}
	if err = m.attachment.Attach(m.services()); err != nil {
		return reply, err
	}
	mounted := time.Since(start)
	if err = m.attachment.Inside.Bind(); err != nil {
		return reply, err
	}
	if m.Writable() {
		// The client relies on the record after it has received the reply, so the record must survive a power failure from
		// then on.
		if err = statedir.SyncRecord(m.home.Dir); err != nil {
			return reply, err
		}
		switch {
		case !mountpoint.MayBind():
		case m.Request.Through != "":
			// BindExisting can take longer than the client should wait for its reply, so it runs in the background.
			m.activity.work.Go("mount redirected directories", func() {
				m.attachment.Redirects.BindExisting(context.WithoutCancel(ctx))
			})
		default:
			m.attachment.Redirects.BindExisting(ctx)
		}
	}
	snap := m.contents.Snapshot()
	reply = control.MountReply{
		Session: m.Session, Resumed: m.home.Resumed || m.beginning.resumedFromRemote(), Changed: m.attachment.Changed(),
		ID: m.ID, Dir: m.Dir, Remote: m.contents.Store.URL(), Ref: statedir.ShortRef(snap.Ref),
		Head: m.Git().HeadName(), Commit: snap.Commit.String(), Files: -1,
		Timings: control.Timings{
			Connect: snap.Connect.Milliseconds(), Tree: time.Since(start).Milliseconds(),
			Mounted: mounted.Milliseconds(),
		},
		Receipt: m.beginning.receipt(m.Git()), Carried: besides.Reply(),
	}
	m.beginning.forgetBesides()
	// A successor removes the mount if this process dies before this update, and takes the mount over after this update.
	m.succession.Update(func(h *takeover.State) {
		h.Phase, h.Request, h.Record, h.Resumed, h.Notes, h.Made, h.Reply =
			takeover.Served, m.Request.Now(), m.home.Record, m.home.Resumed, m.attachment.Redirects.Notes(),
			m.attachment.Point.Created, reply
		if checkout.Size() <= takeover.MaxCheckout {
			h.Checkout = &checkout
		}
	})
	if !m.startBackground(reply, takeover.State{}) {
		return reply, context.Canceled
	}
	return reply, nil
}

// startBackground starts the background work of a mount after the kernel has received its root inode, and returns
// immediately. before states which parts of this work the predecessor has completed; it is the zero value for a new
// mount. reply is the reply to the mount request. If the start of the mount was cancelled, startBackground starts
// nothing and returns false.
func (m *Mount) startBackground(reply control.MountReply, before takeover.State) bool {
	ctx, cancel := context.WithCancel(context.Background())
	served := m.phase.Serve(reply, cancel, func() {
		m.attachment.RaiseEvents()
		m.activity.begin(ctx, before, m.Listed(), m.Git(), m.sessionSide)
		// umount(8) ends the mount without a request to this process, so this goroutine waits until the server has
		// ended.
		go func() {
			m.attachment.Server.Wait()
			m.unregisterUnmounted()
			m.finish()
		}()
	})
	if !served {
		cancel()
	}
	return served
}

// filtering returns the parameters of the filter programs of the mount.
func (m *Mount) filtering() contents.Filtering {
	return contents.Filtering{
		Home: m.home, Inside: m.attachment.Inside.Wanted(), Ready: m.awaitGitDir, TakenOver: m.succession.TakenOver(),
	}
}

// awaitGitDir waits until the mount's git directory exists, which filter programs need. It returns an error if the git
// directory could not be created, or if ctx or the mount ends.
func (m *Mount) awaitGitDir(ctx context.Context) error {
	if !m.Events.AwaitGit(ctx) {
		return cmp.Or(ctx.Err(), context.Canceled)
	}
	if m.Git().Dir() == nil {
		return errors.New("git directory of the mount was not created")
	}
	return nil
}

// open opens the working tree of the mount, and the part of the mount that makes git commands work.
func (m *Mount) open() error {
	err := m.attachment.Open(m.sessionSide.agent.Automatic(), m.beginning.forks(), m.beginning.besides().Files())
	if m.attachment.Tree != nil {
		m.openSide()
	}
	return err
}

// services returns the functions of the mount that package fuse calls.
func (m *Mount) services() attach.Services {
	return attach.Services{Await: m.Git().Await, Objects: m.Git().Objects(), Guard: m.sessionSide.beginLocks()}
}

// parentDir returns the directory of the mount that contains this one as a submodule, or "" if there is none.
func (m *Mount) parentDir() string {
	if m.Parent == nil {
		return ""
	}
	return m.Parent.Dir
}

// announce passes messages to progress: which session the mount resumes, and which problems were found.
func (m *Mount) announce(progress func(control.Progress)) {
	if m.home.Resumed {
		progress(control.Progress{Message: fmt.Sprintf("resuming session %s: %s", m.Session,
			statedir.Unsaved{Paths: m.attachment.Changed()})})
	}
	for _, message := range m.beginning.messages() {
		progress(control.Progress{Message: message})
	}
	if note := m.Git().Note(); note != "" {
		progress(control.Progress{Message: note})
		m.sessionSide.agent.AddNote(note) // for the status
	}
	by, newest, answered := m.sessionSide.agent.ContinuedBy()
	switch {
	case !m.home.Resumed:
	case by == "" && !answered:
		progress(control.Progress{Message: "session remote has not answered: " +
			"artifactfs status shows later whether another host has continued session " + m.Session})
	case by != "":
		of := m.Session + "@" + string(newest)
		if m.contents.Objects.SessionRemote != nil {
			of = sessionlink.Link{Remote: m.contents.Objects.SessionRemote.URL(), Session: m.Session}.String()
		}
		progress(control.Progress{Message: fmt.Sprintf("%s has continued session %s since: "+
			"this mount shows the files of this host; run artifactfs session fork %s DIR to mount the newest ones",
			by, m.Session, control.ShellWord(of))})
	}
	if m.home.OtherOwner {
		progress(control.Progress{Message: fmt.Sprintf("files belong to user %d and group %d, as when the session began",
			m.home.Record.UID, m.home.Record.GID)})
	}
	for _, problem := range m.attachment.Tree.Overlay().Recovery().Problems {
		progress(control.Progress{Message: problem})
	}
	for _, note := range append(m.attachment.Redirects.Notes(), m.submodules.problems()...) {
		progress(control.Progress{Message: note})
	}
}
