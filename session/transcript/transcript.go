// Package transcript keeps what is said of the work in a session, apart from its files: notes on commits, and a record of
// who did what. Nothing of it is written before what looks like a secret was taken out (Redact).
package transcript

import (
	"context"
	"errors"
	"os/exec"
	"time"

	"github.com/artifactfs/artifactfs/session"
)

// Batch is what is recorded at once.
type Batch struct {
	Session string
	Lane    string
	Point   session.PointID // that it belongs to; "": there is none yet
	Actor   string
	Time    time.Time
	Lines   []string // a JSON object each
}

// Recorded is what became of a Batch.
type Recorded struct {
	Ref      string
	Lines    int64
	Redacted int64 // secrets that were taken out
}

// Record adds a batch to what was recorded of a session.
func Record(ctx context.Context, r *session.Repo, b Batch) (Recorded, error) {
	return Recorded{}, errors.ErrUnsupported
}

// Count is how many lines belong to a point.
func Count(r *session.Repo, name string, p session.PointID) (int64, error) {
	return 0, errors.ErrUnsupported
}

// NoteRequest asks for a note on a commit.
type NoteRequest struct {
	GitDir string
	Commit string // as git names commits; "": HEAD
	Ref    string // "agent" is refs/notes/agent
	JSON   []byte
	// Command makes git's commands; nil: the one on the path.
	Command func(ctx context.Context, args ...string) *exec.Cmd
}

// Noted is a note that was written.
type Noted struct {
	Commit   string // full id
	Ref      string // full name
	Note     string // id of the blob
	Redacted int64
}

// Note writes a git note.
func Note(ctx context.Context, n NoteRequest) (Noted, error) {
	return Noted{}, errors.ErrUnsupported
}
