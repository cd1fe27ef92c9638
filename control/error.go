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
	ExitRemote     = 3 // the remote is unreachable, denies access, or does not exist
	ExitNotMounted = 4 // there is no such mount or session
	ExitUnsynced   = 5 // the command succeeded, but not everything is on the session remote yet
)

// ErrorCode classifies an Error for programs. New codes may be added; no code is ever removed. A program must treat an
// unknown code as CodeFailed.
type ErrorCode string

const (
	CodeFailed ErrorCode = "failed" // none of the other codes applies
	CodeUsage  ErrorCode = "usage"  // the arguments or the request are invalid
	// the remote requires credentials, or refuses the credentials that were sent
	CodeAuth        ErrorCode = "auth"
	CodeRefused     ErrorCode = "refused"      // the remote denies this user access, or rejects a push
	CodeNotFound    ErrorCode = "not-found"    // there is no such repository, ref, commit, session, checkpoint or pin
	CodeNotMounted  ErrorCode = "not-mounted"  // nothing is mounted at the directory, or the session is not mounted
	CodeUnreachable ErrorCode = "unreachable"  // the remote could not be reached, or the connection broke
	CodeTimeout     ErrorCode = "timeout"      // no answer arrived in time
	CodeRateLimited ErrorCode = "rate-limited" // the remote accepts no more requests for a while
	CodeConflict    ErrorCode = "conflict"     // the path or name is already used, or others have changed the files
	CodeBusy        ErrorCode = "busy"         // a process on this host uses an object that the request would change
	CodeUnsynced    ErrorCode = "unsynced"     // the command succeeded, but not everything is on the session remote yet
	CodeNoDaemon    ErrorCode = "no-daemon"    // no daemon answers
	CodePermission  ErrorCode = "permission"   // this host denies permission
	CodeNoSpace     ErrorCode = "no-space"     // the disk or a quota is full
	CodeUnsupported ErrorCode = "unsupported"  // the daemon, the kernel or the remote does not support the feature
	CodeInterrupted ErrorCode = "interrupted"  // a signal or the caller has canceled the command
)

// Retryable reports whether the same request may succeed later without any action of the user.
func (c ErrorCode) Retryable() bool {
	switch c {
	case CodeUnreachable, CodeTimeout, CodeRateLimited, CodeBusy, CodeUnsynced, CodeNoDaemon:
		return true
	}
	return false
}

// Error is a failure in the form that is shown to the user: one line `verb object: cause`, and optionally a hint. It is
// sent over the socket with all of its fields, so no field may contain a secret.
type Error struct {
	Code   int    `json:"code"`             // exit code of the command line
	Verb   string `json:"verb,omitempty"`   // operation that failed, such as "mount"
	Object string `json:"object,omitempty"` // object of the operation, such as a URL or a directory
	Cause  string `json:"cause"`            // reason of the failure
	Hint   string `json:"hint,omitempty"`   // advice to the user
	// Kind classifies the failure. Older daemons leave it empty; the kind of their errors is derived from Code (2: usage,
	// 4: not-mounted, 5: unsynced, others: failed).
	Kind ErrorCode `json:"kind,omitempty"`
}

// Error returns `verb object: cause` as one line, even if the cause has several lines.
func (e *Error) Error() string {
	what := strings.TrimSpace(e.Verb + " " + e.Object)
	if what == "" {
		return oneLine(e.Cause)
	}
	return oneLine(what + ": " + e.Cause)
}

// ErrorCode returns e.Kind. Errors of older daemons have no Kind; for these, ErrorCode derives the result from the exit
// code.
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

// ErrorReport is the last line that a failed command with --json prints.
type ErrorReport struct {
	Error ReportedError `json:"error"` // the error
}

// ReportedError is an Error in the form that programs read.
type ReportedError struct {
	Code      ErrorCode `json:"code"`      // kind of the error
	Message   string    `json:"message"`   // one line: verb, object and cause
	Hint      string    `json:"hint"`      // advice to the user; "": there is no advice
	Retryable bool      `json:"retryable"` // the same request may succeed later
}

// Report returns e in the form in which a command with --json prints it.
func (e *Error) Report() ErrorReport {
	code := e.ErrorCode()
	return ErrorReport{ReportedError{code, e.Error(), oneLine(e.Hint), code.Retryable()}}
}

// AsError returns the *Error that err is or wraps. For any other error, it returns an *Error with the text of err and
// ExitFailed. It returns nil if err is nil.
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

// systemCode returns the code for an error of the operating system; "" if err is not such an error.
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

// oneLine replaces control characters by spaces, so that a text from a remote cannot manipulate the terminal.
func oneLine(s string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, s))
}
