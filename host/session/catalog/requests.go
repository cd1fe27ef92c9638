package catalog

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/capture"
	"github.com/artifactfs/artifactfs/session/lifecycle"
	"github.com/artifactfs/artifactfs/session/transcript"
)

// LeftOut converts the list of files that a checkpoint does not contain into the form of a reply.
func LeftOut(all []capture.LeftOut) []control.LeftOut {
	left := []control.LeftOut{}
	for _, l := range all {
		left = append(left, control.LeftOut{Path: l.Path, Why: string(l.Why), Size: l.Size})
	}
	return left
}

// Sessions returns all sessions of the state directory, sorted by name.
func (all *Catalog) Sessions(ctx context.Context) (control.SessionsReply, error) {
	reply := control.SessionsReply{Sessions: []control.SessionInfo{}}
	there := map[string]bool{}
	for _, m := range all.Mounts.Writable() {
		there[m.Session] = true
		o, err := all.OpenMount(m)
		if err != nil {
			return reply, fault.ExplainSession("list", "sessions", err)
		}
		reply.Sessions = append(reply.Sessions, o.info())
	}
	unmounted, err := ListUnmounted(ctx, all.Homes, there)
	reply.Sessions = append(reply.Sessions, unmounted...)
	slices.SortFunc(reply.Sessions, func(a, b control.SessionInfo) int { return strings.Compare(a.Name, b.Name) })
	return reply, err
}

// SessionLog returns the checkpoints of a session, newest first.
func (all *Catalog) SessionLog(ctx context.Context, r control.SessionLogRequest) (control.SessionLogReply, error) {
	o, err := all.openAt(ctx, r.Of, r.SessionRemote, false)
	if err != nil {
		return control.SessionLogReply{}, fault.ExplainSessionAt("read session", r.Of, err)
	}
	defer o.Close()
	reply := control.SessionLogReply{Session: o.Session, Checkpoints: []control.Checkpoint{}}
	if o.Repo == nil {
		return reply, nil
	}
	checkpoints, err := o.Repo.Checkpoints(r.Limit)
	if err != nil {
		return reply, fault.ExplainSession("read session", r.Of, err)
	}
	// If gc has copied a checkpoint to another segment (a part of the chain of checkpoints), the list contains the
	// checkpoint twice.
	checkpoints = slices.CompactFunc(checkpoints, func(a, b session.Checkpoint) bool { return a.ID == b.ID })
	// A transcript record is stored with the checkpoint that was the newest one when the record was made. The transcript
	// of a session of another host is not fetched only to be counted.
	var recorded map[session.CheckpointID]int64
	if o.far == nil {
		if recorded, err = o.recordsBefore(ctx); err != nil { // without the transcript, the checkpoints are still listed
			all.Log.Warn("read transcript", zap.String("session", o.Session), zap.Error(err))
		}
	}
	for _, p := range checkpoints {
		shown := o.Shown(p)
		shown.Recorded = recorded[p.Prev]
		reply.Checkpoints = append(reply.Checkpoints, shown)
	}
	return reply, nil
}

// SessionSet changes the state or the profile of a session, or pins or unpins a checkpoint.
func (all *Catalog) SessionSet(ctx context.Context, r control.SessionSetRequest) (control.SessionInfo, error) {
	verb := changeVerb(r)
	if r.SessionRemote != "" {
		info, err := setOnRemote(ctx, all, r)
		if err != nil {
			err = fault.ExplainSessionAt(verb, r.Of, err)
		}
		return info, err
	}
	o, err := all.openSession(ctx, r.Of, true)
	if err != nil {
		return control.SessionInfo{}, fault.ExplainSession(verb, r.Of, err)
	}
	defer func() { o.Close() }()
	// A profile can be set before the first checkpoint: it creates the repository of the session.
	if r.Profile != nil && o.mount != nil && o.mount.Agent.Active() && o.Repo == nil {
		if _, err = o.mount.Agent.Open(ctx); err == nil {
			o, err = all.OpenMount(o.mount)
		}
		if err != nil {
			return control.SessionInfo{}, fault.ExplainSession(verb, r.Of, err)
		}
	}
	if err := o.change(ctx, r); err != nil {
		return control.SessionInfo{}, fault.ExplainSession(verb, r.Of, err)
	}
	o.sendLater(ctx, all)
	o.unlockClosed(ctx, all, r.State)
	if err := o.read(); err != nil {
		return control.SessionInfo{}, fault.ExplainSession("read session", r.Of, err)
	}
	return o.info(), nil
}

// changeVerb returns the verb that error messages about the change r use.
func changeVerb(r control.SessionSetRequest) string {
	switch session.LifeState(r.State) {
	case session.Paused:
		return "pause session"
	case session.Closed:
		return "close session"
	case session.Archived:
		return "archive session"
	case session.Open:
		return "reopen session"
	}
	switch {
	case r.Profile != nil:
		return "change session"
	case r.Unpin:
		return "unpin in session"
	}
	return "pin in session"
}

// change applies the request r to the session: it pins or unpins a checkpoint, or changes the state or the profile. The
// state of a mounted session cannot be changed.
func (o *opened) change(ctx context.Context, r control.SessionSetRequest) error {
	if o.Repo == nil {
		return fault.ErrNoCheckpoint
	}
	if r.Pin != "" {
		if r.Unpin {
			return session.RemovePin(ctx, o.Repo, o.Session, r.Pin)
		}
		p, err := o.Find(ctx, r.ID)
		if err != nil {
			return err
		}
		return session.SetPin(ctx, o.Repo, o.Session, r.Pin, p)
	}
	// The agent manages the state of a mounted session.
	if r.State != "" && o.mount != nil && o.mount.Writable {
		return fault.SessionMountedError{Dir: o.mount.Dir}
	}
	return lifecycle.Local(ctx, o.Repo, o.Session, lifeChange(r))
}

// SessionGC drops the checkpoints that the rules of retention do not keep, and expired transcript records. In a dry run
// it lists them and changes nothing.
func (all *Catalog) SessionGC(ctx context.Context, r control.SessionGCRequest,
	progress func(control.Progress)) (control.SessionGCReply, error) {
	reply := control.SessionGCReply{DryRun: r.DryRun, Dropped: []control.Checkpoint{}}
	all.Expire(ctx, time.Now())
	o, err := all.openSession(ctx, r.Of, !r.DryRun)
	if err != nil {
		return reply, fault.ExplainSession("collect", r.Of, err)
	}
	defer o.Close()
	reply.Session = o.Session
	if o.Repo == nil {
		return reply, nil
	}
	// The agent must not create a checkpoint while gc removes others.
	if o.mount != nil && o.mount.Writable {
		// Changes that are in no checkpoint yet are stored in one first, so that gc can keep them.
		if !r.DryRun {
			if err := o.mount.Agent.KeepAll(ctx, session.Idle); err != nil {
				return reply, fault.ExplainSession("collect", r.Of, err)
			}
		}
		if err := o.mount.Agent.Lock(ctx); err != nil {
			return reply, fault.ExplainSession("collect", r.Of, err)
		}
		defer o.mount.Agent.Unlock()
	}
	writer, err := all.Writer()
	if err != nil {
		return reply, fault.ExplainSession("collect", r.Of, err)
	}
	if err := lifecycle.OnHold(o.Repo, o.Session); err != nil {
		return reply, fault.ExplainSession("collect", r.Of, err)
	}
	done, err := o.rewrite(r.DryRun)
	if err != nil {
		return reply, fault.ExplainSession("collect", r.Of, err)
	}
	n, err := session.GC(ctx, o.Repo, session.GCOptions{
		Session: o.Session, Writer: writer, Keep: session.Retention{All: r.All, Daily: r.Daily}, Now: time.Now(),
		DryRun: r.DryRun,
	})
	if err != nil {
		return reply, fault.ExplainSession("collect", r.Of, err)
	}
	if reply.Records, err = o.expire(ctx, r, n.Dropped); err != nil {
		return reply, fault.ExplainSession("collect", r.Of, err)
	}
	// No ref reaches the contents of expired records any more, so remove these contents from the repository.
	if reply.Records > 0 && !r.DryRun {
		swept, err := o.Repo.Sweep(ctx)
		if err != nil {
			return reply, fault.ExplainSession("collect", r.Of, err)
		}
		n.Bytes += swept
	}
	if len(n.Dropped) == 0 && reply.Records == 0 {
		done()
	}
	reply.Kept, reply.Bytes = int64(n.Kept), n.Bytes
	for _, p := range n.Dropped {
		reply.Dropped = append(reply.Dropped, o.Shown(p))
	}
	// The status must show the new number of checkpoints, and the session remote must also drop the dropped checkpoints.
	if !r.DryRun {
		if o.mount != nil {
			o.mount.Agent.Recount()
		}
		o.sendLater(ctx, all)
	}
	return reply, nil
}

// expire drops transcript records that are older than the daily checkpoints that gc keeps, if their checkpoints do not
// exist any more. dropped lists the checkpoints that this gc drops. expire returns the number of dropped records.
func (o *opened) expire(ctx context.Context, r control.SessionGCRequest, dropped []session.Checkpoint) (int64, error) {
	there := map[session.CheckpointID]bool{}
	err := o.Repo.EachCheckpoint(func(p session.Checkpoint) bool {
		there[p.ID] = true
		return true
	})
	if err != nil {
		return 0, err
	}
	// A pin keeps its checkpoint even after gc has dropped the checkpoint from its lane (the chain of checkpoints of one
	// writer).
	for id := range o.pins {
		there[id] = true
	}
	for _, p := range dropped {
		delete(there, p.ID)
	}
	return transcript.Expire(ctx, o.Repo, transcript.ExpireRequest{
		Session: o.Session, Now: time.Now(), Keep: cmp.Or(r.Daily, session.DefaultDaily), DryRun: r.DryRun,
		There: func(id session.CheckpointID) bool { return there[id] },
	}, o.mount.Contents(ctx))
}

// Find returns the checkpoint of the session that name refers to; an empty name refers to the newest checkpoint.
func (o *opened) Find(ctx context.Context, name string) (session.Checkpoint, error) {
	if o.Repo == nil {
		return session.Checkpoint{}, fault.ErrNoCheckpoint
	}
	return Find(ctx, o.Repo, o.mount, name)
}
