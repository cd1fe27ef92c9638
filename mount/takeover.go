package mount

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/gitdir"
	"github.com/artifactfs/artifactfs/mount/mountpoint"
	"github.com/artifactfs/artifactfs/mount/takeover"
	"github.com/artifactfs/artifactfs/worktree"
)

// If a process that serves mounts dies, its mounts stay attached, and the kernel blocks all accesses to them. The successor
// takes over each mount. It uses the descriptors and the state that the keeper (the interface to the supervisor) stores, and the
// files on disk. The steps are:
//
//	serve the kernel   store, home, fetched trees, namespace, device: no step needs the network or another program
//	then git           the sockets, on which git commands are waiting already
//	then the rest      what the dead process had not finished: history, prefetching, trees that were being fetched
//
// If the mount request was not answered before the process died, the mount is removed, and the caller repeats its request. If a
// mount cannot be taken over, it is removed too, and the reason is recorded for status requests (Host.Failures).

const (
	takeTries = 5                     // attempts in one process
	takePause = 50 * time.Millisecond // pause before the second attempt; it doubles
	// mostDeaths is how many processes in a row may die during the takeover of one mount before that mount is abandoned. The
	// number is not smaller, because processes also die for other reasons, for example in tests that kill them.
	mostDeaths = 10
)

var (
	errDeadly   = errors.New("each process that takes it over dies")
	errNotMoved = errors.New("the process that served it has died, and this kernel does not let another one take over (Linux 6.9 does)")
)

// Inherit returns the mount that a predecessor has left with the descriptors in. The caller adds it to the registry and calls
// succeed. If the state of the mount cannot be read, inherit closes the descriptors and returns an error.
func Inherit(host *Host, in takeover.Inherited) (*Mount, error) {
	k, err := takeover.Resume(host.Keeper, in, host.Log)
	if err != nil {
		return nil, err
	}
	h := k.State()
	m := newMount(host, h.Request, h.ID, h.Dir, h.Since)
	m.takeoverDone, m.inherited = make(chan struct{}), in
	m.handover = k
	m.Session, m.record, m.resumed, m.reply = h.Record.Session, h.Record, h.Resumed, h.Reply
	m.agent = m.newAgent()
	m.point = mountpoint.Point{Dir: h.Dir, Created: h.Made}
	for _, note := range h.Notes {
		m.redirects.Note("%s", note)
	}
	return m, nil
}

// LeaveTakeover releases an inherited mount that is not in the registry and will not be taken over.
func (m *Mount) LeaveTakeover() {
	m.inherited.Close()
	m.handover.Drop()
}

// Deaths returns the number of processes that died in a row during the takeover of the mount.
func (m *Mount) Deaths() int { return m.handover.State().Died }

// JoinParent links an inherited mount of a submodule with its parent, and with the outermost mount, which lists all nested
// submodules. The function mountAt returns the mount at a directory.
func (m *Mount) JoinParent(mountAt func(dir string) (*Mount, bool)) {
	dir := m.handover.State().ParentDir
	parent, ok := mountAt(dir)
	if dir == "" || !ok {
		return
	}
	m.Parent = parent
	outmost := parent
	for dir := outmost.handover.State().ParentDir; dir != ""; dir = outmost.handover.State().ParentDir {
		next, ok := mountAt(dir)
		if !ok {
			break
		}
		outmost = next
	}
	outmost.submodules.inside = append(outmost.submodules.inside, m)
}

// Succeed takes over the mount, or removes it if a takeover is not possible. It closes m.takeoverDone. The result ended reports
// whether the mount was unmounted while no process served it, so that a repeated unmount request may still ask for its outcome.
// If another version of the program may be able to serve the mount, succeed leaves it attached and returns an error.
func (m *Mount) Succeed() (ended bool, err error) {
	defer close(m.takeoverDone)
	h := m.handover.State()
	log := m.host.Log.With(zap.String("dir", m.Dir))
	switch {
	case h.Phase != takeover.Served:
		log.Info("removing a mount that was not finished")
		m.removeUnfinished()
		return false, nil
	// Before Linux 6.9, the kernel does not resend requests that the dead process had read.
	case !m.inherited.Has(takeover.PartDevice):
		m.abandon(errNotMoved)
		return false, nil
	case h.Died >= mostDeaths:
		m.abandon(fmt.Errorf("%w: %d did", errDeadly, h.Died))
		return false, nil
	}
	start := time.Now()
	// The attempt is counted before it starts, so that the count includes it even if this process dies.
	m.handover.Update(func(h *takeover.State) { h.Died++ })
	for try, pause := 1, takePause; ; try, pause = try+1, 2*pause {
		// An attempt that has opened the tree cannot be undone, and is not repeated.
		if err = m.takeOver(); err == nil || m.tree != nil || try == takeTries {
			break
		}
		log.Warn("take over mount", zap.Error(err))
		m.undoTakeOver()
		time.Sleep(pause)
	}
	switch {
	case errors.Is(err, fuse.ErrUnfit):
		log.Error("take over mount", zap.Error(err))
		return false, fmt.Errorf("take over %s: %w", m.Dir, err)
	case err != nil:
		m.abandon(err)
	case m.server == nil:
		log.Info("unmounted while no process served it")
		m.finish()
		return true, nil
	default:
		// The takeover succeeded, so the deaths before it do not count any more.
		m.handover.Update(func(h *takeover.State) { h.Died = 0 })
		log.Info("took over", zap.String("session", m.Session), zap.Duration("took", time.Since(start)))
		if err := m.inside.Bind(); err != nil {
			log.Warn("show the git directory again", zap.Error(err))
		}
	}
	return false, nil
}

// beginHandover stores the state of the mount with the keeper (the interface to the supervisor), so that a successor of this
// worker can take over the mount. If that fails, the mount is served anyway, but cannot be taken over.
func (m *Mount) beginHandover() {
	h := takeover.State{Phase: takeover.Preparing, ID: m.ID, Dir: m.Dir, Since: m.since, Request: m.Request}
	if m.Parent != nil {
		h.ParentDir = m.Parent.Dir
	}
	m.handover = takeover.Begin(m.host.Keeper, h, m.host.Log)
}

// Touch acquires and releases the lock of the mount, and the lock of its inode tree. All code holds these locks briefly.
func (m *Mount) Touch() {
	m.mu.Lock()
	served := m.cancel != nil
	m.mu.Unlock()
	if served { // only then tree is set, and it stays set
		m.tree.KnownAttr(worktree.Root)
	}
}

// takeOver serves the mount in this process. If the kernel has unmounted the file system in the meantime, takeOver returns nil
// and leaves m.server nil.
func (m *Mount) takeOver() (err error) {
	h := m.handover.State()
	ctx := context.Background()
	device := m.inherited.File(takeover.PartDevice)
	// The kernel may have unmounted the file system between the two processes.
	gone := hungUp(device)
	if m.store, m.release, err = m.host.Remotes.Store(m.Request, m.login); err != nil {
		return err
	}
	m.before = m.store.Stats()
	if err = m.takeOverHome(ctx); err != nil {
		if gone && errors.Is(err, fs.ErrNotExist) { // the predecessor was killed after it had removed the home
			m.home = nil
			return nil
		}
		return err
	}
	if err = m.configureAgent(); err != nil {
		return err
	}
	if err = m.lend(); err != nil {
		return err
	}
	base, err := m.record.Base()
	if err != nil {
		return err
	}
	if m.snap, err = m.store.Reopen(ctx, base); err != nil {
		return err
	}
	m.filters = m.newFilters()
	m.view = m.store.View(m.snap, m.checkout(ctx, h).Settings(), m.filters)
	m.shown = newShownTree(m.view, m.home.Dir, m.host.Log)
	if err = m.open(); err != nil {
		return err
	}
	m.redirects.TakeOver(m.bindOptions(), m.record.Redirects)
	// The predecessor was completing an unmount request, whose options apply to the rest of the unmount.
	if gone {
		m.options.takeOver(h)
		return nil
	}
	d, err := fuse.Inherit(m.inherited.Take(takeover.PartDevice), h.Hello)
	if err != nil {
		return err
	}
	if m.server, err = fuse.Serve(m.tree, m.Dir, d, m.fuseOptions()); err != nil && m.server == nil {
		return err
	} else if err != nil {
		m.host.Log.Warn("take over mount", zap.String("dir", m.Dir), zap.Error(err)) // it has just been unmounted
	}
	if h.Discard { // it was about to be unmounted
		m.handover.Update(func(h *takeover.State) { h.Discard, h.Trash = false, false })
	}
	m.goBehind(h)
	close(m.started)
	return nil
}

// takeOverHome takes over the home of the predecessor together with its lock. If the keeper does not have the lock, takeOverHome
// locks the home.
func (m *Mount) takeOverHome(ctx context.Context) (err error) {
	if lock := m.inherited.File(takeover.PartLock); lock != nil {
		m.home, err = m.host.Homes.TakeOver(m.ID, m.Dir, lock)
		if err == nil {
			m.inherited.Take(takeover.PartLock)
		}
		return err
	}
	// The keeper does not have the lock if the predecessor failed to send it.
	m.home, err = m.host.Homes.Lock(ctx, m.ID, m.Dir)
	if err == nil {
		m.handover.Keep(takeover.PartLock, m.home.LockFile)
	}
	return err
}

// checkout returns git's configuration at the time when the mount was started. It determines how contents are converted, and
// converted contents must not change while the mount exists.
func (m *Mount) checkout(ctx context.Context, h takeover.State) gitdir.Checkout {
	if h.Checkout != nil {
		return *h.Checkout
	}
	return gitdir.ReadCheckout(ctx, gitPath(m.home))
}

// undoTakeOver releases everything that a failed takeOver has opened, so that takeOver can be called again.
func (m *Mount) undoTakeOver() {
	if m.view != nil {
		m.filters.Close()
		m.view.Close()
	}
	_ = m.objects.close()
	if m.home != nil { // the inherited descriptor keeps it locked
		m.inherited.Put(takeover.PartLock, m.home.LockFile)
	}
	if m.release != nil {
		m.release()
	}
	m.view, m.filters, m.home, m.release, m.store, m.snap = nil, nil, nil, nil, nil, nil
}

// hungUp reports whether the kernel has closed the connection of a FUSE device, because the mount was unmounted or
// aborted.
func hungUp(device *os.File) bool {
	poll := []unix.PollFd{{Fd: int32(device.Fd())}}
	n, err := unix.Poll(poll, 0)
	return err == nil && n > 0 && poll[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
}

// removeUnfinished removes a mount whose request was not answered before the predecessor died. The caller repeats its request.
func (m *Mount) removeUnfinished() {
	mountpoint.DetachQuietly(m.Dir, m.host.Log)
	lock := m.inherited.Take(takeover.PartLock)
	m.inherited.Close()
	if lock != nil {
		t, err := m.host.Homes.TakeOver(m.ID, m.Dir, lock)
		switch {
		case err != nil:
			lock.Close()
		// The home of a mount without its own session is deleted.
		case m.Request.ReadOnly && (m.Request.Session == "" || m.Request.At != ""):
			m.home = t
			m.removeHome()
		default:
			t.Tidy()
		}
	}
	m.removeUnserved()
}

// abandon detaches a mount that cannot be taken over, and records the reason for status.
func (m *Mount) abandon(why error) {
	m.host.Log.Error("abandon mount", zap.String("dir", m.Dir), zap.Error(why))
	m.host.Failures.Add(FailureOf(m.handover.State(), why))
	mountpoint.DetachQuietly(m.Dir, m.host.Log)
	m.inherited.Close()
	if m.server != nil || m.tree != nil {
		m.finish()
		return
	}
	if m.home != nil {
		m.home.Release()
		m.home = nil
	}
	m.undoTakeOver()
	m.removeUnserved()
}

// removeUnserved removes a mount that holds no resources from the daemon's table, and closes m.gone.
func (m *Mount) removeUnserved() {
	m.mu.Lock()
	m.stopping, m.state = true, control.StateUnmounted
	m.mu.Unlock()
	m.handover.Drop()
	m.point.Remove()
	m.host.Registry.Remove(m)
	close(m.gone)
}
