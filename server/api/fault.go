package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/artifactfs/artifactfs/git/read"
	"github.com/artifactfs/artifactfs/server/access"
	"github.com/artifactfs/artifactfs/server/objects"
	"github.com/artifactfs/artifactfs/server/places"
	"github.com/artifactfs/artifactfs/server/quota"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/review"
	"github.com/artifactfs/artifactfs/session/cacheentry"
)

// Codes of errors, as in the reference.
const (
	codeAuthentication   = 10000
	codeInput            = 10100
	codeRepoName         = 10101
	codeTTL              = 10103
	codeURL              = 10104
	codeRemoteAuth       = 10106
	codeNotFound         = 10200
	codeExists           = 10201
	codeImportInProgress = 10302
	codeForkInProgress   = 10303
	codeInternal         = 10400
	codeUpstream         = 10401
)

// Codes of errors of the routes of this server only, which the reference does not have.
const (
	codeOwn       = 10900 // the first code of this server
	codeForbidden = 10900
	codeConflict  = 10901
	codeRefused   = 10902
	codeQuota     = 10903
)

// documentation is the prefix of the page of each code in the reference.
const documentation = "https://developers.cloudflare.com/artifacts/api/errors#"

// Fault is an error as a client receives it.
type Fault struct {
	Status  int // HTTP status
	Code    int
	Message string
	Pointer string // JSON pointer to the invalid field of the request, such as "/name"; "" if no field is invalid
}

func (f *Fault) Error() string { return fmt.Sprintf("%d %s", f.Code, f.Message) }

// item is an error in the list of errors of an answer.
type item struct {
	Code          int       `json:"code"`
	Message       string    `json:"message"`
	Documentation string    `json:"documentation_url,omitempty"`
	Source        *source   `json:"source,omitempty"`
	Conflict      *conflict `json:"conflict,omitempty"`
}

// conflict describes the state that does not allow an act: the files with conflicts, or the present value where another
// one was expected.
type conflict struct {
	Paths []string `json:"paths,omitempty"`
	Now   string   `json:"now,omitempty"`
}

type source struct {
	Pointer string `json:"pointer"`
}

func (f *Fault) item() item {
	i := item{Code: f.Code, Message: f.Message}
	if f.Code != codeAuthentication && f.Code < codeOwn {
		i.Documentation = documentation + strconv.Itoa(f.Code)
	}
	if f.Pointer != "" {
		i.Source = &source{f.Pointer}
	}
	return i
}

// invalid returns the fault for an invalid field of the request.
func invalid(field, format string, args ...any) *Fault {
	return &Fault{http.StatusBadRequest, codeInput, fmt.Sprintf(format, args...), "/" + field}
}

// missing returns the fault for an object that does not exist. what names the kind of object, such as "Repository".
func missing(what string) *Fault {
	return &Fault{http.StatusNotFound, codeNotFound, what + " not found", ""}
}

// exists returns the fault for a name that exists already.
func exists(format string, args ...any) *Fault {
	return &Fault{http.StatusConflict, codeExists, fmt.Sprintf(format, args...), ""}
}

// found returns the fault of missing(what) if err means that a record was not found, and err otherwise.
func found(what string, err error) error {
	if errors.Is(err, records.ErrNotFound) || errors.Is(err, read.ErrNotFound) {
		return missing(what)
	}
	return err
}

// statusClosed is the status in the audit log of a request whose client has closed the connection.
const statusClosed = 499

// faultOf returns the fault that a client receives for an error. log is true if the error is a fault of the server, and
// must be logged.
func faultOf(err error) (f *Fault, log bool) {
	var own *Fault
	var unknown *http.MaxBytesError
	var act *review.Problem
	var entry *cacheentry.ConflictError
	var exceeded quota.Exceeded
	switch {
	case errors.As(err, &own):
		return own, false
	case errors.As(err, &exceeded):
		return &Fault{exceeded.Status(), codeQuota, exceeded.Error(), ""}, false
	case errors.As(err, &act):
		return actFault(act), false
	case errors.As(err, &entry):
		return &Fault{http.StatusConflict, codeConflict, entry.Error(), ""}, false
	case cacheentry.Concerns(err):
		return entryFault(err), false
	case errors.As(err, &unknown):
		return &Fault{http.StatusRequestEntityTooLarge, codeInput,
			fmt.Sprintf("Request body has more than %d bytes", maxBody), ""}, false
	case errors.Is(err, access.ErrMissing), errors.Is(err, access.ErrInvalid):
		return &Fault{http.StatusUnauthorized, codeAuthentication, "Authentication error", ""}, false
	case errors.Is(err, access.ErrInsufficient):
		return &Fault{http.StatusForbidden, codeAuthentication, "Authentication error", ""}, false
	case errors.Is(err, records.ErrFull), errors.Is(err, objects.ErrFull):
		return &Fault{http.StatusInsufficientStorage, codeInternal, "The server has no space left", ""}, true
	case errors.Is(err, records.ErrUnavailable), errors.Is(err, objects.ErrUnavailable),
		errors.Is(err, context.DeadlineExceeded):
		return &Fault{http.StatusServiceUnavailable, codeUpstream, "Storage is unavailable", ""}, true
	case errors.Is(err, places.ErrBusy):
		return &Fault{http.StatusServiceUnavailable, codeUpstream, "Too many requests of this kind are in progress", ""},
			false
	case errors.Is(err, context.Canceled):
		return &Fault{statusClosed, codeInternal, "Request was canceled", ""}, false
	}
	return &Fault{http.StatusInternalServerError, codeInternal, "Internal error", ""}, true
}

// conflictOf returns the description of a conflict, or nil for all other errors. detail is the reason why an act was
// refused, for the audit log.
func conflictOf(err error) (c *conflict, detail string) {
	var act *review.Problem
	var entry *cacheentry.ConflictError
	switch {
	case errors.As(err, &act) && (len(act.Paths) > 0 || act.Now != ""):
		return &conflict{act.Paths, act.Now}, act.Text
	case act != nil:
		return nil, act.Text
	case errors.As(err, &entry) && entry.Present.Hash != "":
		return &conflict{Now: entry.Present.Hash}, ""
	}
	return nil, ""
}

// actFault returns the fault for an act that is not possible.
func actFault(p *review.Problem) *Fault {
	switch p.Kind {
	case review.Missing:
		return &Fault{http.StatusNotFound, codeNotFound, p.Error(), ""}
	case review.Forbidden:
		return &Fault{http.StatusForbidden, codeForbidden, p.Error(), ""}
	case review.Conflict:
		return &Fault{http.StatusConflict, codeConflict, p.Error(), ""}
	case review.Refused:
		return &Fault{http.StatusUnprocessableEntity, codeRefused, p.Error(), ""}
	}
	return &Fault{http.StatusBadRequest, codeInput, p.Error(), ""}
}

// entryFault returns the fault of an error that concerns a cache entry.
func entryFault(err error) *Fault {
	switch {
	case errors.Is(err, cacheentry.ErrNone):
		return missing("Entry")
	case errors.Is(err, cacheentry.ErrKey):
		return invalid("key", "%v", err)
	case errors.Is(err, cacheentry.ErrExpect):
		return invalid("expect", "%v", err)
	case errors.Is(err, cacheentry.ErrTooLarge):
		return &Fault{http.StatusRequestEntityTooLarge, codeInput, err.Error(), ""}
	}
	return &Fault{http.StatusConflict, codeConflict, err.Error(), ""}
}
