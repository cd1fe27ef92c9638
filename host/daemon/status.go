package daemon

import (
	"context"
	"errors"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/mount"
	"github.com/artifactfs/artifactfs/host/statedir"
)

// statusWait is the maximum time for which one status request waits for takeovers and for the counting of files in
// large trees.
const statusWait = 2 * time.Second

// Status returns the status of all mounts of the daemon, and of the mounts that have failed.
func (d *Daemon) Status(ctx context.Context) (control.Status, error) {
	return d.statusOfAll(ctx, false, time.Now())
}

// Mounts returns the same as Status, without the numbers of files, because counting takes half a second in a tree of
// 100,000 files. If r.Names is set, it returns only the parts by which clients find a mount.
func (d *Daemon) Mounts(ctx context.Context, r control.MountsRequest) (control.Status, error) {
	return d.statusOfAll(ctx, r.Names, time.Time{})
}

// statusOfAll returns the status of all mounts, or only the parts by which clients find a mount if names is set. The
// numbers of files come from counts that began at the time in the parameter then or later. If this time is zero, the
// numbers are left out.
func (d *Daemon) statusOfAll(ctx context.Context, names bool, then time.Time) (control.Status, error) {
	st := control.Status{Mounts: []control.MountStatus{}}
	if !names {
		usage := d.blobs.Usage()
		st.Cache = control.CacheStatus{Blobs: int64(usage.Blobs), Bytes: usage.Bytes, Quota: usage.Quota}
	}
	wait, cancel := context.WithTimeout(ctx, statusWait)
	defer cancel()
	there := map[string]bool{}
	for _, m := range d.list() {
		m.AwaitTakeover(wait) // a takeover takes only a moment
		if m.IsGone() {
			continue
		}
		there[m.Dir] = true
		s, _ := mount.Named(m)
		if !names {
			s = m.Status(wait, then)
		}
		st.Mounts = append(st.Mounts, s)
	}
	// A failure is shown until its directory is mounted again.
	for _, f := range d.host.Failures.List() {
		if !there[f.Dir] {
			st.Mounts = append(st.Mounts, f.Status())
		}
	}
	return st, nil
}

// Failed returns the status of the failed mounts that are recorded in a state directory. It works without a daemon.
func Failed(state string) (all []control.MountStatus) {
	for _, f := range (statedir.Failures{State: state}).List() {
		all = append(all, f.Status())
	}
	return all
}

// ForgetFailed removes the record of the failed mount at dir from a state directory. It keeps the mount's session.
func ForgetFailed(state, dir string) error {
	if f := (statedir.Failures{State: state}); f.Forget(dir, nil) {
		return nil
	}
	return errors.New("record of the failed mount does not exist or cannot be removed")
}
