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

	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/host/mount/gitside"
	"github.com/artifactfs/artifactfs/host/mount/home"
	"github.com/artifactfs/artifactfs/host/mount/mountpoint"
	"github.com/artifactfs/artifactfs/host/mount/takeover"
	"github.com/artifactfs/artifactfs/worktree"
	"github.com/artifactfs/artifactfs/worktree/overlay"
)

// If a process that serves mounts dies, its mounts stay attached, and the kernel blocks all accesses to them. The
// successor takes over each mount. It uses the descriptors and the state that the keeper (the interface to the
// supervisor) holds, and the files on disk. A takeover has these steps:
//
//	serve the kernel   open the home, the store, the working tree and the FUSE device; this needs no network and no other program
//	serve git          open the sockets on which git commands may be waiting already
//	continue           do what the dead process has not completed: fetch trees and history, prefetch contents
//
// If the mount request was not answered before the process died, the mount is removed, and the client repeats its
// request. A mount that cannot be taken over is also removed, and the reason is recorded for the status
// (Host.Failures).

const (
	takeTries = 5                     // maximum number of attempts in one process
	takePause = 50 * time.Millisecond // pause before the second attempt; it doubles after each attempt
	// maxDeaths is the number of processes in a row that may die during the takeover of a mount before the mount is
	// abandoned. The number is large because processes may die for other reasons, for example in tests that kill them.
	maxDeaths = 10
)

var (
	errTakeoverDeaths = errors.New("processes that take over the mount die repeatedly")
	errNoTakeover     = errors.New("process that served the mount has died, " +
		"and this kernel does not let another one take over (Linux 6.9 does)")
)

// Inherit returns a mount of the predecessor, whose descriptors are in the parameter in. The caller adds the mount to
// the registry and calls Succeed. If the state of the mount cannot be read, Inherit closes the descriptors and returns
// an error.
func Inherit(host *Host, in takeover.Inherited) (*Mount, error) {
	k, err := takeover.Resume(host.Keeper, in, host.Log)
	if err != nil {
		return nil, err
	}
	h := k.State()
	m := newMount(host, h.Request, home.Owner{ID: h.ID, Session: h.Record.Session, Dir: h.Dir, Since: h.Since},
		takeover.SuccessionOf(k, in), StartPoint{}, nil)
	m.home.Record, m.home.Resumed = h.Record, h.Resumed
	m.attachment.Point = mountpoint.Point{Dir: h.Dir, Created: h.Made}
	for _, note := range h.Notes {
		m.attachment.Redirects.Note("%s", note)
	}
	return m, nil
}

// DropTakeover releases the descriptors of an inherited mount that is not in the registry and will not be taken over.
func (m *Mount) DropTakeover() {
	m.succession.Release()
}

// Deaths returns the number of processes in a row that have died during the takeover of the mount.
func (m *Mount) Deaths() int { return m.succession.State().Died }

// JoinParent links the inherited mount of a submodule to its parent and to the outermost mount, which lists all nested
// submodules. mountAt returns the mount at a directory.
func (m *Mount) JoinParent(mountAt func(dir string) (*Mount, bool)) {
	dir := m.succession.State().ParentDir
	parent, ok := mountAt(dir)
	if dir == "" || !ok {
		return
	}
	m.Parent = parent
	outmost := parent
	for dir := outmost.succession.State().ParentDir; dir != ""; dir = outmost.succession.State().ParentDir {
		next, ok := mountAt(dir)
		if !ok {
			break
		}
		outmost = next
	}
	outmost.submodules.inside = append(outmost.submodules.inside, m)
}

// Succeed takes over the mount, or removes it if a takeover is not possible. ended is true if the mount was unmounted
// while no process served it; then the client may repeat an unmount request to get the result. If only another version
// of the program may be able to serve the mount, Succeed returns an error, and the mount stays attached.
func (m *Mount) Succeed() (ended bool, err error) {
	defer m.succession.End()
	h := m.succession.State()
	log := m.host.Log.With(zap.String("dir", m.Dir))
	switch {
	case h.Phase != takeover.Served:
		log.Info("removing a mount that was not finished")
		m.removeUnfinished()
		return false, nil
	// The device is missing on kernels before Linux 6.9, which do not repeat the requests that the dead process had read.
	case !m.succession.Inherited.Has(takeover.PartDevice):
		m.abandon(errNoTakeover)
		return false, nil
	case h.Died >= maxDeaths:
		m.abandon(fmt.Errorf("%w: %d have died", errTakeoverDeaths, h.Died))
		return false, nil
	}
	start := time.Now()
	// The attempt is counted before it starts, so that it is counted even if this process dies during it.
	m.succession.Update(func(h *takeover.State) { h.Died++ })
	for try, pause := 1, takePause; ; try, pause = try+1, 2*pause {
		// After an attempt has opened the tree, its steps cannot be reversed, so it is not repeated.
		if err = m.takeOver(); err == nil || m.attachment.Tree != nil || try == takeTries || isUnfit(err) {
			break
		}
		log.Warn("take over mount", zap.Error(err))
		m.undoTakeOver()
		time.Sleep(pause)
	}
	switch {
	case isUnfit(err):
		log.Error("take over mount", zap.Error(err))
		return false, fmt.Errorf("take over %s: %w", m.Dir, err)
	case err != nil:
		m.abandon(err)
	case m.attachment.Server == nil:
		log.Info("unmounted while no process served it")
		m.finish()
		if !m.home.Locked() && m.Session != "" && !m.ending.removes() {
			m.ending.close(outcomeInTrash(m.host.Homes, m.Session, m.home.Since()))
		}
		return true, nil
	default:
		// The takeover has succeeded, so earlier deaths no longer count.
		m.succession.Update(func(h *takeover.State) { h.Died = 0 })
		log.Info("took over", zap.String("session", m.Session), zap.Duration("took", time.Since(start)))
		if err := m.attachment.Inside.Bind(); err != nil {
			log.Warn("bind-mount the git directory again", zap.Error(err))
		}
	}
	return false, nil
}

// isUnfit reports whether err means that only another version of the program may be able to take over the mount,
// because the kernel or the overlay uses a feature that this version does not know. This happens after a downgrade. The
// process then ends, and the supervisor starts the previous executable.
func isUnfit(err error) bool {
	return errors.Is(err, fuse.ErrUnfit) || errors.Is(err, overlay.ErrVersion)
}

// beginHandover stores the state of the mount with the supervisor, so that a successor of this worker can take over the
// mount. If that fails, the mount is served, but cannot be taken over.
func (m *Mount) beginHandover() {
	h := takeover.State{
		Phase: takeover.Preparing, ID: m.ID, Dir: m.Dir, Since: m.home.Since(), Request: m.Request.MountRequest,
		ParentDir: m.parentDir(),
	}
	m.succession.Handover = takeover.Begin(m.host.Keeper, h, m.host.Log)
}

// Touch acquires and releases the lock of the mount's phase and that of its working tree. If a goroutine never releases
// one of these locks, Touch blocks, and the liveness check that calls Touch reports this.
func (m *Mount) Touch() {
	if m.phase.Served() { // the tree is set once the mount is served, and does not change any more
		m.attachment.Tree.KnownAttr(worktree.Root)
	}
}

// takeOver opens everything that is needed to serve the mount in this process, and serves it. If the kernel has
// unmounted it in the meantime, takeOver returns nil, and the mount is not served.
func (m *Mount) takeOver() (err error) {
	h := m.succession.State()
	ctx := context.Background()
	device := m.succession.Inherited.File(takeover.PartDevice)
	// The kernel may have unmounted the file system while no process served it.
	gone := isHungUp(device)
	if err = m.contents.OpenStore(m.host.Remotes, m.Request.main); err != nil {
		return err
	}
	if err = m.home.TakeOver(ctx, m.succession.Inherited, &m.succession.Handover); err != nil {
		if gone && errors.Is(err, fs.ErrNotExist) { // the predecessor was killed after it had removed the home
			m.ending.takeOver(h)
			return nil
		}
		return err
	}
	if err = m.attachment.GuardGitDir(); err != nil {
		return err
	}
	if err = m.sessionSide.configure(); err != nil {
		return err
	}
	if err = m.beginning.openObjects(); err != nil {
		return err
	}
	base, err := m.home.Record.Base()
	if err != nil {
		return err
	}
	snap, err := m.contents.Store.Reopen(ctx, base)
	if err != nil {
		return err
	}
	m.contents.SetSnapshot(snap)
	if err = m.contents.OpenView(checkout(ctx, h, m.home.Dir), m.filtering()); err != nil {
		return err
	}
	if err = m.open(); err != nil {
		return err
	}
	m.attachment.TakeOverRedirects()
	// The predecessor was processing an unmount request, whose options this process must apply.
	if gone {
		m.ending.takeOver(h)
		return nil
	}
	device = m.succession.Inherited.Take(takeover.PartDevice)
	if err = m.attachment.TakeOver(device, h.Hello, m.services()); err != nil {
		return err
	}
	if h.Discard { // the predecessor was about to unmount the mount and to discard its session
		m.succession.Update(func(h *takeover.State) { h.Discard, h.Trash = false, false })
	}
	m.startBackground(h.Reply, h)
	return nil
}

// checkout returns git's configuration at the time when the mount was started. The configuration determines how
// contents are converted, and contents must not change while the mount exists. home is the path of the home.
func checkout(ctx context.Context, h takeover.State, home string) gitdir.Checkout {
	if h.Checkout != nil {
		return *h.Checkout
	}
	return gitside.ReadCheckout(ctx, home, h.Request.Environment.ForPrograms(), h.Record.Checkout)
}

// undoTakeOver releases everything that a failed call of takeOver has opened, so that takeOver can be called again.
func (m *Mount) undoTakeOver() {
	m.contents.Reset()
	m.home.GiveBack(m.succession.Inherited)
}

// isHungUp reports whether the kernel has closed the connection of a FUSE device, because the file system was unmounted
// or aborted.
func isHungUp(device *os.File) bool {
	poll := []unix.PollFd{{Fd: int32(device.Fd())}}
	n, err := unix.Poll(poll, 0)
	return err == nil && n > 0 && poll[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
}

// removeUnfinished removes a mount whose request was not answered before the predecessor died. The client repeats the
// request, which creates the mount again.
func (m *Mount) removeUnfinished() {
	mountpoint.DetachQuietly(m.Dir, m.host.Log)
	lock := m.succession.Inherited.Take(takeover.PartLock)
	m.succession.Inherited.Close()
	if lock != nil {
		// If the mount has no session, its home is removed.
		m.home.Abandon(lock, m.Request.ReadOnly && (m.Request.Session == "" || m.Request.At != ""))
	}
	m.removeUnserved()
}

// abandon detaches a mount that cannot be taken over. It records why as the reason, which the status shows.
func (m *Mount) abandon(why error) {
	m.host.Log.Error("abandon mount", zap.String("dir", m.Dir), zap.Error(why))
	m.host.Failures.Add(FailureOf(m.succession.State(), why))
	mountpoint.DetachQuietly(m.Dir, m.host.Log)
	m.succession.Inherited.Close()
	if m.attachment.Server != nil || m.attachment.Tree != nil {
		m.finish()
		return
	}
	m.home.Drop()
	m.undoTakeOver()
	m.removeUnserved()
}

// removeUnserved removes a mount that this process has not served from the registry, and ends its phase.
func (m *Mount) removeUnserved() {
	m.phase.End()
	m.succession.Drop()
	m.attachment.Point.Remove()
	m.host.Registry.Remove(m)
	m.phase.Close()
}
