package control

import (
	"context"
	"errors"
	"strings"
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

// Error is a failure as a person reads it: one line `verb object: cause`, and a hint where there is one. It
// crosses the socket whole. Nothing in it may hold a secret.
type Error struct {
	Code   int    `json:"code"` // exit code
	Verb   string `json:"verb,omitempty"`
	Object string `json:"object,omitempty"`
	Cause  string `json:"cause"`
	Hint   string `json:"hint,omitempty"`
}

// Error gives one line, whatever the cause holds.
func (e *Error) Error() string {
	what := strings.TrimSpace(e.Verb + " " + e.Object)
	if what == "" {
		return oneLine(e.Cause)
	}
	return oneLine(what + ": " + e.Cause)
}

// AsError finds the *Error in err, or makes one of its text with ExitFailed. A nil err gives nil.
func AsError(err error) *Error {
	var e *Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &e):
		return e
	case errors.Is(err, context.Canceled):
		return &Error{Code: ExitFailed, Cause: "interrupted"}
	case errors.Is(err, context.DeadlineExceeded):
		return &Error{Code: ExitFailed, Cause: "timed out"}
	}
	return &Error{Code: ExitFailed, Cause: err.Error()}
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
