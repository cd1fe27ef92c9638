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

// flushTime is for what processes wrote to a busy mount that ends.
const flushTime = 10 * time.Second

// stop unmounts. A busy mount is an error that changes nothing, unless force detaches it. One that is being
// prepared is told to give up, and whoever prepares it takes it down.
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

// takeDown unmounts a mount that is not, or no longer, being prepared by somebody else.
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

// unserve takes the mount from the kernel: first what is bound over its directories, then the mount itself.
func (m *mount) unserve(ctx context.Context, force bool) error {
	m.filters.Release() // they keep it busy
	if m.foreign() {
		return m.leaveForeign(force)
	}
	if busy := m.alone(ctx, force); busy != nil && !force {
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

// detach takes a mount from the directory tree that is in use.
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

// copiesFor is how long copies of a mount are waited for: a command in a namespace of its own may be about to end.
const copiesFor = 5 * time.Second

// alone waits until nobody has the mount mounted elsewhere, in a container most of all: for them it would go on, and never
// end here. With force it does not wait.
func (m *mount) alone(ctx context.Context, force bool) error {
	for until := time.Now().Add(copiesFor); ; {
		copies, err := mountinfo.Copies(m.dir)
		if err != nil || len(copies) == 0 { // without /proc nobody can be named
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

// flush has the kernel write what processes wrote to a mount that ends under them.
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

// finish takes down everything behind a mount that the kernel no longer has. Several may call it; all return
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
	m.daemon.remove(m) // first: whoever waits may mount there again at once
	close(m.gone)
}
