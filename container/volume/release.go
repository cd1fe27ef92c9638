package volume

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/artifactfs/artifactfs/control"
)

// Daemon is the part of control.Client that releases volumes.
type Daemon interface {
	Mounts(ctx context.Context, r control.MountsRequest) (control.Status, error)
	Mount(ctx context.Context, r control.MountRequest, progress func(control.Progress)) (control.MountReply, error)
	Unmount(ctx context.Context, r control.UnmountRequest) (control.UnmountReply, error)
	Checkpoint(ctx context.Context, r control.CheckpointRequest,
		progress func(control.Progress)) (control.CheckpointReply, error)
	Sync(ctx context.Context, r control.SyncRequest, progress func(control.Progress)) (control.SyncReply, error)
	Sessions(ctx context.Context) (control.SessionsReply, error)
}

const (
	// pushedFor is the time for which a session that was pushed completely also stays on this host, so that a mount
	// that follows soon finds it here. After that time it is moved to the trash of this host.
	pushedFor = time.Hour
	// lastPush is the maximum time for the last push, of changes that were made between the first push and the unmount.
	lastPush = 20 * time.Second
)

// Release unmounts the volume at dir. If v.OnDelete is DeleteWaits, it first waits until the whole session is on its
// session remote, and returns an error if ctx ends before that; the volume then stays mounted. A session without a
// session remote is kept on this host if persistent is true, and otherwise moved to the trash, from which it can be
// restored for 7 days.
//
// If the mount has died, its session may not be pushed. Then Release mounts the session again, by the request in v,
// before it continues.
func Release(ctx context.Context, d Daemon, dir string, v Volume, persistent bool) error {
	m, ok, err := find(ctx, d, dir)
	if err != nil {
		return err
	}
	if !ok {
		if m, ok, err = revive(ctx, d, dir, v); err != nil || !ok {
			return err
		}
	}
	r := control.UnmountRequest{Dir: dir, Timeout: lastPush}
	s := m.Session
	switch {
	case s.Name == "" || m.ReadOnly:
	case v.OnDelete == DeleteDiscards:
		r.Discard, r.Trash = true, true
	case s.SessionRemote == "" || s.Mode == string(control.RemoteEmbedded) || s.Mode == string(control.RemoteNone):
		r.Discard, r.Trash = !persistent, !persistent
	default:
		if err := push(ctx, d, dir, s); err == nil {
			r.Keep = pushedFor
		} else if v.OnDelete == DeleteWaits {
			return err
		}
	}
	_, err = d.Unmount(ctx, r)
	// unmount although the mount is busy: the containers have ended, so only leftover processes of the platform can use
	// it
	if is(err, control.CodeBusy) {
		r.Detach = true
		_, err = d.Unmount(ctx, r)
	}
	if is(err, control.CodeNotMounted) {
		return nil
	}
	return err
}

// find returns the mount at dir.
func find(ctx context.Context, d Daemon, dir string) (control.MountStatus, bool, error) {
	status, err := d.Mounts(ctx, control.MountsRequest{})
	if err != nil {
		return control.MountStatus{}, false, err
	}
	for _, m := range status.Mounts {
		if m.Dir == dir && m.State != control.StateFailed {
			return m, true, nil
		}
	}
	return control.MountStatus{}, false, nil
}

// revive removes a dead mount at dir. If the session of the mount has changes that are not on its session remote, and v
// requires that they are pushed, revive mounts the session again and returns the mount. ok is false if there is no
// mount afterwards.
func revive(ctx context.Context, d Daemon, dir string, v Volume) (m control.MountStatus, ok bool, err error) {
	if _, err := d.Unmount(ctx, control.UnmountRequest{Dir: dir, Detach: true}); err != nil &&
		!is(err, control.CodeNotMounted) {
		return m, false, err
	}
	if v.OnDelete != DeleteWaits || v.Request.ReadOnly {
		return m, false, nil
	}
	sessions, err := d.Sessions(ctx)
	if err != nil {
		return m, false, err
	}
	for _, s := range sessions.Sessions {
		if s.Mounted || s.Dir != dir || s.Pending == 0 && !s.Dirty {
			continue
		}
		r := v.Request
		r.Dir, r.Session, r.Wait = dir, s.Name, control.WaitTree
		if _, err := d.Mount(ctx, r, nil); err != nil {
			return m, false, fmt.Errorf("mount interrupted session %s again to push it: %w", s.Name, err)
		}
		return find(ctx, d, dir)
	}
	return m, false, nil
}

// push creates a checkpoint, unless the session has none to create, and waits until the whole session is on its session
// remote.
func push(ctx context.Context, d Daemon, dir string, s control.SessionStatus) (err error) {
	if s.Policy == control.PolicyOff {
		_, err = d.Sync(ctx, control.SyncRequest{Dir: dir}, nil)
	} else {
		_, err = d.Checkpoint(ctx, control.CheckpointRequest{Dir: dir, Message: "volume is deleted", Sync: true}, nil)
	}
	if err == nil {
		return nil
	}
	e := control.AsError(err)
	return &control.Error{Code: control.ExitUnsynced, Kind: control.CodeUnsynced, Verb: "delete volume", Object: dir,
		Cause: "session " + s.Name + " is not on its session remote yet: " + e.Cause,
		Hint:  "the volume is deleted when the session remote accepts the push; onDelete: keep leaves the session on this host instead"}
}

// is reports whether err has this error code.
func is(err error, code control.ErrorCode) bool {
	var e *control.Error
	return errors.As(err, &e) && e.ErrorCode() == code
}
