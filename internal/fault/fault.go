// Package fault turns the causes of failures into the errors that users and programs read: an error code, an exit status, a cause
// in plain words, and a hint at what to type. One table has all of it. The causes that several packages of the daemon share are
// declared here, too; all others belong to the package that reports them.
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

// Area is the part of the program that reports a failure. Some causes have another hint in one area than elsewhere.
type Area uint16

// The areas. A Subject has one; a row of the table may name several.
const (
	General   Area = 1 << iota
	Session        // checkpoints and sessions of this host
	SessionAt      // the same, perhaps on a session remote
	List           // lists of a session remote
	Mount
	Resume // of a session that is to be mounted, or of its checkpoint
	Switch
	Restore
	Delete // of a session, and its restoring
)

// Subject is what failed, and what the hints need to know of it.
type Subject struct {
	Area         Area
	Verb, Object string // as printed: "verb object: cause"

	Checkpoint string // object in place of Object, if there is no such checkpoint; "": Object
	Remote     string // mounted remote without secrets: object in place of Object, if it is the remote that failed
	Session    string
	Ref        string // branch or commit that was asked for
	ID         string // checkpoint that was asked for
	GitDir     string
	Far        bool // the session was looked for on a session remote
}

// Explain returns err with its code, exit status and hint.
func Explain(verb, object string, err error) *control.Error {
	return Subject{Area: General, Verb: verb, Object: object}.Explain(err)
}

// ExplainSession is Explain for checkpoints and sessions of this host.
func ExplainSession(verb, object string, err error) *control.Error {
	return Subject{Area: Session, Verb: verb, Object: object}.Explain(err)
}

// ExplainSessionAt is Explain for checkpoints and sessions that may be on a session remote.
func ExplainSessionAt(verb, object string, err error) *control.Error {
	return Subject{Area: SessionAt, Verb: verb, Object: object}.Explain(err)
}

// Explain returns err with its code, exit status and hint. An err that is a *control.Error already is returned as it is, but for
// the remote of a mount and the branch of a switch, which are named as the user named them.
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

func (s Subject) explain(err error) *control.Error {
	if s.Checkpoint != "" && (errors.Is(err, session.ErrNoPoint) || errors.Is(err, session.ErrAmbiguous)) {
		s.Object = s.Checkpoint
	}
	// Most errors begin with what was done to what.
	e := &control.Error{Code: control.ExitFailed, Verb: s.Verb, Object: s.Object, Cause: strings.TrimPrefix(err.Error(), s.Verb+" "+s.Object+": ")}
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

// ExplainDelete is Explain for deleted sessions and those that are to be deleted.
func ExplainDelete(verb, object string, err error) *control.Error {
	return Subject{Area: Delete, Verb: verb, Object: object}.Explain(err)
}

// NotMounted returns the error of a request for a directory without a mount.
func NotMounted(verb, dir string) *control.Error {
	return &control.Error{
		Code: control.ExitNotMounted, Kind: control.CodeNotMounted, Verb: verb, Object: dir,
		Cause: "no artifactfs mount there", Hint: "artifactfs list shows what is mounted",
	}
}

// Unsynced returns the error of a command that was done, but not everything is on the session remote.
func Unsynced(verb, dir string, err error) *control.Error {
	e := ExplainSession(verb, dir, err)
	e.Cause = OneLine(e.Cause)
	if errors.Is(err, context.DeadlineExceeded) {
		e.Cause = ErrSlow.Error()
	}
	e.Code = control.ExitUnsynced
	if code := e.ErrorCode(); code == control.CodeFailed || code.Retryable() { // else something has to be changed first
		e.Kind = control.CodeUnsynced
	}
	if e.Hint == "" || errors.Is(err, writeback.ErrMoved) {
		e.Hint = "everything is kept on this host; artifactfs status shows what is not pushed yet"
	}
	return e
}

// OneLine joins the causes of a failed push, which are a line each.
func OneLine(causes string) string {
	return strings.ReplaceAll(strings.TrimPrefix(strings.TrimSpace(causes), "sync: "), "\n", "; ")
}

// findText returns the cause of a checkpoint that was not found. object is what was asked for.
func findText(object string, e *session.FindError) string {
	cause, tail, _ := strings.Cut(e.Err.Error(), ": ")
	switch {
	case errors.Is(e, session.ErrNoPoint):
		cause = "there is no such checkpoint"
	case errors.Is(e, session.ErrAmbiguous):
		cause = "several checkpoints begin with that"
	}
	if tail != "" {
		cause += ": " + tail
	}
	if !strings.Contains(object, e.Name) {
		cause = fmt.Sprintf("checkpoint %.80q: %s", e.Name, cause)
	}
	return cause
}
