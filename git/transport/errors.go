package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"
	"unicode"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport/endpoint"
)

// An error of this package wraps at most one of the errors below. The text of an error names the remote and the cause,
// and never contains a secret.
var (
	ErrUnreachable = errors.New("remote unreachable")       // no route, lost connection, TLS, or status 5xx
	ErrAuth        = error(denied("authentication failed")) // no credentials, or the server refused them
	ErrForbidden   = error(denied("access forbidden"))      // the server refuses access, with or without a login
	ErrNotFound    = errors.New("no such repository")       // the repository does not exist, or the server hides it
	// ErrNoV2 means that the server speaks only protocol 0 or 1, or dumb HTTP.
	ErrNoV2 = errors.New("server does not support git protocol version 2")
	// the URL is invalid, so no request was sent
	ErrURL     = endpoint.ErrURL
	ErrStalled = errors.New("remote stalled")                                      // no byte arrived for Options.Stall
	errClosed  = errors.New("connection to the remote was closed by this program") // Remote.Close was called before
	// errAborted means that the caller closed FetchResponse.Pack before its end.
	errAborted = errors.New("pack was closed before its end")
	// an idle or spare connection was dead when it was used
	errHungUp = errors.New("server closed the connection before it answered")
	// the server sent bytes that no git server sends
	errProtocol = errors.New("server violated the git protocol")
)

// denied is an error that means that access was denied. For such an error, errors.Is(err, fs.ErrPermission) is true, so
// that callers can recognize the error without importing this package.
type denied string

// Error returns the message.
func (d denied) Error() string { return string(d) }

// Is reports whether target is fs.ErrPermission.
func (d denied) Is(target error) bool { return target == fs.ErrPermission }

// NotOurRef means that the server does not have the object ID, or does not serve it. The whole request fails if it
// wants one such object, so the caller must repeat the request without this object.
type NotOurRef struct{ ID object.ID }

// Error returns a message with the object's id.
func (e NotOurRef) Error() string { return "server does not have object " + e.ID.String() }

// RateLimited means that the server asks the client to pause. After is the length of the pause, or zero if the server
// does not state one.
type RateLimited struct{ After time.Duration }

// Error returns a message with the length of the pause, if the server states one.
func (e RateLimited) Error() string {
	if e.After == 0 {
		return "server limits the rate of requests"
	}
	return fmt.Sprintf("server limits the rate of requests: retry after %s", e.After)
}

// transient marks an error that may not occur again if the operation is repeated. The field after is the pause that the
// server asks for, or zero.
type transient struct {
	error
	after time.Duration
}

// Unwrap returns the error without the mark.
func (t transient) Unwrap() error { return t.error }

// fault wraps an I/O error as a transient ErrUnreachable, so that the operation is tried again. If the error is already
// transient, fault returns it unchanged.
func fault(err error) error {
	var t transient
	if err == nil || errors.As(err, &t) {
		return err
	}
	if errors.Is(err, context.DeadlineExceeded) { // this is a time-out of package net, not of the context
		return transient{error: fmt.Errorf("%w: %v", ErrUnreachable, err)}
	}
	return transient{error: fmt.Errorf("%w: %w", ErrUnreachable, err)}
}

// IsServerFault reports whether the server answered with bytes that violate the protocol, or with an error message.
func IsServerFault(err error) bool {
	var said remoteError
	return errors.Is(err, errProtocol) || errors.As(err, &said)
}

// isFault reports whether err is a transport fault: the server could not be reached, or no bytes arrived from it.
func isFault(err error) bool { return errors.Is(err, ErrStalled) || errors.Is(err, ErrUnreachable) }

// remoteError is an error message that the server has sent.
type remoteError struct{ text string }

// Error returns the server's message.
func (e remoteError) Error() string { return "server reported: " + e.text }

// parseRemoteError converts the text of an ERR packet or of side band 3 into an error. The protocol has no error codes;
// the only text that this client interprets is upload-pack's "not our ref <id>".
func parseRemoteError(text []byte) error {
	if _, rest, ok := bytes.Cut(text, []byte("not our ref ")); ok {
		if end := bytes.IndexAny(rest, " \r\n"); end >= 0 {
			rest = rest[:end]
		}
		if id, err := object.ParseID(string(rest)); err == nil {
			return NotOurRef{id}
		}
	}
	return remoteError{plain(text)}
}

// plain returns text of another program as one line for an error or a log: at most 300 bytes, with unprintable
// characters replaced.
func plain(text []byte) string {
	text = bytes.TrimSpace(text)
	const limit = 300
	if len(text) > limit {
		text = append(text[:limit:limit], "..."...)
	}
	return strings.Map(func(c rune) rune {
		if c == '\n' || c == '\t' {
			return ' '
		}
		if !unicode.IsPrint(c) {
			return '?'
		}
		return c
	}, string(text))
}

// brokenPipe marks an error that occurred while bytes were written to the server. The server's last message usually
// explains the failure better than this error.
type brokenPipe struct{ error }

// Unwrap returns the error of the write.
func (e brokenPipe) Unwrap() error { return e.error }

// isIO reports whether err was caused by a broken connection or a canceled context. Such an error is only a consequence
// of another error, which has broken the connection or canceled the context.
func isIO(err error) bool {
	var broken brokenPipe
	return errors.As(err, &broken) || errors.Is(err, context.Canceled)
}
