package githttp

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/server/access"
	"github.com/artifactfs/artifactfs/server/objects"
	"github.com/artifactfs/artifactfs/server/places"
	"github.com/artifactfs/artifactfs/server/quota"
	"github.com/artifactfs/artifactfs/server/receive"
	"github.com/artifactfs/artifactfs/server/records"
)

// refusal is an answer with a status other than 200.
type refusal struct {
	status int
	text   string
}

func (r refusal) Error() string { return r.text }

// errTooLarge means that a body is over its limit.
var errTooLarge = errors.New("request is too large")

// refusalFor returns the answer to a request that has failed with err. ours is true if the server has caused the
// failure.
func refusalFor(err error) (answer refusal, ours bool) {
	var git *gitcmd.Error
	var exceeded quota.Exceeded
	switch {
	case errors.As(err, &exceeded):
		return refusal{exceeded.Status(), exceeded.Error()}, false
	case errors.As(err, &answer):
		return answer, false
	case errors.Is(err, access.ErrMissing):
		return refusal{http.StatusUnauthorized, "Authentication required"}, false
	case errors.Is(err, access.ErrInvalid), errors.Is(err, records.ErrRevoked):
		return refusal{http.StatusForbidden, access.ErrInvalid.Error()}, false
	case errors.Is(err, access.ErrInsufficient):
		return refusal{http.StatusForbidden, access.ErrInsufficient.Error()}, false
	case errors.Is(err, places.ErrBusy):
		return refusal{http.StatusServiceUnavailable, "Too many requests are in progress"}, false
	case unavailable(err):
		return refusal{http.StatusServiceUnavailable, "Service Unavailable"}, true
	case errors.Is(err, records.ErrFull), errors.Is(err, objects.ErrFull):
		return refusal{http.StatusInsufficientStorage, "The server has no space left"}, true
	case errors.Is(err, records.ErrNotFound):
		return refusal{http.StatusNotFound, "Repository not found"}, false
	case errors.Is(err, receive.ErrRequest):
		return refusal{http.StatusBadRequest, "Bad Request"}, false
	case errors.Is(err, errWork):
		return refusal{http.StatusRequestEntityTooLarge, errWork.Error()}, false
	case errors.Is(err, errTooLarge):
		return refusal{http.StatusRequestEntityTooLarge, "The request is too large"}, false
	case errors.Is(err, errSlow):
		return refusal{http.StatusRequestTimeout,
			"The request is too slow: the connection must carry at least 2 KiB a second"}, false
	case errors.Is(err, errTime), errors.Is(err, errClient), errors.Is(err, context.Canceled):
		return refusal{http.StatusRequestTimeout, "Request Timeout"}, false
	case errors.As(err, &git):
		return refusal{http.StatusBadRequest, "git has refused the request"}, true
	}
	return refusal{http.StatusInternalServerError, "Internal Server Error"}, true
}

// because returns the cause for which ctx has ended. If ctx has not ended, it returns err.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// refuse answers a request that has failed before any part of the answer was written.
func (e *exchange) refuse(err error) {
	answer, ours := refusalFor(err)
	if ours {
		e.report(err)
	}
	h := e.w.Header()
	h.Del("Content-Encoding")
	switch answer.status {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", access.Challenge)
	case http.StatusServiceUnavailable:
		h.Set("Retry-After", "1")
	case http.StatusTooManyRequests:
		h.Set("Retry-After", "60")
	}
	e.audit(answer.status, "")
	_ = e.rc.SetWriteDeadline(time.Now().Add(e.s.limits.Idle))
	http.Error(e.w, answer.text, answer.status)
}

// report logs a failure. Most failures of git are caused by the client, which for example requests an object that does
// not exist.
func (e *exchange) report(err error) {
	level := zap.WarnLevel
	if exited(err) {
		level = zap.InfoLevel
	}
	e.s.o.Log.Log(level, "git request failed", zap.String("path", e.r.URL.EscapedPath()), zap.Error(err))
}

// audit writes the audit entry of the request, unless the request has changed refs: then the transaction of the change
// has written the entry.
func (e *exchange) audit(status int, detail string) {
	e.s.o.Meter.Audit(records.AuditEntry{Cause: e.cause(), Result: status, Detail: detail})
}

// refuseLFS answers requests of git-lfs with a refusal in the form of the LFS API.
func (e *exchange) refuseLFS() {
	_ = e.rc.SetWriteDeadline(time.Now().Add(e.s.limits.Idle))
	e.w.Header().Set("Content-Type", "application/vnd.git-lfs+json")
	e.w.WriteHeader(http.StatusNotImplemented)
	_ = json.NewEncoder(e.w).Encode(map[string]string{
		"message": "This server does not store git-lfs objects: set lfs.url to a server that does, or commit the files without git-lfs",
	})
}

// isProtocol reports whether the value of the header Git-Protocol can be passed to git.
func isProtocol(s string) bool {
	return len(s) <= 256 && strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) < 0
}
