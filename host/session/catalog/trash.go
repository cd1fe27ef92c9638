package catalog

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/session/resume"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/locks"
	"github.com/artifactfs/artifactfs/session/trash"
)

// A session is deleted on its session remote first (package trash), and then on this host: its home is renamed to
// SESSION.UNIXTIME in the directory trash of the state directory, and removed after trash.Keep. If the process dies
// between the two steps, the deletion has to be repeated.

// errRemoteNone means that a request about a session on a session remote, or about the trash there, names no session
// remote.
var errRemoteNone = errors.New("request names no session remote")

// Expire moves sessions that have expired (Record.Until) to the trash, and removes old sessions from the trash. If a
// session cannot be deleted on its session remote, the next call of Expire tries again.
func (all *Catalog) Expire(ctx context.Context, now time.Time) {
	all.Homes.EmptyTrash(now)
	ids, _, err := all.Homes.IDs()
	if err != nil {
		all.Log.Warn("look for sessions that expired", zap.Error(err))
		return
	}
	for _, id := range ids {
		r, err := statedir.ReadRecord(filepath.Join(all.Homes.Dir(), id))
		// Skip a session whose record is damaged; the command "artifactfs doctor" reports it.
		if err != nil || r.Until.IsZero() || now.Before(r.Until) || ctx.Err() != nil {
			continue
		}
		// A session does not expire while it is mounted.
		if m, err := all.Mounts.Mounted(ctx, r.Session); err != nil || m != nil {
			continue
		}
		if _, err := all.sessionDelete(ctx, control.SessionDeleteRequest{Of: r.Session}, now); err != nil {
			all.Log.Warn("put expired session into the trash", zap.String("session", r.Session), zap.Error(err))
			continue
		}
		all.Log.Info("put expired session into the trash", zap.String("session", r.Session))
	}
}

// SessionDelete moves a session to the trash on its session remote and on this host.
func (all *Catalog) SessionDelete(ctx context.Context,
	r control.SessionDeleteRequest) (control.SessionDeleteReply, error) {
	reply, err := all.sessionDelete(ctx, r, time.Now())
	if err != nil {
		return reply, fault.ExplainDelete("delete session", r.Of, err)
	}
	return reply, nil
}

// sessionDelete implements SessionDelete, without hints in its errors. now is the current time. It returns an error if
// the session is mounted for writing.
func (all *Catalog) sessionDelete(ctx context.Context, r control.SessionDeleteRequest,
	now time.Time) (reply control.SessionDeleteReply, err error) {
	// The files of a session that is mounted for writing could change during the deletion.
	if m, err := all.Mounts.Mounted(ctx, r.Of); err != nil {
		return reply, err
	} else if m != nil && m.Writable {
		return reply, fault.SessionMountedError{Dir: m.Dir}
	}
	all.Homes.EmptyTrash(now)
	name, err := all.Homes.IDOf(r.Of)
	if err != nil {
		return reply, err
	}
	reply.Session, reply.Until = name, now.Add(trash.Keep)
	// The home stays locked until the end of the deletion, so that no mount can resume the session before the deletion is
	// complete.
	t, err := all.Homes.WaitExisting(ctx, name)
	var rec statedir.Record
	switch {
	case err == nil:
		defer func() {
			if t != nil {
				t.Unlock()
			}
		}()
		if rec, err = statedir.ReadRecord(t.Dir); err == nil {
			err = onHold(t, rec)
		}
		if err != nil {
			return reply, err
		}
	// If this host has no home of the session, the request must name the session remote.
	case !errors.Is(err, statedir.ErrNoSession) || r.Remote == "":
		return reply, err
	default:
		t = nil
	}
	if r.Remote != "" && t != nil && statedir.WithoutSecrets(r.Remote) != statedir.ShownRemote(rec.Carried.Remote, t.Dir,
		rec) {
		t.Unlock() // the session on this host uses another session remote, so it is not the session to delete
		t, rec = nil, statedir.Record{}
	}
	req := control.MountRequest{Remote: rec.Remote, Session: name, SessionOptions: rec.Carried}
	req.SessionOptions.Remote = cmp.Or(r.Remote, rec.Carried.Remote)
	// The session is deleted on the session remote first. If that fails, the home still exists, so the deletion can be
	// repeated.
	if reply.Refs, reply.Kept, err = all.DeleteOnRemote(ctx, req, r.TakeOver, now); err != nil {
		return reply, err
	}
	if t == nil {
		if reply.Refs == 0 {
			return reply, statedir.ErrNoSession
		}
		return reply, nil
	}
	reply.Local = true
	at, err := t.ToTrash(name, now)
	reply.Until = at.Add(trash.Keep)
	t = nil
	return reply, err
}

// DeleteOnRemote moves the session of the mount request r to the trash of its session remote. It does nothing if that
// is the embedded one. It returns the number of removed refs, and the names of the refs that it kept. If another
// machine holds a claim on the session, it returns an error unless takeOver is set.
func (all *Catalog) DeleteOnRemote(ctx context.Context, r control.MountRequest, takeOver bool,
	now time.Time) (refs int64, kept []string, err error) {
	far, _, err := all.Remotes.Session(r)
	if err != nil || far == nil {
		return 0, nil, err
	}
	defer far.Close()
	there, head, err := trash.Refs(ctx, far.Remote)
	if err != nil {
		return 0, nil, fault.SessionRemote(far, err)
	}
	layout := session.Layout{Session: r.Session}
	var owner object.ID
	if id := there[session.MetaRef(r.Session)]; !id.IsZero() {
		meta, err := resume.ReadMeta(ctx, all.State, far, id)
		if err != nil {
			return 0, nil, fault.SessionRemote(far, err)
		}
		if err := meta.OnHold(r.Session); err != nil {
			return 0, nil, err
		}
		writer, err := all.Writer()
		if err != nil {
			return 0, nil, err
		}
		// If another machine is using the session, delete the session only if takeOver is set.
		for _, lane := range meta.Lanes {
			if held := meta.Held(lane.Name, writer, now); held != nil && !takeOver {
				return 0, nil, held
			}
		}
		if layout, err = session.LayoutOf(meta, there); err != nil {
			return 0, nil, err
		}
		// The owner blob identifies the refs that belong to this session.
		blob, err := session.OwnerBlob(id.Format(), r.Session)
		if err != nil {
			return 0, nil, err
		}
		owner = blob.ID
	}
	of := func(there map[string]object.ID) map[string]object.ID { return trash.Of(layout, owner, there) }
	mine, kept, err := trash.Delete(ctx, far.Remote, r.Session, there, head, of, now)
	if err != nil {
		return 0, kept, fault.SessionRemote(far, err)
	}
	if !there[locks.Ref].IsZero() {
		unlock(ctx, all, far.Remote, r.Session)
	}
	removed := len(mine) - len(kept)
	for name, id := range there { // a branch without the session's prefix may have existed before the session, and is kept
		if _, gone := mine[name]; !gone && there[session.CarriedRef(r.Session, name)] == id {
			kept = append(kept, name)
		}
	}
	slices.Sort(kept)
	if err := trash.Expire(ctx, far.Remote, there, now); err != nil {
		all.Log.Info("empty the trash", zap.String("remote", far.URL()), zap.Error(err))
	}
	return int64(removed), kept, nil
}

// DropBase removes the base ref of the session of the mount request r from its session remote, if it is at the commit
// base. It does nothing if there is no such ref, or if the session remote is the embedded one.
func (all *Catalog) DropBase(ctx context.Context, r control.MountRequest, base string) error {
	id, err := object.ParseID(base)
	if err != nil {
		return err
	}
	far, _, err := all.Remotes.Session(r)
	if err != nil || far == nil {
		return err
	}
	defer far.Close()
	name := session.BaseRef(r.Session)
	push, err := far.Remote.OpenPush(ctx, []string{name})
	if err != nil {
		return fault.SessionRemote(far, err)
	}
	defer push.Close()
	// The session remote refuses the update if the ref is missing or has another value.
	_, err = push.Send(ctx, transport.PushRequest{Updates: []transport.RefUpdate{{Name: name, Old: id}}})
	if err != nil {
		return fault.SessionRemote(far, err)
	}
	return nil
}

// SessionUndelete restores a deleted session from the trash on its session remote and on this host.
func (all *Catalog) SessionUndelete(ctx context.Context,
	r control.SessionUndeleteRequest) (control.SessionDeleteReply, error) {
	reply := control.SessionDeleteReply{Session: r.Session}
	err := all.sessionUndelete(ctx, r, &reply)
	if err != nil {
		return reply, fault.ExplainDelete("undelete session", r.Session, err)
	}
	return reply, nil
}

// sessionUndelete implements SessionUndelete, without hints in its errors. It restores the session on its session
// remote first.
func (all *Catalog) sessionUndelete(ctx context.Context, r control.SessionUndeleteRequest,
	reply *control.SessionDeleteReply) error {
	deleted, err := all.Homes.Trash()
	if err != nil {
		return err
	}
	var rec statedir.Record
	i := slices.IndexFunc(deleted, func(t statedir.Trashed) bool { return t.Is(r.Session, r.Deleted) })
	if i >= 0 {
		// The record in the trash names the session remote.
		if rec, err = statedir.ReadRecord(deleted[i].Dir); err != nil {
			return err
		}
		// A session with the same name may have been created after the deletion.
		if _, err := os.Lstat(filepath.Join(all.Homes.Dir(), r.Session)); err == nil {
			return trash.ErrThere
		}
	}
	req := control.MountRequest{Remote: rec.Remote, Session: r.Session, SessionOptions: rec.Carried}
	req.SessionOptions.Remote = cmp.Or(r.Remote, rec.Carried.Remote)
	far, _, err := all.Remotes.Session(req)
	if err != nil {
		return err
	}
	if far != nil {
		defer far.Close()
		there, _, err := trash.Refs(ctx, far.Remote)
		if err != nil {
			return fault.SessionRemote(far, err)
		}
		restored, kept, err := trash.Undelete(ctx, far.Remote, r.Session, there, deletion(r, deleted))
		reply.Refs, reply.Kept = int64(restored), kept
		// The session may be missing in the trash of the session remote, because another machine or an earlier, interrupted
		// call has already restored it there.
		if err != nil && (i < 0 || !errors.Is(err, trash.ErrNone)) {
			return fault.SessionRemote(far, err)
		}
	}
	if i < 0 {
		if far == nil {
			return trash.ErrNone
		}
		return nil
	}
	reply.Local = true
	return all.Homes.FromTrash(r.Session, r.Deleted)
}

// deletion returns when the session of the request r was deleted on its session remote. deleted is the trash of this
// host, the newest deletion first. There, the session is deleted at the same time as here or later, because the session
// remote may have been busy or unreachable, but before the next session of this name is deleted here.
func deletion(r control.SessionUndeleteRequest, deleted []statedir.Trashed) (d trash.Deletion) {
	if r.Deleted.IsZero() {
		return d
	}
	d.From = r.Deleted
	for _, t := range deleted {
		if t.Session == r.Session && t.At.Unix() > r.Deleted.Unix() {
			d.Before = t.At
		}
	}
	return d
}

// SessionTrash returns the deleted sessions of this state directory, or of a session remote.
func (all *Catalog) SessionTrash(ctx context.Context,
	r control.SessionTrashRequest) (control.SessionTrashReply, error) {
	reply := control.SessionTrashReply{Deleted: []control.DeletedSession{}}
	add := func(name, remote string, at time.Time) {
		// Sessions that were deleted longer ago are removed by the next command that empties the trash, so they are not
		// listed.
		if time.Since(at) <= trash.Keep {
			reply.Deleted = append(reply.Deleted, control.DeletedSession{Name: name, Remote: remote, At: at.UTC(),
				Until: at.Add(trash.Keep).UTC()})
		}
	}
	if r.Remote == "" {
		deleted, err := all.Homes.Trash()
		if err != nil {
			return reply, fault.ExplainDelete("list", "deleted sessions", err)
		}
		for _, t := range deleted {
			if rec, err := statedir.ReadRecord(t.Dir); err == nil {
				add(t.Session, statedir.ShownRemote(rec.Carried.Remote, t.Dir, rec), t.At)
			}
		}
		return reply, nil
	}
	far, _, err := all.Remotes.Session(control.MountRequest{SessionOptions: control.SessionOptions{Remote: r.Remote}})
	if err == nil && far == nil {
		err = errRemoteNone
	}
	if err != nil {
		return reply, fault.ExplainDelete("list", "deleted sessions", err)
	}
	defer far.Close()
	there, _, err := trash.Refs(ctx, far.Remote)
	if err != nil {
		return reply, fault.ExplainDelete("list", "deleted sessions", fault.SessionRemote(far, err))
	}
	for _, t := range trash.List(there) {
		add(t.Session, far.URL(), t.At)
	}
	return reply, nil
}
