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

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/transport/endpoint"
)

// Errors of this package wrap at most one of these. Their text names the remote and the cause, and
// never holds a secret.
var (
	ErrUnreachable = errors.New("remote unreachable")            // name, route, connection, TLS, 5xx, cut in mid-answer
	ErrAuth        = error(denied("authentication failed"))      // no credentials, or they were refused
	ErrForbidden   = error(denied("access forbidden"))           // authenticated or not, it is not allowed
	ErrNotFound    = errors.New("no such repository")            // or one that the server hides
	ErrNoV2        = errors.New("no git protocol version 2")     // protocol 0 or 1, or a dumb HTTP server
	ErrURL         = endpoint.ErrURL                             // no request was sent
	ErrStalled     = errors.New("remote stalled")                // no byte for Options.Stall
	errClosed      = errors.New("remote is closed")              // after Remote.Close
	errAborted     = errors.New("closed before its end")         // FetchResponse.Pack, by its reader
	errHungUp      = errors.New("closed before the answer")      // a connection that was open before it was needed
	errProtocol    = errors.New("server broke the git protocol") // bytes no git server sends
)

// denied is an error of authorisation. It is fs.ErrPermission for callers that do not import this
// package.
type denied string

// Error returns the text.
func (d denied) Error() string { return string(d) }

// Is reports whether target is fs.ErrPermission.
func (d denied) Is(target error) bool { return target == fs.ErrPermission }

// NotOurRef means that the server does not have, or does not serve, an object. One such want fails
// the whole request: repeat it without the object.
type NotOurRef struct{ ID object.ID }

func (e NotOurRef) Error() string { return "server does not have object " + e.ID.String() }

// RateLimited means that the server asks for a pause. After is zero if it does not say how long.
type RateLimited struct{ After time.Duration }

func (e RateLimited) Error() string {
	if e.After == 0 {
		return "server limits the rate of requests"
	}
	return fmt.Sprintf("server limits the rate of requests, asks to wait %s", e.After)
}

// transient marks a fault that another attempt may avoid. after is how long the server asks to
// wait.
type transient struct {
	error
	after time.Duration
}

func (t transient) Unwrap() error { return t.error }

// fault returns an I/O error as an ErrUnreachable that is worth another attempt.
func fault(err error) error {
	var t transient
	if err == nil || errors.As(err, &t) {
		return err
	}
	if errors.Is(err, context.DeadlineExceeded) { // net's own time-outs claim to be one; the caller's context did not end
		return transient{error: fmt.Errorf("%w: %v", ErrUnreachable, err)}
	}
	return transient{error: fmt.Errorf("%w: %w", ErrUnreachable, err)}
}

// IsServerFault reports whether a server answered with bytes outside the protocol, or with an error
// of its own.
func IsServerFault(err error) bool {
	var said remoteError
	return errors.Is(err, errProtocol) || errors.As(err, &said)
}

// isFault reports whether err is a fault of the network and not an answer of the server.
func isFault(err error) bool { return errors.Is(err, ErrStalled) || errors.Is(err, ErrUnreachable) }

// remoteError is an error message of the server.
type remoteError struct{ text string }

func (e remoteError) Error() string { return "server says: " + e.text }

// parseRemoteError parses the text of an ERR packet or of side band 3. The protocol has no error
// codes; only upload-pack's "not our ref <id>" has to be understood.
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

// plain makes text of another program fit for one line of an error or log.
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

// brokenPipe marks an error of writing to the server, for which the server's last message is the
// better explanation.
type brokenPipe struct{ error }

func (e brokenPipe) Unwrap() error { return e.error }

// isIO reports whether err only follows from another error: a broken connection or a canceled context.
func isIO(err error) bool {
	var broken brokenPipe
	return errors.As(err, &broken) || errors.Is(err, context.Canceled)
}
