package control

import (
	"context"
	"path"
	"strings"
	"time"
)

// Annotations is a Handler that stores and lists annotations of sessions: threads of comments on a session, a
// checkpoint, a commit, a file or lines of a file.
type Annotations interface {
	// SessionAnnotate begins a thread, replies to it, resolves it or opens it again.
	SessionAnnotate(ctx context.Context, r SessionAnnotateRequest) (SessionAnnotateReply, error)
	// SessionAnnotations lists the threads of a session, with the positions of files and lines in a checkpoint.
	SessionAnnotations(ctx context.Context, r SessionAnnotationsRequest) (SessionAnnotationsReply, error)
}

// Values of Annotation.Op and SessionAnnotateRequest.Op.
const (
	AnnotateOpen    = "open"    // begins a thread
	AnnotateReply   = "reply"   // adds a text to a thread
	AnnotateResolve = "resolve" // marks a thread as resolved
	AnnotateReopen  = "reopen"  // marks a thread as open again
)

// SessionAnnotateRequest requests that a session is annotated. Without ID, Commit and Path, a new thread is about the
// whole session.
type SessionAnnotateRequest struct {
	Of string `json:"of"` // directory of a mount, or name of a session
	// session remote that has the session Of; "": the session is on this host
	SessionRemote string `json:"session_remote,omitempty"`
	Op            string `json:"op"` // "open", "reply", "resolve" or "reopen"
	// Thread is the id of an annotation in the thread, or the beginning of the id. It must be set unless Op is "open".
	Thread string `json:"thread,omitempty"`
	// ID is the checkpoint that a new thread is about. With Path, the thread is about the file in this checkpoint. If
	// ID is "" and Path is set, the file is taken from the newest checkpoint or, if the session is mounted, from a new
	// checkpoint of the working tree.
	ID     string `json:"id,omitempty"`
	Commit string `json:"commit,omitempty"` // commit that a new thread is about; on a session remote its full id
	Path   string `json:"path,omitempty"`   // file that a new thread is about, relative to the mount
	Line   int    `json:"line,omitempty"`   // first line, counted from 1; 0: the whole file
	End    int    `json:"end,omitempty"`    // last line; 0: the same as Line
	Text   string `json:"text,omitempty"`   // text, at most 64 KiB; it may be empty for "resolve" and "reopen"
	// Actor is the user or program that annotates; "" means user@host. If the server knows whose token it was, the name of
	// that user is used instead.
	Actor string `json:"actor,omitempty"`
}

// SessionAnnotateReply is the output of `session annotate --json`.
type SessionAnnotateReply struct {
	Session  string           `json:"session"`  // name of the session
	ID       string           `json:"id"`       // id of the new annotation
	Thread   AnnotationThread `json:"thread"`   // thread of the annotation, including the new annotation
	Redacted int64            `json:"redacted"` // number of secrets that were removed from the text
}

// SessionAnnotationsRequest requests the threads of a session.
type SessionAnnotationsRequest struct {
	Of string `json:"of"` // directory of a mount, or name of a session
	// session remote that has the session Of; "": the session is on this host
	SessionRemote string `json:"session_remote,omitempty"`
	// checkpoint in which files and lines are looked up; "": the newest
	ID  string `json:"id,omitempty"`
	All bool   `json:"all,omitempty"` // the reply also contains resolved threads
	// Path is a file or directory. If it is set, the reply contains only threads about files that are at this path now,
	// or were when the thread began. "": the reply contains all threads.
	Path string `json:"path,omitempty"`
}

// SessionAnnotationsReply is the output of `session annotations --json`.
type SessionAnnotationsReply struct {
	Session string `json:"session"` // name of the session
	// id of the checkpoint in which files and lines were looked up; "": none
	Checkpoint string             `json:"checkpoint,omitempty"`
	Threads    []AnnotationThread `json:"threads"` // threads, oldest first
}

// AnnotationThread is a sequence of annotations about one place.
type AnnotationThread struct {
	ID    string          `json:"id"`    // id of the first annotation
	State string          `json:"state"` // "open" or "resolved"
	On    AnnotationPlace `json:"on"`    // what the thread is about
	// position in the requested checkpoint; only for threads about a file
	Now         *AnnotationPlace `json:"now,omitempty"`
	Annotations []Annotation     `json:"annotations"` // annotations, oldest first
}

// AnnotationPlace is a place in a session. Without Checkpoint, Commit and Path it is the whole session.
type AnnotationPlace struct {
	// State is set for the place "now": "same" (same path and contents), "moved" (other path or contents; lines are
	// counted in the new contents), "outdated" (the lines do not exist any more, or the file does not; then there is no
	// path), or "unknown" (contents are not available).
	State      string `json:"state,omitempty"`
	Checkpoint string `json:"checkpoint,omitempty"` // id of a checkpoint
	Commit     string `json:"commit,omitempty"`     // id of a commit
	Path       string `json:"path,omitempty"`       // path relative to the mount
	Blob       string `json:"blob,omitempty"`       // id of the contents of the file
	Line       int    `json:"line,omitempty"`       // first line, counted from 1; missing: the whole file
	End        int    `json:"end,omitempty"`        // last line
	Quote      string `json:"quote,omitempty"`      // beginning of the lines when the thread began
}

// Annotation adds a text to a thread, or changes the state of the thread.
type Annotation struct {
	ID    string    `json:"id"`             // id of the annotation
	Time  time.Time `json:"time"`           // time at which the annotation was made
	Actor string    `json:"actor"`          // user or program that made the annotation
	Op    string    `json:"op"`             // "open", "reply", "resolve" or "reopen"
	Text  string    `json:"text,omitempty"` // text
}

func (r SessionAnnotateRequest) validate() error {
	switch r.Op {
	case AnnotateOpen:
		if r.Thread != "" {
			return badRequest("a new thread cannot be in another thread")
		}
	case AnnotateReply, AnnotateResolve, AnnotateReopen:
		if r.Thread == "" || r.ID != "" || r.Commit != "" || r.Path != "" {
			return badRequest("%s needs a thread, and no other place", r.Op)
		}
	default:
		return badRequest("unknown operation %.20q: want open, reply, resolve or reopen", r.Op)
	}
	switch {
	case r.ID != "" && r.Commit != "":
		return badRequest("want a checkpoint or a commit, got both")
	case r.Path != "" && !validPath(r.Path):
		return badRequest("invalid path %.100q: want a path relative to the mount", r.Path)
	case r.Line < 0, r.End < 0, r.End > 0 && r.End < r.Line, r.End > 0 && r.Line == 0, r.Line > 0 && r.Path == "":
		return badRequest("invalid lines %d to %d", r.Line, r.End)
	case (r.Op == AnnotateOpen || r.Op == AnnotateReply) && strings.TrimSpace(r.Text) == "":
		return badRequest("text is missing")
	}
	return needAt(r.Of, r.SessionRemote)
}

func (r SessionAnnotationsRequest) validate() error {
	if r.Path != "" && !validPath(r.Path) {
		return badRequest("invalid path %.100q: want a path relative to the mount", r.Path)
	}
	return needAt(r.Of, r.SessionRemote)
}

// validPath reports whether name is a path below the root of the mount, without "." and "..".
func validPath(name string) bool {
	return path.Clean(name) == name && name != "." && name != ".." && !path.IsAbs(name) && !strings.HasPrefix(name, "../")
}

// SessionAnnotate annotates a session.
func (c *Client) SessionAnnotate(ctx context.Context, r SessionAnnotateRequest) (SessionAnnotateReply, error) {
	return call[SessionAnnotateReply](ctx, c, opSessionAnnotate, r, nil)
}

// SessionAnnotations lists the threads of a session.
func (c *Client) SessionAnnotations(ctx context.Context, r SessionAnnotationsRequest) (SessionAnnotationsReply, error) {
	return call[SessionAnnotationsReply](ctx, c, opSessionAnnotations, r, nil)
}
