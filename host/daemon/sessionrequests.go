package daemon

import (
	"context"
	"path/filepath"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/host/mount"
	"github.com/artifactfs/artifactfs/host/mount/origin"
	"github.com/artifactfs/artifactfs/host/session/agent"
	"github.com/artifactfs/artifactfs/host/session/catalog"
	"github.com/artifactfs/artifactfs/host/statedir"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/capture"
	"github.com/artifactfs/artifactfs/session/transcript"
	"github.com/artifactfs/artifactfs/session/writeback"
)

var (
	_ control.Sessions     = (*Daemon)(nil)
	_ control.CacheEntries = (*Daemon)(nil)
	_ control.Locks        = (*Daemon)(nil)
)

// carried returns the mount that contains the path dir, and the session of that mount. If the session creates no
// checkpoints, carried returns an error for the action verb, such as "sync".
func (d *Daemon) carried(verb, dir string) (*mount.Mount, *catalog.Mounted, error) {
	m, err := d.servedMount(verb, dir)
	if err != nil {
		return nil, nil, err
	}
	c := m.Listed()
	if !c.Agent.Active() {
		return nil, nil, fault.ExplainSession(verb, c.Dir, fault.ErrNoSessionRemote)
	}
	return m, c, nil
}

// Checkpoint creates a checkpoint of a working tree. If the request demands it, Checkpoint also pins the checkpoint
// (names it, so that it is kept) and pushes it to the session remote.
func (d *Daemon) Checkpoint(ctx context.Context, r control.CheckpointRequest,
	progress func(control.Progress)) (control.CheckpointReply, error) {
	var reply control.CheckpointReply
	_, c, err := d.carried("checkpoint", r.Dir)
	if err != nil {
		return reply, err
	}
	// The name of the pin is checked before the checkpoint is created.
	if r.Pin != "" {
		if err := session.ValidPin(r.Pin); err != nil {
			return reply, &control.Error{Code: control.ExitUsage, Verb: "pin", Object: r.Pin, Cause: err.Error()}
		}
	}
	p, report, err := c.Agent.Capture(ctx, session.Manual, r.Message)
	if err != nil {
		return reply, fault.ExplainSession("checkpoint", c.Dir, err)
	}
	o, err := d.Catalog.OpenMount(c)
	if err != nil {
		return reply, fault.ExplainSession("checkpoint", c.Dir, err)
	}
	// The pin is set before the push, so that the push includes it.
	if r.Pin != "" {
		if err := session.SetPin(ctx, o.Repo, o.Session, r.Pin, p); err != nil {
			return reply, fault.ExplainSession("pin", r.Pin, err)
		}
	}
	// Refs that git has changed are first copied to the session's repository, so that the push includes them.
	if r.Sync {
		ctx, cancel := context.WithTimeoutCause(ctx, agent.SyncTime, fault.ErrSlow)
		defer cancel()
		if err := c.Agent.Flush(ctx); err != nil { // the latest commit may exist only in git's object directory
			return reply, fault.Unsynced("sync", c.Dir, err)
		}
		if err := c.Agent.Push(ctx, progressOf(progress)); err != nil {
			return reply, fault.Unsynced("sync", c.Dir, err)
		}
	}
	if o, err = d.Catalog.OpenMount(c); err != nil {
		return reply, fault.ExplainSession("checkpoint", c.Dir, err)
	}
	return control.CheckpointReply{
		Checkpoint: o.Shown(p), Made: report.Made, LeftOut: catalog.LeftOut(report.Left),
		Paused: milliseconds(report.Paused), Took: milliseconds(report.Took), Steps: shownSteps(report.Steps),
	}, nil
}

// shownSteps converts the durations of the steps of a checkpoint to the type that a reply contains.
func shownSteps(all []capture.Step) []control.Step {
	steps := []control.Step{}
	for _, s := range all {
		steps = append(steps, control.Step{Name: s.Name, Took: milliseconds(s.Took)})
	}
	return steps
}

// milliseconds returns d in milliseconds, with a resolution of one microsecond.
func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// syncTries is the maximum number of pushes in one call of Sync. A push is repeated if refs changed during it.
const syncTries = 5

// Sync creates a checkpoint and waits until all refs of the session are pushed to the session remote. If files or refs
// change at the same time, some refs may still be pending when Sync returns.
func (d *Daemon) Sync(ctx context.Context, r control.SyncRequest,
	progress func(control.Progress)) (control.SyncReply, error) {
	var reply control.SyncReply
	m, c, err := d.carried("sync", r.Dir)
	if err != nil {
		return reply, err
	}
	if r.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, r.Timeout, fault.ErrSlow)
		defer cancel()
	}
	// The push includes branches and tags, so the git directory must be complete.
	if !m.Events.AwaitGit(ctx) {
		return reply, fault.Unsynced("sync", c.Dir, agent.ErrEnded)
	}
	if err := c.Agent.KeepAll(ctx, session.Manual); err != nil {
		return reply, fault.ExplainSession("sync", c.Dir, err)
	}
	// Refs may change while they are pushed, so the push is repeated a few times.
	for range syncTries {
		if err := c.Agent.Push(ctx, progressOf(progress)); err != nil {
			return reply, fault.Unsynced("sync", c.Dir, err)
		}
		if reply = (control.SyncReply{Dir: c.Dir, Session: c.Status()}); reply.Session.Pending == 0 {
			// All refs are pushed. Otherwise the push has created another ref, such as a checkpoint of merged notes, and is
			// repeated.
			break
		}
	}
	return reply, nil
}

// namesCheckpoint reports whether name, an argument of the command "session note", is the name of a checkpoint: "@",
// "@~N", a complete checkpoint ID, or "turn:" with a turn. All other names, including those that begin with "@{", are
// revisions for git.
func namesCheckpoint(name string) bool {
	_, err := session.ParseCheckpointID(name)
	return err == nil || strings.HasPrefix(name, "@") && !strings.HasPrefix(name, "@{") || strings.HasPrefix(name, "turn:")
}

// SessionNote writes a git note for a commit or a checkpoint.
func (d *Daemon) SessionNote(ctx context.Context, r control.SessionNoteRequest) (control.SessionNoteReply, error) {
	m, err := d.servedMount("write note", r.Dir)
	if err != nil {
		return control.SessionNoteReply{}, err
	}
	c := m.Listed()
	if !c.Writable {
		return control.SessionNoteReply{}, fault.NotMounted("write note", r.Dir)
	}
	if !m.Events.AwaitGit(ctx) {
		return control.SessionNoteReply{}, fault.Explain("write note", r.Dir, agent.ErrEnded)
	}
	note := transcript.NoteRequest{GitDir: c.GitDir, Commit: r.Commit, Ref: r.Ref, JSON: r.JSON}
	// The commits of checkpoints are stored in the repository of the session, not in the mount's git directory.
	if namesCheckpoint(r.Commit) {
		repo, err := c.Agent.Open(ctx)
		if err != nil {
			return control.SessionNoteReply{}, fault.ExplainSession("write note", c.Dir, err)
		}
		p, err := catalog.Find(ctx, repo, c, r.Commit)
		if err != nil {
			return control.SessionNoteReply{}, fault.ExplainSession("write note", "checkpoint "+r.Commit, err)
		}
		note.Commit, note.Also = p.Commit.String(), origin.SessionObjects(c.Home)
	}
	n, err := transcript.Note(ctx, note)
	if err != nil {
		return control.SessionNoteReply{}, fault.ExplainSession("write note", r.Commit, err)
	}
	return control.SessionNoteReply{Commit: n.Commit, Ref: n.Ref, Note: n.Note, Redacted: n.Redacted}, nil
}

// SessionRecord appends records to a session's transcript. If the records contain a prompt of the user, it first
// creates a checkpoint, so that the files at the start of each turn can be restored.
func (d *Daemon) SessionRecord(ctx context.Context,
	r control.SessionRecordRequest) (control.SessionRecordReply, error) {
	_, c, err := d.carried("record", r.Dir)
	if err != nil {
		return control.SessionRecordReply{}, err
	}
	repo, err := c.Agent.Open(ctx)
	if err != nil {
		return control.SessionRecordReply{}, fault.ExplainSession("record", c.Dir, err)
	}
	// The checkpoint is created before the prompt is recorded, so that the user can restore the files as they were at the
	// time of the prompt.
	if c.Agent.Automatic() && !r.Memory && transcript.HasPrompt(r.Lines) {
		if _, _, err := c.Agent.Checkpoint(ctx, session.Turn, ""); err != nil {
			return control.SessionRecordReply{}, fault.ExplainSession("record", c.Dir, err)
		}
	}
	last, lane := c.Agent.Newest()
	n, err := transcript.Record(ctx, repo, transcript.Batch{
		Session: c.Session, Lane: lane, Checkpoint: last.ID, Actor: session.Actor(), Time: time.Now().UTC(), Lines: r.Lines,
		Memory: r.Memory, Provide: c.Contents(ctx),
	})
	if err != nil {
		return control.SessionRecordReply{}, fault.ExplainSession("record", c.Dir, err)
	}
	return control.SessionRecordReply{Ref: n.Ref, Checkpoint: string(last.ID), Lines: n.Lines, Redacted: n.Redacted}, nil
}

// progressOf returns a function that passes the status of a push to progress, as control.Progress.
func progressOf(progress func(control.Progress)) func(writeback.Status) {
	return func(st writeback.Status) {
		p := control.Progress{Phase: "sync", Total: int64(st.Pending), Unit: "refs"}
		if st.Seeding {
			p = control.Progress{Phase: "seed", Done: st.Seeded, Total: st.SeedSize, Unit: "bytes"}
		}
		progress(p)
	}
}

// Mounted returns the mount of a session, or nil if the session is not mounted. The parameter of is the session's name,
// or a path in its mount. Mounted implements the interface catalog.Mounts.
func (d *Daemon) Mounted(ctx context.Context, of string) (*catalog.Mounted, error) {
	m, err := d.mounted(ctx, of)
	if m == nil || err != nil {
		return nil, err
	}
	return m.Listed(), nil
}

// Writable returns all served mounts that are not read-only. It implements the interface catalog.Mounts.
func (d *Daemon) Writable() []*catalog.Mounted {
	var all []*catalog.Mounted
	for _, m := range d.list() {
		if m.Served() && !m.IsGone() && m.Writable() {
			all = append(all, m.Listed())
		}
	}
	return all
}

// mounted returns the served mount of a session, or nil if there is none. The parameter of is the session's name, or a
// path in its mount. mounted waits for a takeover of the mount. It returns statedir.ErrNoSession if the mount has no
// session.
func (d *Daemon) mounted(ctx context.Context, of string) (*mount.Mount, error) {
	var m *mount.Mount
	// A path refers to the mount that contains it. A name refers to the writable mount of the session with that name.
	if filepath.IsAbs(of) {
		m, _ = d.find(of)
	} else {
		for _, other := range d.list() {
			if other.Session == of && other.Writable() {
				m = other
			}
		}
	}
	if m == nil {
		return nil, nil
	}
	if err := m.AwaitTakeover(ctx); err != nil {
		return nil, err
	}
	// The takeover may have failed, or the mount may have ended during the wait.
	if !m.Served() || m.IsGone() {
		return nil, nil
	}
	if m.Session == "" {
		return nil, statedir.ErrNoSession
	}
	return m, nil
}
