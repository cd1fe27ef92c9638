package client

import (
	"errors"
	"fmt"
	"net/http"
	"time"
)

var (
	// ErrUnreachable means that no server answered at the address.
	ErrUnreachable = errors.New("server cannot be reached")
	// ErrNotFound, ErrExists, ErrDenied, ErrInvalid and ErrUnavailable are classes of failures: errors.Is(err,
	// ErrNotFound) reports whether err is an *Error of this class.
	ErrNotFound    = errors.New("not found")
	ErrExists      = errors.New("already exists")
	ErrDenied      = errors.New("access denied")
	ErrInvalid     = errors.New("invalid request")
	ErrUnavailable = errors.New("server is unavailable")
)

// These are the values of Error.Code.
const (
	CodeInvalidInput        = 10100
	CodeInvalidRepoName     = 10101
	CodeInvalidTTL          = 10103
	CodeInvalidURL          = 10104
	CodeRemoteAuthRequired  = 10106
	CodeNotFound            = 10200
	CodeAlreadyExists       = 10201
	CodeImportInProgress    = 10302
	CodeForkInProgress      = 10303
	CodeInternal            = 10400
	CodeUpstreamUnavailable = 10401
	CodeMemoryLimit         = 10402
	CodeForbidden           = 10900 // the token does not allow the request
	CodeConflict            = 10901 // the state of the repository does not allow the request
	CodeRefused             = 10902 // the policy of the repository does not allow the request
	CodeQuota               = 10903 // a quota of the namespace is used up
)

// Error is a failure that the server has reported in its answer.
type Error struct {
	Verb    string // the operation that has failed, such as "create"
	Object  string // the object of the operation, such as "repository team/app"
	Status  int    // HTTP status of the answer
	Code    int    // one of the constants Code...; 0 if the answer has no code
	Message string
	Pointer string // JSON pointer to the invalid field of the request, such as "/name"; "" if there is none
	// Conflict describes the state that does not allow the request; nil for most errors.
	Conflict *Conflict
	// RetryAfter is the time after which the request can be repeated, from the header Retry-After; 0 if there is none.
	RetryAfter time.Duration
}

// Conflict describes the state of a repository that keeps the server from making a requested change.
type Conflict struct {
	Paths []string `json:"paths"` // files with conflicts
	Now   string   `json:"now"`   // present value, if the request stated another one as expected
}

// Error returns a text of the form "verb object: message".
func (e *Error) Error() string {
	text := e.Message
	if e.Pointer != "" {
		text += " (" + e.Pointer + ")"
	}
	return fmt.Sprintf("%s %s: %s", e.Verb, e.Object, text)
}

// Is reports whether the error belongs to the class target, which is one of ErrNotFound, ErrExists, ErrDenied,
// ErrInvalid and ErrUnavailable.
func (e *Error) Is(target error) bool {
	switch target {
	case ErrNotFound:
		return e.Status == http.StatusNotFound
	case ErrExists:
		return e.Code == CodeAlreadyExists
	case ErrDenied:
		return e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden
	case ErrInvalid:
		return e.Status == http.StatusBadRequest
	case ErrUnavailable:
		return e.Status == http.StatusServiceUnavailable
	}
	return false
}
