package catalog

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/host/fault"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/lifecycle"
	"github.com/artifactfs/artifactfs/session/transcript"
)

// contents returns a function that fetches missing contents of the session, through its mount or from the session
// remote. It returns nil if both are not available.
func (o *opened) contents(ctx context.Context) func(ids []object.ID) error {
	if o.far == nil {
		return o.mount.Contents(ctx)
	}
	return func(ids []object.ID) error { return o.far.Contents(ctx, o.Session, ids) }
}

// SessionTranscript returns the transcript of a session, or one turn of it. If r.Head is still the newest commit of the
// transcript, it returns no records, because the caller has all of them.
func (all *Catalog) SessionTranscript(ctx context.Context,
	r control.SessionTranscriptRequest) (control.SessionTranscriptReply, error) {
	reply := control.SessionTranscriptReply{Records: []control.TranscriptRecord{}}
	o, err := all.openSession(ctx, r.Of, false)
	if err != nil {
		return reply, fault.ExplainSession("read transcript", r.Of, err)
	}
	defer o.Close()
	reply.Session = o.Session
	if o.Repo == nil {
		return reply, nil
	}
	if r.Memory {
		return o.memory(ctx, r, reply)
	}
	head, err := transcript.Head(o.Repo, o.Session)
	// The caller already has this version of the transcript, so the reply contains no records.
	if err == nil && !head.IsZero() && head.String() == r.Head {
		reply.Head = r.Head
		return reply, nil
	}
	lines, head, err := transcript.Read(o.Repo, o.Session, o.mount.Contents(ctx))
	if err != nil {
		return reply, fault.ExplainSession("read transcript", r.Of, err)
	}
	if !head.IsZero() {
		reply.Head = head.String()
	}
	for _, l := range lines {
		reply.Turns = max(reply.Turns, l.Turn)
		if r.Turn == 0 || l.Turn == r.Turn {
			reply.Records = append(reply.Records, shownRecord(l))
		}
	}
	return reply, nil
}

// memory returns one page of the memory of agents in a session.
func (o *opened) memory(ctx context.Context, r control.SessionTranscriptRequest,
	reply control.SessionTranscriptReply) (control.SessionTranscriptReply, error) {
	lines, next, err := transcript.Source{Repo: o.Repo, Provide: o.mount.Contents(ctx)}.ReadMemory(o.Session, r.After)
	if err != nil {
		return reply, fault.ExplainSession("read memory", r.Of, err)
	}
	for _, l := range lines {
		reply.Records = append(reply.Records, shownRecord(l))
	}
	reply.Next = next
	return reply, nil
}

// shownRecord converts a transcript record into the form of a reply.
func shownRecord(l transcript.Line) control.TranscriptRecord {
	s := control.TranscriptRecord{
		ID: l.ID, Time: l.Time.UTC(), Checkpoint: string(l.Checkpoint), Session: l.Session, Lane: l.Lane, Actor: l.Actor,
		Turn: l.Turn, Begins: l.StartsTurn, Record: l.Record,
	}
	if l.Erased != nil {
		s.Erased = &control.Erased{Time: l.Erased.Time, By: l.Erased.By, Why: l.Erased.Why}
	}
	return s
}

// recordsBefore returns the numbers of transcript records that were appended after each checkpoint and before the next
// one.
func (o *opened) recordsBefore(ctx context.Context) (map[session.CheckpointID]int64, error) {
	lines, _, err := transcript.Read(o.Repo, o.Session, o.mount.Contents(ctx))
	after := map[session.CheckpointID]int64{}
	for _, l := range lines {
		after[l.Checkpoint]++
	}
	return after, err
}

// SessionErase replaces records of a transcript by tombstones, and removes the contents of these records from the
// session repository. The session's metadata record the erasure, so that forks of the session also erase the records.
func (all *Catalog) SessionErase(ctx context.Context,
	r control.SessionEraseRequest) (control.SessionEraseReply, error) {
	reply := control.SessionEraseReply{Erased: []string{}}
	o, err := all.openSession(ctx, r.Of, true)
	if err != nil {
		return reply, fault.ExplainSession("erase from", r.Of, err)
	}
	defer o.Close()
	reply.Session = o.Session
	if o.Repo == nil {
		return reply, nil
	}
	if err := lifecycle.OnHold(o.Repo, o.Session); err != nil {
		return reply, fault.ExplainSession("erase from", r.Of, err)
	}
	ids := map[string]bool{}
	for _, id := range r.Records {
		ids[id] = true
	}
	erased, memory, err := transcript.Erase(ctx, o.Repo, transcript.EraseRequest{
		Session: o.Session, Before: r.Before, Except: r.Except, IDs: ids,
		Stone: transcript.Tombstone{Time: time.Now().UTC(), By: cmp.Or(r.Actor, session.Actor()), Why: r.Why},
	}, o.mount.Contents(ctx))
	if err != nil || len(erased)+memory == 0 {
		if err != nil {
			err = fault.ExplainSession("erase from", r.Of, err)
		}
		return reply, err
	}
	reply.Erased, reply.Memory = append(reply.Erased, erased...), int64(memory)
	note := session.Erasure{IDs: erased, Time: time.Now().UTC(), By: cmp.Or(r.Actor, session.Actor()), Why: r.Why}
	// An erasure by time is recorded by its time, and not by the IDs of its records: all memory of a conversation to which
	// one of these belongs would be erased.
	if !r.Before.IsZero() {
		note.Before, note.Except = r.Before, r.Except
		note.IDs = slices.DeleteFunc(slices.Clone(erased), func(id string) bool { return !ids[id] })
	}
	if err := session.NoteErased(ctx, o.Repo, o.Session, note); err != nil && !errors.Is(err, session.ErrNoMeta) {
		return reply, fault.ExplainSession("record the erasure in the metadata of", r.Of, err)
	}
	// Sweep removes objects, and must not run while a checkpoint is being made. The agent's lock prevents new checkpoints.
	if o.mount != nil && o.mount.Writable {
		if err := o.mount.Agent.Lock(ctx); err != nil {
			return reply, fault.ExplainSession("erase from", r.Of, err)
		}
		defer o.mount.Agent.Unlock()
	}
	if reply.Bytes, err = o.Repo.Sweep(ctx); err != nil {
		return reply, fault.ExplainSession("erase from", r.Of, err)
	}
	o.sendLater(ctx, all)
	return reply, nil
}

// SessionFacts changes the facts of a session if the request contains changes, and returns all facts.
func (all *Catalog) SessionFacts(ctx context.Context,
	r control.SessionFactsRequest) (control.SessionFactsReply, error) {
	reply := control.SessionFactsReply{Facts: []control.Fact{}}
	o, err := all.openSession(ctx, r.Of, r.Changes())
	if err != nil {
		return reply, fault.ExplainSession("read facts of", r.Of, err)
	}
	defer o.Close()
	reply.Session = o.Session
	// Facts are stored in the session's repository, so a session without a repository gets one.
	if r.Changes() && o.mount != nil && o.mount.Agent.Active() && o.Repo == nil {
		if _, err := o.mount.Agent.Open(ctx); err != nil {
			return reply, fault.ExplainSession("change facts of", r.Of, err)
		}
		if o, err = all.OpenMount(o.mount); err != nil {
			return reply, fault.ExplainSession("change facts of", r.Of, err)
		}
	}
	if o.Repo == nil {
		if r.Changes() {
			err = fault.ExplainSession("change facts of", r.Of, fault.ErrNoCheckpoint)
		}
		return reply, err
	}
	var facts transcript.Facts
	if r.Changes() {
		facts, reply.Redacted, err = transcript.ChangeFacts(ctx, o.Repo, transcript.FactsChange{
			Session: o.Session, By: cmp.Or(r.Actor, session.Actor()), Time: time.Now().UTC(), Add: r.Add, Remove: r.Remove,
			Handoff: r.Handoff,
		}, o.mount.Contents(ctx))
		if err == nil {
			o.sendLater(ctx, all)
		}
	} else {
		facts, _, err = transcript.ReadFacts(o.Repo, o.Session, o.mount.Contents(ctx))
	}
	if err != nil {
		return reply, fault.ExplainSession("read facts of", r.Of, err)
	}
	for _, f := range facts.Facts {
		reply.Facts = append(reply.Facts, control.Fact(f))
	}
	reply.Handoff = facts.Handoff
	return reply, nil
}
