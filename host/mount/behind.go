package mount

import (
	"context"
	"path/filepath"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch/readprofile"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/host/mount/packs"
	"github.com/artifactfs/artifactfs/host/mount/takeover"
)

// startBackground starts the background work of a mount after the kernel has received its root inode, and returns immediately. Each kind
// of work runs in a separate goroutine:
//
//	git        creates the git directory, then starts pushes of the session and fetches missing trees and history
//	contents   prefetches the contents of the mounted tree, and again after each switch
//	others     follow the branch, join packs, complete git's index, and wait for umount(8)
//
// The parameter before states which parts of this work the predecessor has completed; it is the zero value for a new
// mount. reply is the reply to the mount request. If the start of the mount was cancelled, startBackground starts
// nothing and returns false.
func (m *Mount) startBackground(reply control.MountReply, before takeover.State) bool {
	ctx, cancel := context.WithCancel(context.Background())
	served := m.phase.Serve(reply, cancel, func() { m.beginWork(ctx, before) })
	if !served {
		cancel()
	}
	return served
}

// beginWork does what startBackground describes. It is called while the phase of the mount changes.
func (m *Mount) beginWork(ctx context.Context, before takeover.State) {
	m.attachment.RaiseEvents()
	m.moves = m.newMover()
	m.follower = m.newFollower()
	m.work.Store = m.contents.Store
	m.work.Go("finish mounting in the background", func() {
		var git *gitdir.Dir
		m.succession.awaitOthers(ctx, m.host.Served)
		m.work.Repeat(ctx, "make git directory", m.Events.GitTried, func() (err error) {
			if before.GitReady {
				git, err = m.Git().Reopen(ctx)
			} else {
				git, err = m.Git().Make(ctx)
			}
			return err
		})
		if ctx.Err() != nil {
			return
		}
		m.succession.Update(func(h *takeover.State) { h.GitReady = true })
		m.work.Go("push session", func() { m.sessionSide.agent.Start(ctx, m.contents.Snapshot().Format) })
		// If the predecessor died before all trees were fetched, they are fetched now.
		if !m.contents.Snapshot().Whole() {
			m.work.Repeat(ctx, "fetch trees", nil, func() error {
				_, err := m.contents.Whole(ctx)
				return err
			})
		}
		if before.History {
			m.contents.Store.SetHistoryComplete()
		}
		// If the history is complete, or if it is not to be fetched, deepen is not called.
		if before.History || git == nil || m.Request.History == control.HistoryNone {
			close(m.Events.HistoryTried)
			return
		}
		m.work.Repeat(ctx, "complete history", m.Events.HistoryTried, func() error {
			return m.contents.Deepen(ctx, git, m.Git().Listing, m.Git().Hurried)
		})
		if ctx.Err() == nil {
			m.succession.Update(func(h *takeover.State) { h.History = true })
		}
	})
	m.work.Go("record reads", func() { m.contents.Profiles.Run(ctx) })
	m.work.Go("keep locks", func() { m.sessionSide.locking.run(ctx, m.succession.turned) })
	m.work.Go("prefetch", func() {
		m.succession.awaitOthers(ctx, m.host.Served)
		var profile readprofile.Profile
		if m.Request.Prefetch != control.PrefetchNone {
			profile = m.contents.Profiles.Load(ctx)
		}
		if m.Request.Wait == control.WaitGit {
			// The client waits for git's index, and not for contents. In a large tree, both take all of the processor time.
			m.Events.AwaitGit(ctx)
		}
		prefetch := func() error { return m.contents.Prefetch(ctx, profile) }
		if before.Hydrated {
			close(m.Events.HydrateTried)
		} else {
			// If all contents are already on this host, the prefetch only walks through the tree. Unless the client waits for
			// the prefetch, it is delayed until no mount is being started. A profile whose contents are missing is not delayed, because
			// programs will read these contents soon.
			if m.contents.Snapshot().Local && m.Request.Wait != control.WaitAll &&
				!m.contents.View.Foreseen.Lacks(ctx, profile) {
				m.host.Turns.Calm(ctx, nil, nil)
			}
			m.work.Repeat(ctx, "prefetch", m.Events.HydrateTried, prefetch)
		}
		for {
			if ctx.Err() == nil {
				m.succession.Update(func(h *takeover.State) { h.Hydrated = true })
			}
			// After a switch or an update of the branch, the mount shows another tree. The contents of this tree are prefetched
			// too.
			if !m.contents.Shown.Changed(ctx) {
				return
			}
			m.succession.Update(func(h *takeover.State) { h.Hydrated, h.Filled = false, false })
			m.work.Repeat(ctx, "prefetch", nil, prefetch)
		}
	})
	if m.succession.takenOver() {
		// To create bind mounts, the kernel looks up paths in the mount, which may block while a program holds a lock. This is
		// done in a separate goroutine, so that it does not delay the takeover.
		m.work.Go("mount redirected directories", func() {
			m.work.Note("mount the git directory", m.attachment.Inside.Bind())
			m.attachment.Redirects.BindAgain(ctx, m.attachment.Server)
		})
	}
	if m.Request.Follow {
		m.work.Go("follow the remote", func() {
			if m.Events.AwaitGit(ctx) && m.Events.Await(ctx, m.Events.HistoryTried) {
				m.Following().Run(ctx)
			}
		})
	}
	m.work.Go("join packs", func() {
		if m.Events.Await(ctx, m.Events.GitTried) { // after this wait, the directories of packs exist
			t := packs.Tender{Dir: m.Dir, Log: m.host.Log, Watch: m.host.Watch, Busy: m.contents.Store.Busy}
			t.Run(ctx, packs.NewDirectory(filepath.Join(m.home.GitDir(), "objects"), m.contents.Objects.Local.Join),
				packs.NewDirectory(filepath.Join(m.contents.Store.GitDir(), "objects"), m.contents.Store.Join))
		}
	})
	m.work.Go("find contents that only the session remote has", func() {
		m.contents.Expect(ctx, m.home.Record)
	})
	m.work.Go("fill the index", func() { m.Git().Index.Fill(ctx, before.Filled) })
	go func() { // umount(8) ends the mount without a request to this process, so this goroutine waits until the server has ended
		m.attachment.Server.Wait()
		m.unregisterUnmounted()
		m.finish()
	}()
}
