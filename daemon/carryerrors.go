package daemon

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/transcript"
	"github.com/artifactfs/artifactfs/session/writeback"
	"github.com/artifactfs/artifactfs/statedir"
)

// explainCarry returns an error of checkpoints and sessions with its exit code, its error code and a hint.
func explainCarry(verb, thing string, err error) *control.Error {
	e := explain(verb, thing, err)
	explainHeld(e, err)
	var change *session.TransitionError
	var line *transcript.LineError
	var used statedir.InUseError
	var mounted sessionMountedError
	var find *session.FindError
	if errors.As(err, &find) {
		e.Cause = findText(thing, find)
	}
	if code := carryCode(err); code != "" {
		e.Kind = code
	}
	switch {
	case errors.Is(err, statedir.ErrNoSession), errors.Is(err, session.ErrNoMeta):
		e.Code, e.Hint = control.ExitNotMounted, "artifactfs session list shows those that there are"
	case errors.Is(err, session.ErrNoPoint):
		e.Code, e.Hint = control.ExitNotMounted, "artifactfs session log lists them"
	case errors.Is(err, session.ErrAmbiguous):
		e.Code, e.Hint = control.ExitUsage, "use a longer prefix of the id"
	case errors.Is(err, errNothingCarried):
		e.Code, e.Hint = control.ExitNotMounted, "artifactfs checkpoint makes one"
	case errors.Is(err, session.ErrNoPin):
		e.Code, e.Hint = control.ExitNotMounted, "artifactfs session log shows those that there are"
	case errors.Is(err, errNoCarry):
		e.Hint = "mount it without --read-only and with a --session-remote other than none"
	case errors.As(err, &change), errors.As(err, &line), errors.Is(err, transcript.ErrNoCommit), errors.Is(err, transcript.ErrNotesRef),
		errors.Is(err, transcript.ErrNotJSON):
		e.Code = control.ExitUsage
	case errors.As(err, &mounted):
		e.Hint = "artifactfs unmount " + mounted.dir + " ends that"
	case errors.As(err, &used):
		e.Hint = "ask the daemon that serves it, or unmount it"
	}
	return e
}

// carryCode returns the code of a failure that only checkpoints and sessions have; "" for any other.
func carryCode(err error) control.ErrorCode {
	var change *session.TransitionError
	var line *transcript.LineError
	var used statedir.InUseError
	var mounted sessionMountedError
	var held *session.HeldError
	switch {
	case errors.Is(err, statedir.ErrNoSession), errors.Is(err, session.ErrNoMeta), errors.Is(err, session.ErrNoPoint), errors.Is(err, errNothingCarried),
		errors.Is(err, session.ErrNoPin), errors.Is(err, transcript.ErrNoCommit):
		return control.CodeNotFound
	case errors.Is(err, session.ErrAmbiguous), errors.As(err, &line), errors.Is(err, transcript.ErrNotesRef), errors.Is(err, transcript.ErrNotJSON):
		return control.CodeUsage
	case errors.As(err, &held), errors.As(err, &change), errors.As(err, &mounted), errors.As(err, &used), errors.Is(err, session.ErrClosed),
		errors.Is(err, session.ErrMoved):
		return control.CodeConflict
	case errors.Is(err, errNoCarry):
		return control.CodeUnsupported
	}
	return ""
}

// findText says in users' words that a checkpoint was not found; thing is what was asked for.
func findText(thing string, e *session.FindError) string {
	what, tail, _ := strings.Cut(e.Err.Error(), ": ")
	switch {
	case errors.Is(e, session.ErrNoPoint):
		what = "there is no such checkpoint"
	case errors.Is(e, session.ErrAmbiguous):
		what = "several checkpoints begin with that"
	}
	if tail != "" {
		what += ": " + tail
	}
	if !strings.Contains(thing, e.Name) {
		what = fmt.Sprintf("checkpoint %.80q: %s", e.Name, what)
	}
	return what
}

// sessionMountedError says that something cannot be done with a session while it is mounted.
type sessionMountedError struct{ dir string }

func (e sessionMountedError) Error() string { return "it is mounted at " + e.dir }

// explainHeld tells what can be done about a session that this mount cannot write to; false: that is not it.
func explainHeld(e *control.Error, err error) bool {
	var held *session.HeldError
	switch {
	case errors.As(err, &held):
		e.Hint = "artifactfs session fork starts a new session from its newest checkpoint; --take-over resumes this one anyway"
	case errors.Is(err, session.ErrClosed):
		e.Hint = "artifactfs session reopen opens it again; --session NAME begins other work"
	default:
		return false
	}
	return true
}

// unsynced says that not all is on the session remote.
func unsynced(verb, dir string, err error) *control.Error {
	e := explainCarry(verb, dir, err)
	e.Cause = unsyncedText(e.Cause)
	if errors.Is(err, context.DeadlineExceeded) {
		e.Cause = errSlow.Error()
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

// unsyncedText puts several reasons, a line each, on one.
func unsyncedText(why string) string {
	return strings.ReplaceAll(strings.TrimPrefix(strings.TrimSpace(why), "sync: "), "\n", "; ")
}
