package daemon

import (
	"context"
	"errors"

	"github.com/artifactfs/artifactfs/control"
)

var errNotYet = errors.New("not there yet")

var _ control.Sessions = (*Daemon)(nil)

// Checkpoint makes a point of a working tree.
func (d *Daemon) Checkpoint(ctx context.Context, r control.CheckpointRequest, progress func(control.Progress)) (control.CheckpointReply, error) {
	return control.CheckpointReply{}, explain("checkpoint", r.Dir, errNotYet)
}

// Sync waits until a mount's work is on its session remote.
func (d *Daemon) Sync(ctx context.Context, r control.SyncRequest, progress func(control.Progress)) (control.SyncReply, error) {
	return control.SyncReply{}, explain("sync", r.Dir, errNotYet)
}

// Sessions lists those of the state directory.
func (d *Daemon) Sessions(ctx context.Context) (control.SessionsReply, error) {
	return control.SessionsReply{}, explain("list", "sessions", errNotYet)
}

// SessionLog lists points, newest first.
func (d *Daemon) SessionLog(ctx context.Context, r control.SessionLogRequest) (control.SessionLogReply, error) {
	return control.SessionLogReply{}, explain("read session", r.Of, errNotYet)
}

// SessionShow tells all about one point.
func (d *Daemon) SessionShow(ctx context.Context, r control.SessionShowRequest) (control.SessionShowReply, error) {
	return control.SessionShowReply{}, explain("show point", r.ID, errNotYet)
}

// SessionDiff compares two points.
func (d *Daemon) SessionDiff(ctx context.Context, r control.SessionDiffRequest) (control.SessionDiffReply, error) {
	return control.SessionDiffReply{}, explain("compare points of", r.Of, errNotYet)
}

// SessionSet changes a session's state or a pin.
func (d *Daemon) SessionSet(ctx context.Context, r control.SessionSetRequest) (control.SessionInfo, error) {
	return control.SessionInfo{}, explain("change session", r.Of, errNotYet)
}

// SessionNote writes a git note.
func (d *Daemon) SessionNote(ctx context.Context, r control.SessionNoteRequest) (control.SessionNoteReply, error) {
	return control.SessionNoteReply{}, explain("write note", r.Dir, errNotYet)
}

// SessionRecord appends to a session's transcript.
func (d *Daemon) SessionRecord(ctx context.Context, r control.SessionRecordRequest) (control.SessionRecordReply, error) {
	return control.SessionRecordReply{}, explain("record", r.Dir, errNotYet)
}

// SessionGC drops points that no rule keeps.
func (d *Daemon) SessionGC(ctx context.Context, r control.SessionGCRequest, progress func(control.Progress)) (control.SessionGCReply, error) {
	return control.SessionGCReply{}, explain("collect", r.Of, errNotYet)
}
