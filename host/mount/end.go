package mount

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/host/mount/home"
	"github.com/artifactfs/artifactfs/host/statedir"
)

// Stop unmounts the mount. If the mount is busy, Stop detaches it if force is true; otherwise it returns an error, and
// the mount is served as before. If the mount is still being prepared, Stop cancels the preparation, and waits until
// the goroutine that started the mount has removed it, or until ctx ends.
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
// If the mount is busy and force is false, takeDown returns an error, and the mount is served as before. takeDown must
// not be called while the mount is being started.
func (m *Mount) takeDown(ctx context.Context, force bool) error {
	if err := m.submodules.unmount(ctx, force); err != nil {
		return err
	}
	if !m.ending.removes() {
		m.sessionSide.pushLastCheckpoint(ctx, m.ending.reason(m.host.Registry.Ending()))
	}
	if err := m.attachment.Detach(ctx, force); err != nil {
		m.submodules.again(ctx)
		return err
	}
	m.finish()
	return nil
}

// finish stops the background work of a mount that the kernel has unmounted, ends its session, and releases all of its
// resources. It may be called several times and concurrently; every call returns after everything has been released.
func (m *Mount) finish() {
	if !m.phase.End() {
		return
	}
	m.activity.wait()
	m.attachment.Events.Close()
	m.contents.Profiles.End(context.Background())
	m.succession.Inherited.Close()
	m.sessionSide.end(!m.ending.removes(), m.ending.reason(m.host.Registry.Ending()))
	if err := m.Git().Close(); err != nil {
		m.host.Log.Warn("stop the servers for git commands", zap.String("dir", m.Dir), zap.Error(err))
	}
	o := m.closeHome()
	if err := m.contents.Close(); err != nil {
		m.host.Log.Warn("close objects of git directory and session", zap.String("dir", m.Dir), zap.Error(err))
	}
	m.ending.close(o)
	if o.Trashed == "" && len(m.home.Record.Checkout) > 0 {
		m.sessionSide.dropBase()
	}
	// If this process dies before the session is deleted on its session remote, the successor must know the mount, so that
	// it deletes the session when the client repeats its request.
	if m.ending.deletesOnRemote() && o.Err == nil {
		m.sessionSide.deleteThere()
	}
	m.attachment.Point.Remove()
	m.host.Log.Info("unmounted", zap.String("dir", m.Dir), zap.String("session", m.Session),
		zap.Int64("kept", o.Unsaved.Paths))
	m.succession.Drop()
	// The mount is removed before it is gone, because a mount request that waits for that needs the directory then.
	m.host.Registry.Remove(m)
	m.phase.Close()
}

// closeTime is the maximum time that closeHome takes to close an ending mount. None of its steps waits for the network.
const closeTime = 5 * time.Second

// closeHome closes the working tree of a mount that the kernel has unmounted, and then closes the home. It is also
// called for a mount whose start has failed; some fields of such a mount are nil.
func (m *Mount) closeHome() home.Outcome {
	if !m.home.Locked() {
		return home.Outcome{}
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	e := home.End{
		ReadOnly: m.Request.ReadOnly, Opened: m.attachment.Tree != nil, Served: m.phase.Served(),
		Discard: m.ending.discards(), Remove: m.ending.removes(), Until: m.ending.expiry(time.Now()),
	}
	var err error
	e.Left, e.Err = m.attachment.Close(ctx)
	// Objects and refs in the git directory are changes of the user even if no file was changed.
	if e.Left.Git, err = gitdir.HasWork(ctx, m.home.GitDir()); err != nil {
		e.Err = errors.Join(e.Err, err)
	}
	// If this mount has created the session and was never served, the checkpoints of the session are not kept.
	e.Left.Checkpoints = statedir.HasSessionRepo(m.home.Dir) && !m.sessionSide.agent.Empty() &&
		(e.Served || !m.home.Created)
	if e.Returns = (e.Left.OnlyCarried() || len(m.home.Record.Checkout) > 0 && !e.Left.Any()) && returns(m); e.Returns {
		e.Left.Settings = len(m.home.Record.Checkout) > 0
	}
	return m.home.Close(e)
}
