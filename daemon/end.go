package daemon

import (
	"context"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
	"github.com/artifactfs/artifactfs/mount/mountpoint"
)

// flushTime is how long the kernel may take to write what processes wrote to a busy mount.
const flushTime = 10 * time.Second

// stop unmounts. A busy mount is an error that changes nothing, unless force detaches it. The start of a mount that is being prepared is
// aborted, and its goroutine takes the mount down.
func (m *mount) stop(ctx context.Context, force bool) error {
	m.mu.Lock()
	preparing := m.state == control.StatePreparing
	m.aborted = m.aborted || preparing
	m.mu.Unlock()
	if !preparing {
		return m.takeDown(ctx, force)
	}
	m.abort()
	select {
	case <-m.gone:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// takeDown unmounts. No other goroutine may be starting the mount.
func (m *mount) takeDown(ctx context.Context, force bool) error {
	if err := m.submodules.leave(ctx, force); err != nil {
		return err
	}
	m.pushBeforeUnmount(ctx)
	if m.server != nil {
		if err := m.unserve(ctx, force); err != nil {
			m.submodules.again(ctx)
			return err
		}
	}
	m.finish()
	return nil
}

// unserve unmounts the directories that are bound over places in the mount, and then the mount itself.
func (m *mount) unserve(ctx context.Context, force bool) error {
	m.filters.Release() // running filters keep it busy
	if m.foreign() {
		return m.leaveForeign(force)
	}
	if busy := m.awaitCopies(ctx, force); busy != nil && !force {
		return busy
	} else if busy != nil {
		return m.detach(busy)
	}
	err := m.inside.Unbind(false)
	if err == nil {
		err = m.redirects.Unbind(false)
	}
	if err == nil {
		err = m.server.Unmount(ctx)
	}
	if err == nil {
		return nil
	}
	if !force {
		m.redirects.Rebind(ctx, m.server)
		if bindErr := m.inside.Bind(); bindErr != nil {
			m.daemon.log.Warn("show the git directory again", zap.String("dir", m.dir), zap.Error(bindErr))
		}
		return mountpoint.NameUsers(m.dir, err)
	}
	return m.detach(err)
}

// detach removes a mount that is in use from the directory tree.
func (m *mount) detach(busy error) error {
	m.daemon.log.Warn("detaching busy mount", zap.String("dir", m.dir), zap.Error(busy))
	m.flush()
	if err := m.inside.Unbind(true); err != nil {
		m.daemon.log.Warn("detach git directory", zap.String("dir", m.dir), zap.Error(err))
	}
	if err := m.redirects.Unbind(true); err != nil {
		m.daemon.log.Warn("detach redirected directories", zap.String("dir", m.dir), zap.Error(err))
	}
	return m.server.Detach()
}

// copiesFor is how long copies of a mount are waited for: a command in a mount namespace of its own may be about to end.
const copiesFor = 5 * time.Second

// awaitCopies waits until the mount has no copies in other mount namespaces, such as those of containers: there it would remain
// mounted, and never end here. With force it does not wait.
func (m *mount) awaitCopies(ctx context.Context, force bool) error {
	for until := time.Now().Add(copiesFor); ; {
		copies, err := mountinfo.Copies(m.dir)
		if err != nil || len(copies) == 0 { // without /proc no process can be named
			return nil
		}
		if force || time.Now().After(until) {
			return mountpoint.BusyByCopies(copies)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return mountpoint.BusyByCopies(copies)
		}
	}
}

// flush makes the kernel write what processes wrote to a mount that they still use. An error is logged.
func (m *mount) flush() {
	done := make(chan error, 1)
	go func() {
		done <- fuse.WithoutDevice(func() error {
			fd, err := unix.Open(m.dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Syncfs(fd)
		})
	}()
	var err error
	select {
	case err = <-done:
	case <-time.After(flushTime):
		err = context.DeadlineExceeded
	}
	if err != nil {
		m.daemon.log.Warn("flush mount", zap.String("dir", m.dir), zap.Error(err))
	}
}

// finish ends everything behind a mount that the kernel no longer has. It may be called several times, also at once: all calls return
// when it is done.
func (m *mount) finish() {
	m.mu.Lock()
	if m.stopping {
		m.mu.Unlock()
		<-m.gone
		return
	}
	m.stopping, m.state = true, control.StateUnmounted
	cancel := m.cancel
	m.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	m.work.Wait()
	m.inherited.Close()
	m.endAgent()
	if err := m.git.close(); err != nil {
		m.daemon.log.Warn("stop answering git", zap.String("dir", m.dir), zap.Error(err))
	}
	o := m.leave()
	if m.view != nil {
		m.filters.Close()
		m.view.Close()
	}
	if err := m.takeBack(); err != nil {
		m.daemon.log.Warn("close objects of git directory and session", zap.String("dir", m.dir), zap.Error(err))
	}
	if m.release != nil {
		m.release()
	}
	m.mu.Lock()
	m.outcome = o
	m.mu.Unlock()
	m.point.Remove()
	m.daemon.log.Info("unmounted", zap.String("dir", m.dir), zap.String("session", m.session), zap.Int64("kept", o.kept.Paths))
	m.handover.Drop()
	m.daemon.remove(m) // before gone is closed: a waiting request mounts there at once
	close(m.gone)
}
