package control

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"syscall"
)

// Exit codes of the command line.
const (
	ExitDone       = 0
	ExitFailed     = 1
	ExitUsage      = 2
	ExitRemote     = 3 // remote unreachable, refused or not found
	ExitNotMounted = 4 // no such mount or session
	ExitUnsynced   = 5 // done, but not everything is on the session remote yet
)

// ErrorCode classifies an Error for programs. The set only grows: a program treats an unknown code
// as CodeFailed.
type ErrorCode string

const (
	CodeFailed      ErrorCode = "failed"       // none of the others
	CodeUsage       ErrorCode = "usage"        // wrong arguments, or a request that makes no sense
	CodeAuth        ErrorCode = "auth"         // the remote wants credentials, or does not accept those it got
	CodeRefused     ErrorCode = "refused"      // the remote denies this user access, or rejects a push
	CodeNotFound    ErrorCode = "not-found"    // no such repository, ref, commit, session, checkpoint or pin
	CodeNotMounted  ErrorCode = "not-mounted"  // nothing is mounted there, or the session is not mounted
	CodeUnreachable ErrorCode = "unreachable"  // no connection to the remote, or it broke
	CodeTimeout     ErrorCode = "timeout"      // no answer in time
	CodeRateLimited ErrorCode = "rate-limited" // the remote asks to be left alone for a while
	CodeConflict    ErrorCode = "conflict"     // something else exists there, or another process works on it
	CodeBusy        ErrorCode = "busy"         // in use by a process of this host
	CodeUnsynced    ErrorCode = "unsynced"     // done, but not everything is on the session remote yet
	CodeNoDaemon    ErrorCode = "no-daemon"    // no daemon answers
	CodePermission  ErrorCode = "permission"   // this host does not allow it
	CodeNoSpace     ErrorCode = "no-space"     // the disk or a quota is full
	CodeUnsupported ErrorCode = "unsupported"  // the daemon, the kernel or the remote lacks the feature
	CodeInterrupted ErrorCode = "interrupted"  // by a signal, or by the caller
)

// Retryable reports whether the same request can succeed later without any change by the user.
func (c ErrorCode) Retryable() bool {
	switch c {
	case CodeUnreachable, CodeTimeout, CodeRateLimited, CodeBusy, CodeUnsynced, CodeNoDaemon:
		return true
	}
	return false
}

// Error is a failure as a person reads it: one line `verb object: cause`, and a hint where there is
// one. It crosses the socket whole. Nothing in it may hold a secret.
type Error struct {
	Code   int       `json:"code"` // exit code
	Verb   string    `json:"verb,omitempty"`
	Object string    `json:"object,omitempty"`
	Cause  string    `json:"cause"`
	Hint   string    `json:"hint,omitempty"`
	Kind   ErrorCode `json:"kind,omitempty"` // "": what the exit code says, see ErrorCode
}

// Error returns one line, whatever the cause holds.
func (e *Error) Error() string {
	what := strings.TrimSpace(e.Verb + " " + e.Object)
	if what == "" {
		return oneLine(e.Cause)
	}
	return oneLine(what + ": " + e.Cause)
}

// ErrorCode returns Kind. An error without one, as those of older daemons are, has the code that
// its exit code implies.
func (e *Error) ErrorCode() ErrorCode {
	switch {
	case e.Kind != "":
		return e.Kind
	case e.Code == ExitUsage:
		return CodeUsage
	case e.Code == ExitNotMounted:
		return CodeNotMounted
	case e.Code == ExitUnsynced:
		return CodeUnsynced
	}
	return CodeFailed
}

// ErrorReport is the last line of output of a failed command with --json.
type ErrorReport struct {
	Error ReportedError `json:"error"`
}

// ReportedError is an Error as a program reads it.
type ReportedError struct {
	Code      ErrorCode `json:"code"`
	Message   string    `json:"message"` // one line
	Hint      string    `json:"hint"`    // what to do about it; "": nothing is known
	Retryable bool      `json:"retryable"`
}

// Report returns e as a command with --json prints it.
func (e *Error) Report() ErrorReport {
	code := e.ErrorCode()
	return ErrorReport{ReportedError{code, e.Error(), oneLine(e.Hint), code.Retryable()}}
}

// AsError returns the *Error in err, or makes one of its text with ExitFailed. It returns nil for
// nil.
func AsError(err error) *Error {
	var e *Error
	if err == nil {
		return nil
	}
	if errors.As(err, &e) {
		return e
	}
	e = &Error{Code: ExitFailed, Cause: err.Error()}
	switch {
	case errors.Is(err, context.Canceled):
		e.Cause, e.Kind = "interrupted", CodeInterrupted
	case errors.Is(err, context.DeadlineExceeded):
		e.Cause, e.Kind = "timed out", CodeTimeout
	case errors.Is(err, ErrNoServer):
		e.Kind = CodeNoDaemon
	case errors.Is(err, ErrInUse):
		e.Kind = CodeConflict
	default:
		e.Kind = systemCode(err)
	}
	return e
}

// systemCode returns the code of an error of the operating system; "" if there is none.
func systemCode(err error) ErrorCode {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return CodeNoSpace
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return CodePermission
	case errors.Is(err, syscall.EBUSY):
		return CodeBusy
	}
	return ""
}

// oneLine keeps a remote's text from drawing on the terminal: control characters become spaces.
func oneLine(s string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, s))
}
