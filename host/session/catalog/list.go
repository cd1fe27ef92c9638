package catalog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/remotes"
	"github.com/artifactfs/artifactfs/host/session/agent"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/writeback"
)

// info returns the description of a session of this host, which may be mounted. Parts that cannot be read are left out.
func (o *opened) info() control.SessionInfo {
	r := o.record
	i := control.SessionInfo{Remote: r.Remote, Dir: r.Dir, Base: r.Commit, Mounted: o.mount != nil,
		Parent: r.Fork.Parent}
	if o.mount != nil && o.mount.Writable {
		i.SessionStatus = o.mount.Status()
		i.Dir = o.mount.Dir
	} else {
		i.SessionStatus = o.unmountedStatus()
	}
	if o.Repo == nil {
		return i
	}
	if p, err := o.Repo.Find("@"); err == nil {
		last := o.Shown(p)
		i.Last = &last
	}
	meta, _, err := session.ReadMeta(o.Repo, o.Session)
	if err != nil {
		return i
	}
	i.Parent, i.ParentRemote = cmp.Or(meta.From, r.Fork.Parent), meta.FromRemote
	i.CopyOf, i.Profile = meta.CopyOf, meta.Profile
	for _, t := range meta.Transitions {
		i.History = append(i.History, control.Transition{State: string(t.State), Time: t.Time, Actor: t.Actor,
			Reason: t.Reason})
	}
	i.Stale = o.stale(meta, time.Now())
	// If the daemon of the last mount has died, only the next mount records this in the metadata.
	if o.mount == nil && meta.Interrupted(time.Now()) {
		i.History = append(i.History, control.Transition{State: string(session.Paused),
			Time: meta.Transitions[len(meta.Transitions)-1].Time, Reason: session.Interrupted})
	}
	return i
}

// staleAfter is the time for which a session must be unmounted and unchanged to be reported as stale.
const staleAfter = 7 * 24 * time.Hour

// stale reports whether the session is not mounted and has been unchanged for staleAfter at the time now.
func (o *opened) stale(meta session.Meta, now time.Time) bool {
	// The age is measured from the newest of three events: the start of the session, its last transition, and its last
	// checkpoint.
	last := o.record.Began
	if n := len(meta.Transitions); n > 0 && meta.Transitions[n-1].Time.After(last) {
		last = meta.Transitions[n-1].Time
	}
	if p, err := o.Repo.Find("@"); err == nil && p.Time.After(last) {
		last = p.Time
	}
	return o.mount == nil && now.Sub(last) > staleAfter
}

// carriedStatus returns the status of the session in the locked home t, whose record is r: its checkpoints and pending
// refs.
func carriedStatus(t *statedir.Home, r statedir.Record) control.SessionStatus {
	o := &opened{Session: r.Session, record: r, home: t.Dir}
	if !statedir.HasSessionRepo(t.Dir) { // the session has no checkpoint
		return control.SessionStatus{Name: r.Session}
	}
	repo, err := t.Homes.OpenSessionRepo(t.Dir, r, false)
	if err != nil {
		t.Homes.Log.Warn("read session", zap.String("home", t.Dir), zap.Error(err))
		return control.SessionStatus{Name: r.Session}
	}
	defer repo.Close()
	o.Repo = repo
	return o.unmountedStatus()
}

// unmountedStatus returns the status of a session of this host that is not mounted, or whose mount is read-only.
func (o *opened) unmountedStatus() control.SessionStatus {
	s := control.SessionStatus{Name: o.Session,
		SessionRemote: statedir.ShownRemote(o.record.Carried.Remote, o.home, o.record),
		Policy:        o.record.Carried.Policy}
	switch o.record.Carried.Remote {
	case "", control.RemoteEmbedded:
		s.Mode = string(writeback.ModeEmbedded)
	case control.RemoteNone:
		s.Mode = agent.ModeNone
	}
	s.State = string(session.Paused)
	if o.Repo == nil {
		return s
	}
	if far := o.record.SessionRemoteURL(); far != "" {
		if st, err := writeback.Look(o.Repo, far); err == nil {
			agent.ShowQueue(&s, st)
		}
	}
	if checkpoints, err := o.Repo.Checkpoints(0); err == nil {
		s.Checkpoints = int64(len(checkpoints))
		// The checkpoints are sorted, newest first.
		if len(checkpoints) > 0 {
			agent.ShowNewest(&s, checkpoints[0])
		}
	}
	if meta, _, err := session.ReadMeta(o.Repo, o.Session); err == nil {
		s.State = string(meta.Now(time.Now()))
	}
	return s
}

// ListUnmounted returns the descriptions of the sessions that are not mounted, except those whose names are in the map
// but. It skips each home that is still locked when statedir.ListTime has passed since the call.
func ListUnmounted(ctx context.Context, h statedir.Homes, but map[string]bool) ([]control.SessionInfo, error) {
	ids, _, err := h.IDs()
	if err != nil {
		return nil, err
	}
	var all []control.SessionInfo
	// One limit applies to all homes together, so that many locked homes do not delay the list.
	limited, cancel := context.WithTimeout(ctx, statedir.ListTime)
	defer cancel()
	for _, id := range ids {
		if but[id] {
			continue
		}
		t, err := h.WaitExisting(limited, id)
		// A home is skipped if another process uses it, or if it was removed after the ids were listed.
		if errors.Is(err, disk.ErrLocked) || errors.Is(err, statedir.ErrBusySession) ||
			errors.Is(err, statedir.ErrNoSession) {
			continue
		}
		if err != nil {
			return all, fmt.Errorf("list sessions: %w", err)
		}
		o, err := openHome(t, false)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) { // a home without a record belongs to a mount that has no session
				h.Log.Warn("read session", zap.String("home", filepath.Join(h.Dir(), id)), zap.Error(err))
			}
			t.Unlock()
			continue
		}
		all = append(all, o.info())
		o.Close()
	}
	return all, nil
}

// sendLater pushes a change of a session that is not mounted. If the session remote does not answer within pushTime,
// the next mount of the session pushes the change. For a mounted session sendLater does nothing, because the session's
// agent pushes the change.
func (o *opened) sendLater(ctx context.Context, all *Catalog) {
	remote := o.record.Carried.Remote
	if o.mount != nil || o.Repo == nil || remote == control.RemoteEmbedded || remote == "" {
		return
	}
	to, _, err := all.Remotes.Session(o.remoteRequest())
	if err != nil || to == nil {
		return
	}
	defer to.Close()
	to.Keep(ThinDir(o.Repo.Dir()))
	ctx, cancel := context.WithTimeoutCause(ctx, pushTime, fault.ErrSlow)
	defer cancel()
	queue, err := writeback.NewQueue(writeback.QueueOptions{Repo: o.Repo, Dir: o.home, Remote: to,
		Base: agent.BaseMode(o.record.Carried.Base), BaseURL: remotes.Readable(o.record.Remote), Log: all.Log})
	if err == nil {
		err = errors.Join(queue.Sync(ctx, nil), queue.Close())
	}
	if err != nil {
		all.Log.Info("push session; the next mount pushes it again", zap.String("session", o.Session), zap.Error(err))
	}
}

// pushTime is the timeout for the push of a session that is not mounted.
const pushTime = 5 * time.Second
