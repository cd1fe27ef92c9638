package mount

import (
	"context"

	"go.uber.org/zap"
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
//	detach       the bind mounts and then the mount itself are unmounted
//	finish       background work is stopped, and all resources are released
//
// If the mount is busy and force is false, takeDown returns an error, and the mount is served as before. takeDown must not be called
// while the mount is being started.
func (m *Mount) takeDown(ctx context.Context, force bool) error {
	if err := m.submodules.unmount(ctx, force); err != nil {
		return err
	}
	if !m.ending.removes() {
		m.sessionSide.pushLast(ctx, m.ending.reason(m.host.Registry.Ending()))
	}
	if err := m.attachment.Detach(ctx, force); err != nil {
		m.submodules.again(ctx)
		return err
	}
	m.finish()
	return nil
}

// finish stops the background work of a mount that the kernel has unmounted, ends its session, and releases all of its resources.
// It may be called several times and concurrently. Every call returns after everything has been released.
func (m *Mount) finish() {
	if !m.phase.End() {
		return
	}
	m.activity.wait()
	m.attachment.Events.Close()
	m.contents.Profiles.End(context.Background())
	m.succession.inherited.Close()
	m.sessionSide.end(!m.ending.removes(), m.ending.reason(m.host.Registry.Ending()))
	if err := m.Git().Close(); err != nil {
		m.host.Log.Warn("stop the servers for git commands", zap.String("dir", m.Dir), zap.Error(err))
	}
	o := m.closeHome()
	if err := m.contents.Close(); err != nil {
		m.host.Log.Warn("close objects of git directory and session", zap.String("dir", m.Dir), zap.Error(err))
	}
	m.ending.close(o)
	// If this process dies before the session is deleted on its session remote, the successor must know the mount, so that it deletes the
	// session when the client repeats its request.
	if m.ending.deletesThere() && o.Err == nil {
		m.sessionSide.deleteThere()
	}
	m.attachment.Point.Remove()
	m.host.Log.Info("unmounted", zap.String("dir", m.Dir), zap.String("session", m.Session), zap.Int64("kept", o.Unsaved.Paths))
	m.succession.Drop()
	// The mount is removed before it is gone, because a mount request that waits for that needs the directory then.
	m.host.Registry.Remove(m)
	m.phase.Close()
}
