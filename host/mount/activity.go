package mount

import (
	"context"
	"path/filepath"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch/readprofile"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/mount/attach"
	"github.com/artifactfs/artifactfs/host/mount/background"
	"github.com/artifactfs/artifactfs/host/mount/contents"
	"github.com/artifactfs/artifactfs/host/mount/follow"
	"github.com/artifactfs/artifactfs/host/mount/gitside"
	"github.com/artifactfs/artifactfs/host/mount/home"
	"github.com/artifactfs/artifactfs/host/mount/moves"
	"github.com/artifactfs/artifactfs/host/mount/packs"
	"github.com/artifactfs/artifactfs/host/mount/takeover"
	"github.com/artifactfs/artifactfs/host/session/catalog"
)

// activity runs the background work of a mount while it is served, and makes the changes of its working tree that
// requests and the followed branch cause.
//
//	idle -- begin --> active -- the context of begin ends --> wait --> ended
//
// Work that starts before begin, such as that of the session's agent, is also run by the field work. moves and follower
// are nil until begin is called, and do not change after that.
type activity struct {
	work     *background.Work // runs the background work, and records its failures
	moves    *moves.Mover     // switches, restores and merges
	follower *follow.Follower // follows the branch

	dir        string // root directory of the mount
	host       *Host
	request    *Request
	home       *home.Home
	contents   *contents.Contents
	attachment *attach.Attachment
	events     *gitside.Events
	succession *takeover.Succession
}

// begin starts the background work of a mount after the kernel has received the root inode, and returns immediately.
// Each kind of work runs in a separate goroutine:
//
//	git        creates the git directory, then starts pushes of the session and fetches missing trees and history
//	contents   prefetches the contents of the mounted tree, and again after each switch
//	others     follow the branch, join packs, remove unused shared contents, and complete git's index
//
// before states which parts of this work the predecessor has completed; it is the zero value for a new mount. listed
// describes the mount for package catalog, side makes its git commands work, and s is the part for its session.
func (a *activity) begin(ctx context.Context, before takeover.State, listed *catalog.Mounted, side *gitside.Side,
	s *sessionSide) {
	a.moves = a.newMover(listed, side, s)
	a.follower = follow.New(follow.Follower{
		Mount: listed, Ready: side.Ready, MoveTo: a.moves.MoveTo,
		On: a.request.Follow, Interval: a.request.FollowInterval, Log: a.host.Log,
		Snapshot: a.contents.Snapshot, Note: a.work.Note, Git: side.Dir,
	})
	a.work.Store = a.contents.Store
	a.work.Go("finish mounting in the background", func() { a.makeGit(ctx, before, side, s) })
	a.work.Go("record reads", func() { a.contents.Profiles.Run(ctx) })
	a.work.Go("keep locks", func() { s.locking.run(ctx, a.succession.Turned()) })
	a.work.Go("prefetch", func() { a.prefetch(ctx, before.Hydrated) })
	if a.succession.TakenOver() {
		// To create bind mounts, the kernel looks up paths in the mount, which may block while a program holds a lock.
		// This is done in a separate goroutine, so that it does not delay the takeover.
		a.work.Go("mount redirected directories", func() {
			a.work.Note("mount the git directory", a.attachment.Inside.Bind())
			a.attachment.Redirects.BindAgain(ctx, a.attachment.Server)
		})
	}
	if a.request.Follow {
		a.work.Go("follow the remote", func() {
			if a.events.AwaitGit(ctx) && a.events.Await(ctx, a.events.HistoryTried) {
				a.follower.Run(ctx)
			}
		})
	}
	a.work.Go("join packs", func() {
		if a.events.Await(ctx, a.events.GitTried) { // after this wait, the directories of packs exist
			a.joinPacks(ctx)
		}
	})
	a.work.Go("find contents that only the session remote has", func() { a.contents.Expect(ctx, a.home.Record) })
	a.work.Go("remove unused shared contents", func() { a.reclaim(ctx) })
	a.work.Go("fill the index", func() { side.Index.Fill(ctx, before.Filled) })
}

// wait waits until the background work has ended. The context of begin must have ended before.
func (a *activity) wait() { a.work.Wait() }

// newMover returns the Mover that switches, restores and merges in the mount.
func (a *activity) newMover(listed *catalog.Mounted, side *gitside.Side, s *sessionSide) *moves.Mover {
	return &moves.Mover{
		Mount: listed, Tree: a.attachment.Tree, Server: a.attachment.Server, Contents: a.contents,
		Events: a.attachment.Events, Follow: a.request.Follow, Reads: a.request.Prefetch != control.PrefetchNone,
		Handover: &a.succession.Handover,
		State:    a.host.State, Log: a.host.Log, Catalog: a.host.Catalog, Remotes: a.host.Remotes,
		HomeOf: a.host.Registry.HomeOf, Ready: side.Ready, Redirects: a.attachment.Redirects.Paths,
		Refuses: s.locking.refuses,
	}
}

// makeGit creates the git directory, or opens the one that the predecessor has created. Then it starts the pushes of
// the session, and fetches missing trees and the history.
func (a *activity) makeGit(ctx context.Context, before takeover.State, side *gitside.Side, s *sessionSide) {
	var git *gitdir.Dir
	a.succession.AwaitOthers(ctx, a.host.Served)
	a.work.Repeat(ctx, "make git directory", a.events.GitTried, func() (err error) {
		if before.GitReady {
			git, err = side.Reopen(ctx)
		} else {
			git, err = side.Make(ctx)
		}
		return err
	})
	if ctx.Err() != nil {
		return
	}
	a.succession.Update(func(h *takeover.State) { h.GitReady = true })
	a.work.Go("push session", func() { s.agent.Start(ctx, a.contents.Snapshot().Format) })
	// If the predecessor died before all trees were fetched, they are fetched now.
	if !a.contents.Snapshot().Whole() {
		a.work.Repeat(ctx, "fetch trees", nil, func() error {
			_, err := a.contents.Whole(ctx)
			return err
		})
	}
	if before.History {
		a.contents.Store.SetHistoryComplete()
	}
	// Deepen is not called if the history is complete, or is not to be fetched.
	if before.History || git == nil || a.request.History == control.HistoryNone {
		close(a.events.HistoryTried)
	} else {
		a.work.Repeat(ctx, "complete history", a.events.HistoryTried, func() error {
			return a.contents.Deepen(ctx, git, side.Listing, side.Hurried)
		})
		if ctx.Err() == nil {
			a.succession.Update(func(h *takeover.State) { h.History = true })
		}
	}
	if ctx.Err() == nil {
		a.work.Repeat(ctx, "add remote-tracking branches", nil, func() error { return side.AddTracking(ctx) })
	}
}

// prefetch prefetches the contents of the tree that the mount shows, and again after each change of this tree. hydrated
// states whether the predecessor has completed the first prefetch.
func (a *activity) prefetch(ctx context.Context, hydrated bool) {
	a.succession.AwaitOthers(ctx, a.host.Served)
	var profile readprofile.Profile
	if a.request.Prefetch != control.PrefetchNone {
		profile = a.contents.Profiles.Load(ctx)
	}
	if a.request.Wait == control.WaitGit {
		// The client waits for git's index, and not for contents. In a large tree, both take all of the processor time.
		a.events.AwaitGit(ctx)
	}
	prefetch := func() error { return a.contents.Prefetch(ctx, profile) }
	if hydrated {
		close(a.events.HydrateTried)
	} else {
		// If all contents are already on this host, the prefetch only walks through the tree. Unless the client waits
		// for the prefetch, it is delayed until no mount is being started. A profile whose contents are missing is not
		// delayed, because programs will read these contents soon.
		if a.contents.Snapshot().Local && a.request.Wait != control.WaitAll &&
			!a.contents.View.Foreseen.Lacks(ctx, profile) {
			a.host.Turns.Calm(ctx, nil, nil)
		}
		a.work.Repeat(ctx, "prefetch", a.events.HydrateTried, prefetch)
	}
	for {
		if ctx.Err() == nil {
			a.succession.Update(func(h *takeover.State) { h.Hydrated = true })
		}
		// After a switch or an update of the branch, the mount shows another tree. The contents of this tree are
		// prefetched too.
		if !a.contents.Shown.Changed(ctx) {
			return
		}
		a.succession.Update(func(h *takeover.State) { h.Hydrated, h.Filled = false, false })
		a.work.Repeat(ctx, "prefetch", nil, prefetch)
	}
}

// joinPacks replaces the packs of the git directory and of the store by fewer, larger packs when there are many, until
// ctx ends.
func (a *activity) joinPacks(ctx context.Context) {
	t := packs.Tender{Dir: a.dir, Log: a.host.Log, Watch: a.host.Watch, Busy: a.contents.Store.Busy}
	t.Run(ctx, packs.NewDirectory(filepath.Join(a.home.GitDir(), "objects"), a.contents.Objects.Local.Join),
		packs.NewDirectory(filepath.Join(a.contents.Store.GitDir(), "objects"), a.contents.Store.Join))
}

// await waits until all background work for which the mount request wants to wait has succeeded or failed, and returns
// the first error. gone is closed when the mount has ended. relinks states whether linked worktrees are restored before
// git commands can run.
func (a *activity) await(ctx context.Context, gone <-chan struct{}, relinks bool,
	progress func(control.Progress)) error {
	var waitFor []<-chan struct{}
	relinks = relinks && a.request.Wait == control.WaitTree
	if a.request.Wait != control.WaitTree || relinks {
		waitFor = append(waitFor, a.events.GitTried)
	}
	if a.request.History == control.HistoryFull {
		waitFor = append(waitFor, a.events.HistoryTried)
	}
	if a.request.Wait == control.WaitAll {
		waitFor = append(waitFor, a.events.HistoryTried, a.events.HydrateTried)
	}
	if len(waitFor) > 0 {
		a.events.WantGit() // the git directory is created before anything else is fetched
	}
	for _, ch := range waitFor {
		if err := a.awaitOne(ctx, ch, gone, progress); err != nil {
			return err
		}
	}
	// Without a git directory, the mount has no linked worktrees.
	if len(waitFor) > 0 && !(relinks && len(waitFor) == 1) {
		return a.work.Failure()
	}
	return nil
}

// awaitOne waits until the channel ch is closed, and reports progress every 250 ms. It returns an error if ctx or the
// mount ends first.
func (a *activity) awaitOne(ctx context.Context, ch, gone <-chan struct{}, progress func(control.Progress)) error {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ch:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-gone:
			return fault.ErrUnmounted
		case <-tick.C:
			progress(a.step(ctx))
		}
	}
}

// step returns the progress of the background work that the mount does at this moment.
func (a *activity) step(ctx context.Context) control.Progress {
	if snap := a.contents.Snapshot(); !snap.Whole() {
		n, _ := snap.Arrived()
		return control.Progress{Phase: "trees", Done: n, Unit: "objects"}
	}
	if !a.events.GitWasTried() { // no count: it would take the processor time that the index needs
		return control.Progress{Phase: "git"}
	}
	select {
	case <-a.events.HydrateTried:
		st := a.contents.Store.Stats()
		return control.Progress{Phase: "history", Done: st.BytesIn - a.contents.Before.BytesIn, Unit: "bytes"}
	default:
		h := a.contents.View.Counts(ctx)
		return control.Progress{Phase: "prefetch", Done: int64(h.Fetched), Total: int64(h.Blobs), Unit: "blobs"}
	}
}
