package control

import (
	"cmp"
	"context"
	"crypto/rand"
)

// workSession calls the handler's method for operation o, which must be an operation of the interface Sessions.
func (s *Server) workSession(ctx context.Context, o op, args any, out *sender) (any, error) {
	h, ok := s.handler.(Sessions)
	if !ok {
		return nil, unsupported("unknown operation %.40q", o)
	}
	switch o {
	case opCheckpoint:
		return h.Checkpoint(ctx, args.(CheckpointRequest), out.progress)
	case opSync:
		return h.Sync(ctx, args.(SyncRequest), out.progress)
	case opSessions:
		return h.Sessions(ctx)
	case opSessionsOn:
		return h.SessionsOn(ctx, args.(SessionsOnRequest))
	case opSessionLog:
		return h.SessionLog(ctx, args.(SessionLogRequest))
	case opSessionShow:
		return h.SessionShow(ctx, args.(SessionShowRequest))
	case opSessionDiff:
		return h.SessionDiff(ctx, args.(SessionDiffRequest))
	case opSessionCompare:
		return h.SessionCompare(ctx, args.(SessionCompareRequest))
	case opSessionPromote:
		return h.SessionPromote(ctx, args.(SessionPromoteRequest))
	case opSessionSummary:
		return h.SessionSummary(ctx, args.(SessionSummaryRequest))
	case opRestore:
		return h.Restore(ctx, args.(RestoreRequest), out.progress)
	case opMerge:
		return h.Merge(ctx, args.(MergeRequest), out.progress)
	case opFork:
		return h.Fork(ctx, args.(ForkRequest), out.progress)
	case opSessionSet:
		return h.SessionSet(ctx, args.(SessionSetRequest))
	case opSessionNote:
		r := args.(SessionNoteRequest)
		r.Ref = cmp.Or(r.Ref, defaultNotes)
		return h.SessionNote(ctx, r)
	case opSessionRecord:
		return h.SessionRecord(ctx, args.(SessionRecordRequest))
	case opSessionTranscript:
		return h.SessionTranscript(ctx, args.(SessionTranscriptRequest))
	case opSessionErase:
		return h.SessionErase(ctx, args.(SessionEraseRequest))
	case opSessionFacts:
		return h.SessionFacts(ctx, args.(SessionFactsRequest))
	case opSessionGC:
		return h.SessionGC(ctx, args.(SessionGCRequest), out.progress)
	case opSessionDelete:
		return h.SessionDelete(ctx, args.(SessionDeleteRequest))
	case opSessionBack:
		return h.SessionUndelete(ctx, args.(SessionUndeleteRequest))
	case opSessionTrash:
		return h.SessionTrash(ctx, args.(SessionTrashRequest))
	case opSessionApprove:
		return h.SessionApprove(ctx, args.(SessionApproveRequest))
	case opSessionApprovals:
		return h.SessionApprovals(ctx, args.(SessionApprovalsRequest))
	case opSessionPolicy:
		return h.SessionPolicy(ctx, args.(SessionPolicyRequest))
	case opSessionAnnotate:
		return h.SessionAnnotate(ctx, args.(SessionAnnotateRequest))
	case opSessionAnnotations:
		return h.SessionAnnotations(ctx, args.(SessionAnnotationsRequest))
	case opSessionLocks:
		if h, ok := s.handler.(Locks); ok {
			return h.SessionLocks(ctx, args.(SessionLocksRequest))
		}
	}
	return s.workCacheEntry(ctx, o, args)
}

// Checkpoint requests a checkpoint of a working tree.
func (c *Client) Checkpoint(ctx context.Context, r CheckpointRequest,
	progress func(Progress)) (CheckpointReply, error) {
	return call[CheckpointReply](ctx, c, opCheckpoint, r, progress)
}

// Sync requests that the session of a mount is pushed to its session remote, and waits until the push is complete.
func (c *Client) Sync(ctx context.Context, r SyncRequest, progress func(Progress)) (SyncReply, error) {
	return call[SyncReply](ctx, c, opSync, r, progress)
}

// Sessions lists the sessions of the state directory.
func (c *Client) Sessions(ctx context.Context) (SessionsReply, error) {
	return call[SessionsReply](ctx, c, opSessions, empty{}, nil)
}

// SessionsOn lists the sessions of a session remote.
func (c *Client) SessionsOn(ctx context.Context, r SessionsOnRequest) (SessionsReply, error) {
	return call[SessionsReply](ctx, c, opSessionsOn, r, nil)
}

// SessionLog lists the checkpoints of a session.
func (c *Client) SessionLog(ctx context.Context, r SessionLogRequest) (SessionLogReply, error) {
	return call[SessionLogReply](ctx, c, opSessionLog, r, nil)
}

// SessionShow returns a description of one checkpoint.
func (c *Client) SessionShow(ctx context.Context, r SessionShowRequest) (SessionShowReply, error) {
	return call[SessionShowReply](ctx, c, opSessionShow, r, nil)
}

// SessionDiff compares two checkpoints, or a checkpoint and the working tree.
func (c *Client) SessionDiff(ctx context.Context, r SessionDiffRequest) (SessionDiffReply, error) {
	return call[SessionDiffReply](ctx, c, opSessionDiff, r, nil)
}

// Restore changes files back to their contents in a checkpoint.
func (c *Client) Restore(ctx context.Context, r RestoreRequest, progress func(Progress)) (RestoreReply, error) {
	if r.Nonce == "" {
		r.Nonce = rand.Text()
	}
	return call[RestoreReply](ctx, c, opRestore, r, progress)
}

// Fork creates a session that starts from a checkpoint of another session, and mounts the new session.
func (c *Client) Fork(ctx context.Context, r ForkRequest, progress func(Progress)) (MountReply, error) {
	r.Mount = r.Mount.ofCaller()
	return call[MountReply](ctx, c, opFork, r, progress)
}

// SessionSet changes the state or the profile of a session, or sets or removes a pin.
func (c *Client) SessionSet(ctx context.Context, r SessionSetRequest) (SessionInfo, error) {
	return call[SessionInfo](ctx, c, opSessionSet, r, nil)
}

// SessionNote writes a git note on a commit.
func (c *Client) SessionNote(ctx context.Context, r SessionNoteRequest) (SessionNoteReply, error) {
	return call[SessionNoteReply](ctx, c, opSessionNote, r, nil)
}

// SessionRecord appends to a session's transcript.
func (c *Client) SessionRecord(ctx context.Context, r SessionRecordRequest) (SessionRecordReply, error) {
	return call[SessionRecordReply](ctx, c, opSessionRecord, r, nil)
}

// SessionGC drops checkpoints that no rule keeps.
func (c *Client) SessionGC(ctx context.Context, r SessionGCRequest, progress func(Progress)) (SessionGCReply, error) {
	return call[SessionGCReply](ctx, c, opSessionGC, r, progress)
}

// SessionDelete moves a session from this host and from its session remote to the trash.
func (c *Client) SessionDelete(ctx context.Context, r SessionDeleteRequest) (SessionDeleteReply, error) {
	return call[SessionDeleteReply](ctx, c, opSessionDelete, r, nil)
}

// SessionUndelete restores a deleted session.
func (c *Client) SessionUndelete(ctx context.Context, r SessionUndeleteRequest) (SessionDeleteReply, error) {
	return call[SessionDeleteReply](ctx, c, opSessionBack, r, nil)
}

// SessionTrash lists the deleted sessions that can be restored.
func (c *Client) SessionTrash(ctx context.Context, r SessionTrashRequest) (SessionTrashReply, error) {
	return call[SessionTrashReply](ctx, c, opSessionTrash, r, nil)
}
