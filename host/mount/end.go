package mount

import (
	"context"
	"errors"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fuse"
	"github.com/artifactfs/artifactfs/host/mount/mountpoint"
)

// Stop unmounts the mount. If the mount is busy, Stop detaches it if force is true; otherwise it returns an error, and the mount
// is served as before. If the mount is still being prepared, Stop cancels the preparation, and waits until the goroutine that
// started the mount has removed it, or until ctx ends.
func (m *Mount) Stop(ctx context.Context, force bool) error {
	if !m.phase.Abort() {
		return m.takeDown(ctx, force)
	}
	select {
	case <-m.phase.Gone():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// takeDown ends a mount in these steps:
//
//	submodules   are unmounted first, because they keep the mount busy
//	push         the last checkpoint is created and pushed, while the kernel still has the mount
//	unserve      the bind mounts and then the mount itself are unmounted
//	finish       background work is stopped, and all resources are released
//
// If the mount is busy and force is false, takeDown returns an error, and the mount is served as before. takeDown must not be called
// while the mount is being started.
func (m *Mount) takeDown(ctx context.Context, force bool) error {
	if err := m.submodules.unmount(ctx, force); err != nil {
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

// unserve unmounts the bind mounts inside the mount, and then the mount itself. If the unmount fails and force is false, it
// restores the bind mounts and returns an error that names the processes that use the mount. If force is true, it detaches
// everything instead.
func (m *Mount) unserve(ctx context.Context, force bool) error {
	defer m.events.Pause()()
	// Idle filter programs would keep the mount busy, because their working directory is in it.
	m.contents.Filters.Release()
	if m.foreign() {
		return m.prepareForeignEnd(force)
	}
	if busy := mountpoint.AwaitCopies(ctx, m.Dir, force); busy != nil && !force {
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
	if errors.Is(err, fuse.ErrElsewhere) {
		// The directory is free, as after Detach. Another program has unmounted it, or a namespace was copied during the unmount.
		m.host.Log.Warn("end mount that is in use elsewhere", zap.String("dir", m.Dir), zap.Error(err))
		return nil
	}
	if err == nil {
		return nil
	}
	if !force {
		m.redirects.Rebind(ctx, m.server)
		if bindErr := m.inside.Bind(); bindErr != nil {
			m.host.Log.Warn("show the git directory again", zap.String("dir", m.Dir), zap.Error(bindErr))
		}
		return mountpoint.NameUsers(m.Dir, err)
	}
	return m.detach(err)
}

// detach removes a busy mount from the directory tree (with MNT_DETACH), after it has made the kernel write its cached changes.
// busy is the error of the attempt to unmount, which is logged.
func (m *Mount) detach(busy error) error {
	m.host.Log.Warn("detaching busy mount", zap.String("dir", m.Dir), zap.Error(busy))
	mountpoint.Flush(m.Dir, m.host.Log)
	if err := m.inside.Unbind(true); err != nil {
		m.host.Log.Warn("detach git directory", zap.String("dir", m.Dir), zap.Error(err))
	}
	if err := m.redirects.Unbind(true); err != nil {
		m.host.Log.Warn("detach redirected directories", zap.String("dir", m.Dir), zap.Error(err))
	}
	return m.server.Detach()
}

// finish stops the background work of a mount that the kernel has unmounted, ends its session, and releases all of its resources.
// It may be called several times and concurrently. Every call returns after everything has been released.
func (m *Mount) finish() {
	if !m.phase.End() {
		return
	}
	m.work.Wait()
	m.events.Close()
	m.contents.Profiles.End(context.Background())
	m.succession.inherited.Close()
	m.endAgent()
	if err := m.side.Close(); err != nil {
		m.host.Log.Warn("stop the servers for git commands", zap.String("dir", m.Dir), zap.Error(err))
	}
	o := m.closeHome()
	if err := m.contents.Close(); err != nil {
		m.host.Log.Warn("close objects of git directory and session", zap.String("dir", m.Dir), zap.Error(err))
	}
	m.mu.Lock()
	m.outcome = o
	m.mu.Unlock()
	// If this process dies before the session is deleted on its session remote, the successor must know the mount, so that it deletes the
	// session when the client repeats its request.
	if m.options.deletesThere() && o.Err == nil {
		m.deleteThere()
	}
	m.point.Remove()
	m.host.Log.Info("unmounted", zap.String("dir", m.Dir), zap.String("session", m.Session), zap.Int64("kept", o.Unsaved.Paths))
	m.succession.Drop()
	// The mount is removed before it is gone, because a mount request that waits for that needs the directory then.
	m.host.Registry.Remove(m)
	m.phase.Close()
}
