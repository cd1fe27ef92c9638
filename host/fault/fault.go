// Package fault converts causes of failures into the errors that users and programs read: an error code, an exit
// status, a cause in plain words, and a hint that states what to type. All of these are defined in one table. The
// package also declares the error values that several packages of the daemon share. All other errors are declared by
// the packages that return them.
package fault

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/writeback"
)

// Area is the kind of operation that has failed. The same cause may have different hints in different areas.
type Area uint16

// The areas. They are bits, because a row of a table may apply to several areas; a Subject has exactly one.
const (
	General   Area = 1 << iota
	Session        // checkpoints and sessions on this host
	SessionAt      // checkpoints and sessions on this host or on a session remote
	List           // request for the list of sessions on a session remote
	Mount
	Resume // requests to mount a session or a checkpoint
	Switch
	Restore
	Delete // requests to delete a session, or to restore a deleted session
)

// Subject describes the operation that has failed, with the values that hints refer to.
type Subject struct {
	Area         Area
	Verb, Object string // printed as "verb object: cause"

	Checkpoint string // checkpoint that is printed instead of Object if the checkpoint does not exist; "" to print Object
	Remote     string // the mounted remote, without secrets; if this remote has failed, it is printed instead of Object
	Session    string
	Ref        string // the requested branch or commit
	ID         string // the requested checkpoint
	GitDir     string
	Far        bool // whether the session was searched on a session remote, and not only on this host
}

// Explain converts err into an error with an error code, an exit status and a hint, for an operation of the area
// General. The message begins with verb and object.
func Explain(verb, object string, err error) *control.Error {
	return Subject{Area: General, Verb: verb, Object: object}.Explain(err)
}

// ExplainSession is Subject.Explain for an operation on checkpoints and sessions of this host.
func ExplainSession(verb, object string, err error) *control.Error {
	return Subject{Area: Session, Verb: verb, Object: object}.Explain(err)
}

// ExplainSessionAt is Subject.Explain for an operation on checkpoints and sessions of this host or of a session remote.
func ExplainSessionAt(verb, object string, err error) *control.Error {
	return Subject{Area: SessionAt, Verb: verb, Object: object}.Explain(err)
}

// Explain converts err into an error with an error code, an exit status and a hint. If err already is a *control.Error,
// Explain returns that error. In two cases the error then gets the object that the user has typed: after a failed
// switch, and after a failure of the mounted remote.
func (s Subject) Explain(err error) *control.Error {
	var e *control.Error
	if !errors.As(err, &e) {
		e = s.explain(err)
	}
	var other SessionRemoteError
	switch {
	case s.Area == Switch:
		e.Object = s.Object
	case s.Area == Mount && e.Code == control.ExitRemote && e.Verb == s.Verb && !errors.As(err, &other):
		e.Object = s.Remote
	}
	return e
}

// explain converts err, which contains no *control.Error, into the error that the matching rows of the tables specific
// and common describe.
func (s Subject) explain(err error) *control.Error {
	if s.Checkpoint != "" && (errors.Is(err, session.ErrNoCheckpoint) || errors.Is(err, session.ErrAmbiguous)) {
		s.Object = s.Checkpoint
	}
	// Most errors begin with the verb and the object. Remove these words, because otherwise they would be printed twice.
	e := &control.Error{Code: control.ExitFailed, Verb: s.Verb, Object: s.Object,
		Cause: strings.TrimPrefix(err.Error(), s.Verb+" "+s.Object+": ")}
	var exit int
	var cause string
	done := false
	take := func(r row) {
		if e.Kind == "" {
			e.Kind = r.code
		}
		if exit == 0 {
			exit = r.exit
		}
		if cause == "" && r.cause != nil {
			cause = r.cause(s, err)
		}
		if e.Hint == "" && r.hint != nil {
			e.Hint = r.hint(s, err)
		}
		done = done || r.last
	}
	for _, r := range specific {
		if !done && (r.in == 0 || r.in&s.Area != 0) && r.match(err) {
			take(r)
		}
	}
	decided := false
	for _, r := range common {
		if done || !r.match(err) {
			continue
		}
		if decided {
			r.exit, r.hint, r.cause = 0, nil, nil
		}
		decided = decided || r.exit != 0 || r.hint != nil
		take(r)
	}
	if exit != 0 {
		e.Code = exit
	}
	if cause != "" {
		e.Cause = cause
	}
	if e.Kind == "" {
		e.Kind = control.AsError(err).Kind
	}
	var remote SessionRemoteError
	if s.Area&namesSessionRemote != 0 && errors.As(err, &remote) {
		e.Object = "session remote " + remote.URL
		if e.Hint == "" {
			e.Hint = sessionRemoteHint
		}
	}
	return e
}

// ExplainDelete is Subject.Explain for the deletion of a session, or for an operation on a deleted session.
func ExplainDelete(verb, object string, err error) *control.Error {
	return Subject{Area: Delete, Verb: verb, Object: object}.Explain(err)
}

// NotMounted returns the error for a request that names a directory without a mount.
func NotMounted(verb, dir string) *control.Error {
	return &control.Error{
		Code: control.ExitNotMounted, Kind: control.CodeNotMounted, Verb: verb, Object: dir,
		Cause: "no artifactfs mount at this directory", Hint: "run artifactfs list to see the mounted directories",
	}
}

// Unsynced returns the error for a command that has succeeded, but could not push all changes to the session remote.
// err is the failure of the push, and dir the directory of the mount.
func Unsynced(verb, dir string, err error) *control.Error {
	e := ExplainSession(verb, dir, err)
	e.Cause = OneLine(e.Cause)
	if errors.Is(err, context.DeadlineExceeded) {
		e.Cause = ErrSlow.Error()
	}
	e.Code = control.ExitUnsynced
	// Replace only a general or a retryable code. With another code, the user has to change something before the next
	// attempt.
	if code := e.ErrorCode(); code == control.CodeFailed || code.Retryable() {
		e.Kind = control.CodeUnsynced
	}
	if e.Hint == "" || errors.Is(err, writeback.ErrMoved) {
		e.Hint = "all changes are stored on this host; run artifactfs status to see which are not pushed yet"
	}
	return e
}

// OneLine converts the text of a failed push, which has one cause on each line, into one line in which semicolons
// separate the causes.
func OneLine(causes string) string {
	return strings.ReplaceAll(strings.TrimPrefix(strings.TrimSpace(causes), "sync: "), "\n", "; ")
}

// findText returns the cause to be printed if a checkpoint was not found. The parameter object is the name that the
// user has typed.
func findText(object string, e *session.FindError) string {
	cause, tail, _ := strings.Cut(e.Err.Error(), ": ")
	switch {
	case errors.Is(e, session.ErrNoCheckpoint):
		cause = "no such checkpoint"
	case errors.Is(e, session.ErrAmbiguous):
		cause = "several checkpoints have this prefix"
	}
	if tail != "" {
		cause += ": " + tail
	}
	if !strings.Contains(object, e.Name) {
		cause = fmt.Sprintf("checkpoint %.80q: %s", e.Name, cause)
	}
	return cause
}
