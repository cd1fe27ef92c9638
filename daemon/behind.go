package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fetch"
	"github.com/artifactfs/artifactfs/gitdir"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/mount/takeover"
)

// Failed background work of a mount is repeated after retryFirst, and after twice the previous pause each time, up to
// retryMost.
const (
	retryFirst = time.Second
	retryMost  = 30 * time.Second

	// Work that failed because the disk was full is repeated when the disk has more room. That is checked every roomPoll, and
	// the work is repeated after roomMost in any case.
	roomPoll = 2 * time.Second
	roomMost = 10 * time.Minute
	roomStep = 16 << 20 // least number of bytes that must have become free

	behindWait = time.Second // longest wait for the takeover of other mounts; git commands wait as long
)

// goBehind starts the background work of a mount whose root the kernel has, and returns. Each kind of work has a goroutine:
//
//	git        git directory, then pushes of the session, missing trees, history
//	contents   prefetch of the mounted tree, and again after each switch
//	rest       following, repacking, filling the index, waiting for umount(8)
//
// before states which of it the predecessor has finished; it is zero for a new mount. goBehind returns false, and starts
// nothing, if the mount was aborted before.
func (m *mount) goBehind(before takeover.State) bool {
	ctx, cancel := context.WithCancel(context.Background())
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.aborted {
		cancel()
		return false
	}
	m.state, m.cancel = control.StateMounted, cancel
	m.behind("finish mounting in the background", func() {
		var git *gitdir.Dir
		m.afterOthers(ctx)
		m.persist(ctx, "make git directory", m.gitTried, func() (err error) {
			if before.GitReady {
				git, err = m.reopenGitDir(ctx)
			} else {
				git, err = m.makeGitDir(ctx)
			}
			return err
		})
		if ctx.Err() != nil {
			return
		}
		m.handover.Update(func(h *takeover.State) { h.GitReady = true })
		m.behind("push session", func() { m.agent.Start(ctx, m.snapshot().Format) })
		if !m.snapshot().Whole() { // the predecessor died while it fetched the trees
			m.persist(ctx, "fetch trees", nil, func() error {
				_, err := m.wholeSnapshot(ctx)
				return err
			})
		}
		if before.History {
			m.store.SetHistoryComplete()
		}
		// The predecessor has fetched the history, or there is none to fetch.
		if before.History || git == nil || m.request.History == control.HistoryNone || m.snapshot().Commit.IsZero() {
			close(m.historyTried)
			return
		}
		m.persist(ctx, "complete history", m.historyTried, func() error { return m.deepen(ctx, git) })
		if ctx.Err() == nil {
			m.handover.Update(func(h *takeover.State) { h.History = true })
		}
	})
	m.behind("hydrate", func() {
		m.afterOthers(ctx)
		budget := m.request.PrefetchBudget
		if budget == 0 {
			budget = DefaultBudget
		}
		if m.request.Prefetch == control.PrefetchAll {
			budget = 0 // no limit
		}
		hydrate := func() error { return m.view.Prefetch(ctx, fetch.PrefetchPolicy(m.request.Prefetch), budget) }
		if before.Hydrated {
			close(m.hydrateTried)
		} else {
			// All contents may be on this host. Then only the walk of the tree remains, and no caller waits for that.
			if m.snapshot().Local && m.request.Wait != control.WaitAll {
				m.daemon.backgroundTurns.calm(ctx, nil, nil)
			}
			m.persist(ctx, "prefetch", m.hydrateTried, hydrate)
		}
		for {
			if ctx.Err() == nil {
				m.handover.Update(func(h *takeover.State) { h.Hydrated = true })
			}
			// After a switch or a move the mount shows another tree, whose contents are prefetched as well.
			if !m.showsOther(ctx) {
				return
			}
			m.handover.Update(func(h *takeover.State) { h.Hydrated, h.Filled = false, false })
			m.persist(ctx, "prefetch", nil, hydrate)
		}
	})
	if m.takeoverDone != nil {
		// Bind mounts look up paths in the mount, where a program may hold a lock, so this must not delay the takeover.
		m.behind("mount redirected directories", func() {
			m.note("mount the git directory", m.inside.Bind())
			m.redirects.BindAgain(ctx, m.server)
		})
	}
	m.behind("follow the remote", func() { m.follow(ctx) })
	m.behind("tend packs", func() { m.tendPacks(ctx) })
	m.behind("learn what only the session remote has", func() { m.expect(ctx) })
	m.behind("fill the index", func() { m.fillIndex(ctx, before.Filled) })
	go func() { // umount(8) ends the mount without a request to this process
		m.server.Wait()
		m.unregisterUnmounted()
		m.finish()
	}()
	return true
}

// afterOthers waits until all mounts that are taken over together with this one are served, but no longer than behindWait. File
// system calls in those mounts block until then, so serving them is more urgent than background work. It returns at once if
// this mount was not taken over.
func (m *mount) afterOthers(ctx context.Context) {
	if m.takeoverDone == nil {
		return
	}
	select {
	case <-m.daemon.served:
	case <-time.After(behindWait):
	case <-ctx.Done():
	}
}

// persist calls work until it succeeds or ctx ends. Until then its failure is in the mount's status under the name what.
// persist closes tried, if it is not nil, after the first call, so that other goroutines can wait for the first try and not for
// success. If ctx ends first, tried stays open; those goroutines wait for m.gone too.
func (m *mount) persist(ctx context.Context, what string, tried chan<- struct{}, work func() error) {
	for pause := retryFirst; ; pause = min(2*pause, retryMost) {
		// Both channels are read before the call, so that an event during the call is not missed.
		recovered := m.store.Recovered()
		m.mu.Lock()
		retried := m.retried
		m.mu.Unlock()
		err := m.guarded(what, work)
		if ctx.Err() != nil {
			return
		}
		m.note(what, err)
		if tried != nil {
			close(tried)
			tried = nil
		}
		if err == nil {
			return
		}
		if errors.Is(err, syscall.ENOSPC) {
			m.awaitRoom(ctx)
			continue
		}
		select {
		case <-time.After(pause):
		case <-recovered: // the remote answers requests again
		case <-retried: // for example, the mount has a new token
			pause = retryFirst
		case <-ctx.Done():
			return
		}
	}
}

// awaitRoom waits until the file system of the state directory has at least a quarter, and at least roomStep bytes, more free
// space than at the call, but no longer than roomMost. A pack that did not fit does not fit into the same space, and each try
// transfers it again.
func (m *mount) awaitRoom(ctx context.Context) {
	before, _ := disk.Free(m.daemon.state)
	need := before + max(before/4, roomStep)
	latest := time.NewTimer(roomMost)
	defer latest.Stop()
	for {
		select {
		case <-time.After(roomPoll):
		case <-latest.C:
			return
		case <-ctx.Done():
			return
		}
		if free, err := disk.Free(m.daemon.state); err == nil && free >= need {
			return
		}
	}
}

// note records the result of background work under the name what, for the status and the log. A nil err clears an earlier
// failure.
func (m *mount) note(what string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, failed := m.failures[what]
	switch {
	case err != nil:
		m.daemon.log.Warn(what, zap.String("dir", m.dir), zap.Error(err))
		m.failures[what] = err
	case failed:
		m.daemon.log.Info("succeeded after all: "+what, zap.String("dir", m.dir))
		delete(m.failures, what)
	}
}

// failure returns the first failure of background work by name that no later try has cleared; nil if there is none. It skips a
// failure to reach the remote if the remote has answered since.
func (m *mount) failure() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, what := range slices.Sorted(maps.Keys(m.failures)) {
		if fetch.IsUnreachable(m.failures[what]) && m.store.Reachable() {
			continue // persist repeats the work
		}
		return fmt.Errorf("%s: %w", what, m.failures[what])
	}
	return nil
}

// wholeSnapshot waits for all trees of the mounted commit and returns its snapshot. If fetching them failed, it acquires the
// same commit again, sets the new snapshot as the mount's and waits for its trees.
func (m *mount) wholeSnapshot(ctx context.Context) (*fetch.Snapshot, error) {
	snap := m.snapshot()
	err := snap.Wait(ctx)
	if err == nil || ctx.Err() != nil {
		return snap, err
	}
	var again *fetch.Snapshot
	err = m.store.Retry(ctx, func() (err error) {
		if again, err = m.store.Acquire(ctx, snap.Commit.String()); err != nil {
			return err
		}
		again.Ref, again.Tree, again.Time = snap.Ref, snap.Tree, snap.Time
		m.mu.Lock()
		m.snap = again
		m.mu.Unlock()
		return again.Wait(ctx)
	})
	return again, err
}

// snapshot returns the current snapshot of the mounted commit. wholeSnapshot may replace it.
func (m *mount) snapshot() *fetch.Snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.snap
}

// deepen fetches the history of the mounted commit, then updates refs, default branch and shallow boundary of the git directory
// to match the fetched history.
func (m *mount) deepen(ctx context.Context, git *gitdir.Dir) error {
	if err := m.store.Deepen(ctx, m.hurried); err != nil {
		return err
	}
	return errors.Join(git.SetRefs(m.store.Refs()), git.SetDefault(m.store.DefaultBranch()), git.SetShallow(m.store.Boundary()))
}
