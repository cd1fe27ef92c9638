package daemon

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/mount"
	"github.com/artifactfs/artifactfs/host/mount/mountpoint"
	"github.com/artifactfs/artifactfs/internal/collector"
)

// Mount creates the mount that r requests. It returns when the root of the working tree can be read and everything that
// r.Wait names has been fetched. If it returns an error, or if ctx ends, the mount has been removed again. If a request
// with the same r.Nonce is running or has succeeded, Mount waits for that request and returns its reply. Mount may be
// called from any goroutine.
func (d *Daemon) Mount(ctx context.Context, r control.MountRequest,
	progress func(control.Progress)) (control.MountReply, error) {
	if r.Second != "" {
		return mountSecond(d, r)
	}
	_, reply, err := d.mount(ctx, r, mount.StartPoint{Head: r.NewGit.HeadOrNil()}, progress)
	return reply, err
}

// mount implements Mount, and returns also the new mount. The parameter b states from what the mount starts: the parent
// mount of a submodule, a checkpoint, or the record of an earlier mount.
func (d *Daemon) mount(ctx context.Context, r control.MountRequest, b mount.StartPoint,
	progress func(control.Progress)) (*mount.Mount, control.MountReply, error) {
	start := time.Now()
	ctx, abort := context.WithCancel(ctx)
	defer abort()
	// Background goroutines of other mounts are paused until the function started is called.
	started, relaxed := d.host.Turns.StartMount(), collector.Relax()
	ended := func() {
		started()
		relaxed()
	}
	defer ended()
	defer func() { b.Known.Close() }()
	m, err := d.awaitEarlier(ctx, r)
	if err == nil && m == nil {
		if err = d.complete(ctx, &r, &b); err == nil {
			m, err = d.reserve(r, b, abort)
		}
	}
	if err != nil {
		return nil, control.MountReply{}, fault.Explain("mount", r.Dir, err)
	}
	reply, err := serve(ctx, start, d, m, ended, progress)
	if err != nil {
		return nil, reply, err
	}
	return m, reply, nil
}

// serve starts the mount m and registers it. If the mount is served already, because a client has repeated its request,
// serve returns the reply of the earlier request. The other parameters are those of mount.Mount.Start.
func serve(ctx context.Context, start time.Time, d *Daemon, m *mount.Mount, served func(),
	progress func(control.Progress)) (control.MountReply, error) {
	reply, err := m.Start(ctx, start, served, progress)
	if err != nil {
		return reply, err
	}
	d.register(m)
	d.host.Log.Info("mounted", zap.String("dir", m.Dir), zap.String("remote", reply.Remote),
		zap.String("commit", reply.Commit),
		zap.Int64("total_ms", reply.Timings.Total))
	return reply, nil
}

// MountInside mounts a submodule, as r requests. The mount parent contains the submodule.
func (d *Daemon) MountInside(ctx context.Context, r control.MountRequest, parent *mount.Mount) (*mount.Mount, error) {
	m, _, err := d.mount(ctx, r, mount.StartPoint{Parent: parent}, func(control.Progress) {})
	return m, err
}

// reserve adds a new mount, in the state preparing, to the table of mounts, so that no other request can mount at the
// same directory. It returns mountpoint.ErrAlreadyMounted if another mount has the directory. The mount calls abort,
// which cancels its start, if it is unmounted before the start has finished.
func (d *Daemon) reserve(r control.MountRequest, b mount.StartPoint, abort context.CancelFunc) (*mount.Mount, error) {
	m := mount.New(d.host, r, b, abort)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errors.New("daemon is shutting down")
	}
	if !d.add(m) {
		return nil, mountpoint.ErrAlreadyMounted
	}
	return m, nil
}

// awaitEarlier waits until no mount that is ending uses the directory of r, and then returns nil. If the directory has
// a mount that was created by a request with the same nonce, the client has repeated its request, and awaitEarlier
// returns this mount. If the directory has another mount, or the mount has not ended after mount.LeaveWait, it returns
// mountpoint.ErrAlreadyMounted.
func (d *Daemon) awaitEarlier(ctx context.Context, r control.MountRequest) (*mount.Mount, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, mount.LeaveWait, mountpoint.ErrAlreadyMounted)
	defer cancel()
	for {
		d.mu.Lock()
		m, ok := d.mounts[filepath.Clean(r.Dir)]
		d.mu.Unlock()
		if !ok {
			return nil, nil
		}
		repeated, err := m.AwaitEnd(ctx, r.Nonce)
		if repeated {
			return m, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// Unmount unmounts the mount at r.Dir. If the mount is busy and r.Detach is not set, Unmount returns an error and
// changes nothing. If some changes could not be written to the state directory, the mount is unmounted nevertheless,
// and Unmount returns an error. The reply names the session that was kept and its pending refs. Unmount may be called
// from any goroutine.
func (d *Daemon) Unmount(ctx context.Context, r control.UnmountRequest) (control.UnmountReply, error) {
	m, ok := d.find(r.Dir)
	if !ok || m.Dir != filepath.Clean(r.Dir) {
		if m, ok = d.endedMounts.remove(filepath.Clean(r.Dir)); !ok { // endedMounts has mounts that ended in a takeover
			return unmountOther(ctx, d, r)
		}
	}
	reply, err := m.Unmount(ctx, r)
	if err == nil {
		err = removeDir(r)
	}
	return reply, err
}

// Switch changes the working tree, the index and HEAD of a mount to another commit.
func (d *Daemon) Switch(ctx context.Context, r control.SwitchRequest,
	progress func(control.Progress)) (control.SwitchReply, error) {
	m, err := d.servedMount("switch", r.Dir)
	if err != nil {
		return control.SwitchReply{}, err
	}
	return m.Moves().Switch(ctx, r, progress)
}

// Restore changes files of a mount back to their contents in a checkpoint. If r is a dry run, Restore only lists the
// changes.
func (d *Daemon) Restore(ctx context.Context, r control.RestoreRequest,
	_ func(control.Progress)) (control.RestoreReply, error) {
	m, err := d.servedMount("restore", r.Dir)
	if err != nil {
		return control.RestoreReply{}, err
	}
	return m.Moves().Restore(ctx, r)
}

// Merge merges a checkpoint of another session into the mount at r.Dir. The reply lists the changed paths and the
// conflicts, and names the checkpoint that undoes the merge.
func (d *Daemon) Merge(ctx context.Context, r control.MergeRequest,
	_ func(control.Progress)) (control.MergeReply, error) {
	m, err := d.servedMount("merge", r.Dir)
	if err != nil {
		return control.MergeReply{}, err
	}
	return m.Moves().Merge(ctx, r)
}

// Refresh fetches the current commit of the mounted branch from the remote. If the mount follows the branch, Refresh
// switches it to that commit. The reply contains the old and the new commit, and the reason if the mount was not
// switched.
func (d *Daemon) Refresh(ctx context.Context, r control.RefreshRequest,
	progress func(control.Progress)) (control.RefreshReply, error) {
	m, err := d.servedMount("refresh", r.Dir)
	if err != nil {
		return control.RefreshReply{}, err
	}
	return m.Following().Refresh(ctx, progress)
}

// Prefetch fetches the contents of the files whose paths match r.Paths, with a higher priority than the background
// prefetch.
func (d *Daemon) Prefetch(ctx context.Context, r control.PrefetchRequest,
	progress func(control.Progress)) (control.PrefetchReply, error) {
	m, err := d.servedMount("prefetch", r.Dir)
	if err != nil {
		return control.PrefetchReply{}, err
	}
	return m.Git().Prefetch(ctx, r, progress)
}

// servedMount returns the mount that contains the path dir. If no mount that is served contains it, servedMount returns
// an error for the action verb, such as "switch".
func (d *Daemon) servedMount(verb, dir string) (*mount.Mount, error) {
	m, ok := d.find(dir)
	if !ok || !m.Served() {
		return nil, fault.NotMounted(verb, dir)
	}
	return m, nil
}
