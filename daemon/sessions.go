package daemon

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/internal/fault"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/agent"
	"github.com/artifactfs/artifactfs/session/capture"
	"github.com/artifactfs/artifactfs/session/transcript"
)

var _ control.Sessions = (*Daemon)(nil)

// carried returns the mount at dir, if it has a session that makes checkpoints. verb is for the error.
func (d *Daemon) carried(verb, dir string) (*mount, error) {
	m, ok := d.find(dir)
	if !ok || !m.served() {
		return nil, fault.NotMounted(verb, dir)
	}
	if !m.agent.Active() {
		return nil, fault.ExplainSession(verb, m.dir, fault.ErrNoSessionRemote)
	}
	return m, nil
}

// Checkpoint makes a checkpoint of a working tree, pins it and pushes it if the request says so.
func (d *Daemon) Checkpoint(ctx context.Context, r control.CheckpointRequest,
	progress func(control.Progress)) (control.CheckpointReply, error) {
	var reply control.CheckpointReply
	m, err := d.carried("checkpoint", r.Dir)
	if err != nil {
		return reply, err
	}
	// The name is checked before the checkpoint is made.
	if r.Pin != "" {
		if err := session.ValidPin(r.Pin); err != nil {
			return reply, &control.Error{Code: control.ExitUsage, Verb: "pin", Object: r.Pin, Cause: err.Error()}
		}
	}
	p, report, err := m.agent.Capture(ctx, session.Manual, r.Message)
	if err != nil {
		return reply, fault.ExplainSession("checkpoint", m.dir, err)
	}
	o, err := m.openedSession()
	if err != nil {
		return reply, fault.ExplainSession("checkpoint", m.dir, err)
	}
	// The pin is set before the push, so that it is pushed with the checkpoint.
	if r.Pin != "" {
		if err := session.SetPin(ctx, o.repo, o.session, r.Pin, p); err != nil {
			return reply, fault.ExplainSession("pin", r.Pin, err)
		}
	}
	// Refs that git has moved are copied to the repository first, so that they are pushed too.
	if r.Sync {
		ctx, cancel := context.WithTimeoutCause(ctx, agent.SyncTime, fault.ErrSlow)
		defer cancel()
		if err := m.agent.Flush(ctx); err != nil { // git's object directory may be the only one that has the latest commit
			return reply, fault.Unsynced("sync", m.dir, err)
		}
		if err := m.agent.Push(ctx, progressOf(progress)); err != nil {
			return reply, fault.Unsynced("sync", m.dir, err)
		}
	}
	if o, err = m.openedSession(); err != nil {
		return reply, fault.ExplainSession("checkpoint", m.dir, err)
	}
	return control.CheckpointReply{
		Checkpoint: o.shown(p), Made: report.Made, LeftOut: leftOut(report.Left),
		Paused: milliseconds(report.Paused), Took: milliseconds(report.Took), Steps: shownSteps(report.Steps),
	}, nil
}

// shownSteps converts the timings of a capture for a reply.
func shownSteps(all []capture.Step) []control.Step {
	steps := []control.Step{}
	for _, s := range all {
		steps = append(steps, control.Step{Name: s.Name, Took: milliseconds(s.Took)})
	}
	return steps
}

// milliseconds returns d in milliseconds, with microseconds as fractions.
func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// leftOut converts the paths that a checkpoint excludes for a reply.
func leftOut(all []capture.LeftOut) []control.LeftOut {
	left := []control.LeftOut{}
	for _, l := range all {
		left = append(left, control.LeftOut{Path: l.Path, Why: string(l.Why), Size: l.Size})
	}
	return left
}

// syncTries is the number of pushes for checkpoints that were made during an earlier push of the same request.
const syncTries = 5

// Sync makes a checkpoint and waits until the mount's work is pushed. Changes during the wait may be pending when it
// returns.
func (d *Daemon) Sync(ctx context.Context, r control.SyncRequest, progress func(control.Progress)) (control.SyncReply, error) {
	var reply control.SyncReply
	m, err := d.carried("sync", r.Dir)
	if err != nil {
		return reply, err
	}
	if r.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, r.Timeout, fault.ErrSlow)
		defer cancel()
	}
	// Branches and tags are part of the work, so the git directory must be complete.
	if !m.triedGit(ctx) {
		return reply, fault.Unsynced("sync", m.dir, agent.ErrEnded)
	}
	if err := m.agent.KeepAll(ctx, session.Manual); err != nil {
		return reply, fault.ExplainSession("sync", m.dir, err)
	}
	// Refs may move while they are pushed, which a few repetitions catch up with.
	for range syncTries {
		if err := m.agent.Push(ctx, progressOf(progress)); err != nil {
			return reply, fault.Unsynced("sync", m.dir, err)
		}
		if reply = (control.SyncReply{Dir: m.dir, Session: m.sessionStatus()}); reply.Session.Pending == 0 {
			break // otherwise something newer is pending, such as a checkpoint of merged notes
		}
	}
	return reply, nil
}

// Sessions returns all sessions of the state directory, sorted by name.
func (d *Daemon) Sessions(ctx context.Context) (control.SessionsReply, error) {
	reply := control.SessionsReply{Sessions: []control.SessionInfo{}}
	there := map[string]bool{}
	for _, m := range d.list() {
		if !m.served() || m.isGone() || !m.writable() {
			continue
		}
		there[m.session] = true
		o, err := m.openedSession()
		if err != nil {
			return reply, fault.ExplainSession("list", "sessions", err)
		}
		reply.Sessions = append(reply.Sessions, o.info())
	}
	unmounted, err := sessionsOf(ctx, d.homes, there)
	reply.Sessions = append(reply.Sessions, unmounted...)
	slices.SortFunc(reply.Sessions, func(a, b control.SessionInfo) int { return strings.Compare(a.Name, b.Name) })
	return reply, err
}

// SessionLog returns the checkpoints of a session, newest first.
func (d *Daemon) SessionLog(ctx context.Context, r control.SessionLogRequest) (control.SessionLogReply, error) {
	o, err := d.openAt(ctx, r.Of, r.SessionRemote, false)
	if err != nil {
		return control.SessionLogReply{}, fault.ExplainSessionAt("read session", r.Of, err)
	}
	defer o.close()
	reply := control.SessionLogReply{Session: o.session, Checkpoints: []control.Checkpoint{}}
	if o.repo == nil {
		return reply, nil
	}
	checkpoints, err := o.repo.Checkpoints(r.Limit)
	if err != nil {
		return reply, fault.ExplainSession("read session", r.Of, err)
	}
	// A checkpoint is in two segments if gc copied it.
	checkpoints = slices.CompactFunc(checkpoints, func(a, b session.Checkpoint) bool { return a.ID == b.ID })
	// A record is stored with the checkpoint that precedes it.
	recorded, err := o.recordsBefore(ctx)
	if err != nil { // without the transcript, the checkpoints are still listed
		d.log.Warn("read transcript", zap.String("session", o.session), zap.Error(err))
	}
	for _, p := range checkpoints {
		shown := o.shown(p)
		shown.Recorded = recorded[p.Prev]
		reply.Checkpoints = append(reply.Checkpoints, shown)
	}
	return reply, nil
}

// SessionSet changes the state of a session, or pins or unpins a checkpoint.
func (d *Daemon) SessionSet(ctx context.Context, r control.SessionSetRequest) (control.SessionInfo, error) {
	verb := changeVerb(r)
	o, err := d.openSession(ctx, r.Of, true)
	if err != nil {
		return control.SessionInfo{}, fault.ExplainSession(verb, r.Of, err)
	}
	defer o.close()
	if err := o.change(ctx, r); err != nil {
		return control.SessionInfo{}, fault.ExplainSession(verb, r.Of, err)
	}
	o.sendLater(ctx, d)
	if err := o.read(); err != nil {
		return control.SessionInfo{}, fault.ExplainSession("read session", r.Of, err)
	}
	return o.info(), nil
}

// changeVerb returns the verb for errors of a change.
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
	if r.Unpin {
		return "unpin in session"
	}
	return "pin in session"
}

// change applies a request to the session. The state of a mounted session cannot be changed.
func (o *opened) change(ctx context.Context, r control.SessionSetRequest) error {
	if o.repo == nil {
		return fault.ErrNoCheckpoint
	}
	if r.Pin != "" {
		if r.Unpin {
			return session.RemovePin(ctx, o.repo, o.session, r.Pin)
		}
		p, err := o.find(ctx, r.ID)
		if err != nil {
			return err
		}
		return session.SetPin(ctx, o.repo, o.session, r.Pin, p)
	}
	if r.State == "" {
		return nil
	}
	// The agent manages the state of a mounted session.
	if o.mount != nil && o.mount.writable() {
		return fault.SessionMountedError{Dir: o.mount.dir}
	}
	actor := r.Actor
	if actor == "" {
		actor = session.Actor()
	}
	_, err := session.Transit(ctx, o.repo, o.session, session.Transition{
		State: session.LifeState(r.State), Time: time.Now().UTC(), Actor: actor, Reason: r.Reason,
	})
	return err
}

// noteOn reports whether the argument COMMIT of session note names a checkpoint and not a revision of git: "@", "@~N", a
// whole checkpoint ID or a turn. Git has names that begin with "@{".
func noteOn(name string) bool {
	_, err := session.ParseCheckpointID(name)
	return err == nil || strings.HasPrefix(name, "@") && !strings.HasPrefix(name, "@{") || strings.HasPrefix(name, "turn:")
}

// SessionNote writes a git note on a commit or a checkpoint.
func (d *Daemon) SessionNote(ctx context.Context, r control.SessionNoteRequest) (control.SessionNoteReply, error) {
	m, ok := d.find(r.Dir)
	if !ok || !m.served() || !m.writable() {
		return control.SessionNoteReply{}, fault.NotMounted("write note", r.Dir)
	}
	if !m.triedGit(ctx) {
		return control.SessionNoteReply{}, fault.Explain("write note", r.Dir, agent.ErrEnded)
	}
	note := transcript.NoteRequest{GitDir: m.gitPath(), Commit: r.Commit, Ref: r.Ref, JSON: r.JSON}
	// The repository of the session has the commits of checkpoints, and the mount's git directory does not.
	if noteOn(r.Commit) {
		repo, err := m.agent.Open(ctx)
		if err != nil {
			return control.SessionNoteReply{}, fault.ExplainSession("write note", m.dir, err)
		}
		p, err := findCheckpoint(ctx, repo, m, r.Commit)
		if err != nil {
			return control.SessionNoteReply{}, fault.ExplainSession("write note", "checkpoint "+r.Commit, err)
		}
		note.Commit, note.Also = p.Commit.String(), m.sessionObjects()
	}
	n, err := transcript.Note(ctx, note)
	if err != nil {
		return control.SessionNoteReply{}, fault.ExplainSession("write note", r.Commit, err)
	}
	return control.SessionNoteReply{Commit: n.Commit, Ref: n.Ref, Note: n.Note, Redacted: n.Redacted}, nil
}

// SessionGC drops checkpoints that no rule keeps, and expired transcript records. In a dry run it only lists them.
func (d *Daemon) SessionGC(ctx context.Context, r control.SessionGCRequest,
	progress func(control.Progress)) (control.SessionGCReply, error) {
	reply := control.SessionGCReply{DryRun: r.DryRun, Dropped: []control.Checkpoint{}}
	d.expire(ctx, time.Now())
	o, err := d.openSession(ctx, r.Of, !r.DryRun)
	if err != nil {
		return reply, fault.ExplainSession("collect", r.Of, err)
	}
	defer o.close()
	reply.Session = o.session
	if o.repo == nil {
		return reply, nil
	}
	// The agent must not make a checkpoint while gc removes others.
	if o.mount != nil && o.mount.writable() {
		// Work that is in no checkpoint yet is stored first, so that gc can keep it.
		if !r.DryRun {
			if err := o.mount.agent.KeepAll(ctx, session.Idle); err != nil {
				return reply, fault.ExplainSession("collect", r.Of, err)
			}
		}
		if err := o.mount.agent.Lock(ctx); err != nil {
			return reply, fault.ExplainSession("collect", r.Of, err)
		}
		defer o.mount.agent.Unlock()
	}
	writer, err := d.writer()
	if err != nil {
		return reply, fault.ExplainSession("collect", r.Of, err)
	}
	done, err := o.rewrite(r.DryRun)
	if err != nil {
		return reply, fault.ExplainSession("collect", r.Of, err)
	}
	n, err := session.GC(ctx, o.repo, session.GCOptions{
		Session: o.session, Writer: writer, Keep: session.Retention{All: r.All, Daily: r.Daily}, Now: time.Now(), DryRun: r.DryRun,
	})
	if err != nil {
		return reply, fault.ExplainSession("collect", r.Of, err)
	}
	if reply.Records, err = o.expire(ctx, r, n.Dropped); err != nil {
		return reply, fault.ExplainSession("collect", r.Of, err)
	}
	// The contents of expired records are not reachable any more, and are removed from the repository.
	if reply.Records > 0 && !r.DryRun {
		swept, err := o.repo.Sweep(ctx)
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
		reply.Dropped = append(reply.Dropped, o.shown(p))
	}
	// The number of checkpoints in the status, and the session remote, are brought up to date.
	if !r.DryRun {
		if o.mount != nil {
			o.mount.agent.Recount()
		}
		o.sendLater(ctx, d)
	}
	return reply, nil
}

// expire drops transcript records of checkpoints that do not exist any more, if the records are older than the daily
// checkpoints that gc keeps. dropped are the checkpoints that this gc drops. expire returns the number of records.
func (o *opened) expire(ctx context.Context, r control.SessionGCRequest, dropped []session.Checkpoint) (int64, error) {
	there := map[session.CheckpointID]bool{}
	err := o.repo.EachCheckpoint(func(p session.Checkpoint) bool {
		there[p.ID] = true
		return true
	})
	if err != nil {
		return 0, err
	}
	// A pin keeps its checkpoint even if the lane does not contain it any more.
	for id := range o.pins {
		there[id] = true
	}
	for _, p := range dropped {
		delete(there, p.ID)
	}
	return transcript.Expire(ctx, o.repo, transcript.ExpireRequest{
		Session: o.session, Now: time.Now(), Keep: cmp.Or(r.Daily, session.DefaultDaily), DryRun: r.DryRun,
		There: func(id session.CheckpointID) bool { return there[id] },
	}, o.mount.contents(ctx))
}

// find returns the checkpoint of the session that name stands for; "" is the newest.
func (o *opened) find(ctx context.Context, name string) (session.Checkpoint, error) {
	if o.repo == nil {
		return session.Checkpoint{}, fault.ErrNoCheckpoint
	}
	return findCheckpoint(ctx, o.repo, o.mount, name)
}
