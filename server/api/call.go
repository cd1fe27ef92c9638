package api

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/server/events"
	"github.com/artifactfs/artifactfs/server/records"
)

const (
	jsonType  = "application/json"
	bytesType = "application/octet-stream"
	textType  = "text/plain; charset=utf-8"
)

// answerTime is the maximum duration of a call, except for calls that stream.
const answerTime = time.Minute

// call is one request to a route, and its answer. It is used by one goroutine.
type call struct {
	a      *API
	w      http.ResponseWriter
	r      *http.Request
	route  *route
	params map[string]string
	token  records.Token
	of     records.Repo // repository in the path; set for routes whose field repo is true

	leave    func() // gives back the place of the body; nil: there is none
	status   int    // HTTP status of the answer; 0 until it is sent
	recorded bool   // whether the transaction of the change has written the audit entry
	detail   string // reason why an act was refused, for the audit entry
}

// answer is the body of every answer that does not send the contents of a file.
type answer struct {
	Result  any    `json:"result"`
	Success bool   `json:"success"`
	Errors  []item `json:"errors"`
	Message []item `json:"messages"`
	Info    any    `json:"result_info,omitempty"`
}

// serve authorizes the request, handles it, and writes the audit entry. id is the account in the path, or "" if the
// path has none.
func (c *call) serve(id string) {
	defer c.note()
	defer func() {
		if c.leave != nil {
			c.leave()
		}
	}()
	err := c.authorize(id)
	if err == nil {
		err = c.route.handle(c)
	}
	if err != nil {
		c.fail(err)
	}
}

// authorize checks the account, the names in the path, and the token.
func (c *call) authorize(id string) error {
	var err error
	switch {
	case c.route.repo:
		err = c.authorizeRepo()
	case c.route.tree == account:
		c.token, err = c.a.o.Guard.Control(c.r.Context(), c.r)
	default:
		c.token, err = c.a.o.Guard.Admin(c.r.Context(), c.r, c.params["namespace"], c.route.scope)
	}
	switch {
	case err != nil:
		return err
	case id != "" && !strings.EqualFold(id, c.a.o.Account):
		return &Fault{http.StatusForbidden, codeAuthentication, "Authentication error", ""}
	}
	if err := c.validNames(); err != nil {
		return err
	}
	return c.a.o.Quotas.Request(c.params["namespace"])
}

// authorizeRepo finds the repository in the path and checks the token, which may be a token of this repository. For a
// token that does not allow the namespace, the answer is the same whether or not the repository exists.
func (c *call) authorizeRepo() error {
	ctx := c.r.Context()
	t, err := c.a.o.Guard.Any(ctx, c.r)
	if err != nil {
		return err
	}
	of, err := c.a.o.Records.Repos.Get(ctx, c.params["namespace"], c.params["name"])
	none := errors.Is(err, records.ErrNotFound)
	if none {
		of = records.Repo{Namespace: c.params["namespace"]}
	} else if err != nil {
		return err
	}
	if t.Role == records.RepoToken {
		c.token, err = c.a.o.Guard.Git(ctx, c.r, of, c.route.scope)
	} else {
		c.token, err = c.a.o.Guard.Admin(ctx, c.r, c.params["namespace"], c.route.scope)
	}
	if err != nil {
		return err
	}
	if err := c.validNames(); err != nil {
		return err
	}
	if c.of = of; none {
		return missing("Repository")
	}
	return nil
}

// validNames returns a fault if a name in the path is not valid. Names with encoded slashes, and "..", are not valid
// either.
func (c *call) validNames() error {
	if ns, ok := c.params["namespace"]; ok {
		if f := validNamespace(ns); f != nil {
			return f
		}
	}
	if name, ok := c.params["name"]; ok {
		if f := validRepo(name); f != nil {
			return f
		}
	}
	return nil
}

// fail sends an error as the answer, unless an answer has begun.
func (c *call) fail(err error) {
	f, log := faultOf(err)
	// the client cannot receive an error, because it has closed the connection
	if c.status != 0 && c.r.Context().Err() != nil {
		log = false
	}
	if log {
		c.a.o.Log.Error("could not serve a request", zap.String("method", c.r.Method), zap.String("path", c.r.URL.Path),
			zap.Error(err))
	}
	if c.status != 0 {
		// Abort the connection, because only this shows the client that the contents are incomplete.
		panic(http.ErrAbortHandler)
	}
	if c.status = f.Status; f.Status == statusClosed {
		return
	}
	c.recorded = false // the transaction that would have written the entry was rolled back, if there was one
	if f.Status == http.StatusServiceUnavailable {
		c.w.Header().Set("Retry-After", "1")
	}
	if f.Status == http.StatusUnauthorized {
		c.w.Header().Set("WWW-Authenticate", "Bearer")
	}
	i := f.item()
	i.Conflict, c.detail = conflictOf(err)
	c.write(f.Status, answer{Errors: []item{i}, Message: []item{}})
}

// send sends a result. info describes the page of a list; it is nil for other results.
func (c *call) send(status int, result, info any) error {
	c.write(status, answer{Result: result, Success: true, Errors: []item{}, Message: []item{}, Info: info})
	return nil
}

func (c *call) write(status int, a answer) {
	text, err := json.Marshal(a)
	if err != nil {
		panic(err) // cannot happen, because answers consist of strings, numbers and structs
	}
	h := c.w.Header()
	h.Set("Content-Type", jsonType)
	h.Set("Content-Length", strconv.Itoa(len(text)))
	h.Set("Cache-Control", "no-store")
	c.status = status
	deadline(c.w, time.Now().Add(patience))
	c.w.WriteHeader(status)
	_, _ = c.w.Write(text) // an error means that the client has closed the connection
}

// empty sends an answer without a body.
func (c *call) empty(status int) error {
	c.status = status
	deadline(c.w, time.Now().Add(patience))
	c.w.WriteHeader(status)
	return nil
}

// deadline sets the time until which the client must have received the answer. An error is ignored, because the writers
// of tests have no deadlines.
func deadline(w http.ResponseWriter, at time.Time) {
	_ = http.NewResponseController(w).SetWriteDeadline(at)
}

// context returns a context with a time limit for reads and changes of records.
func (c *call) context() (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.r.Context(), answerTime)
}

// cause returns the cause of a change that the call makes. The transaction of the change then writes the audit entry of
// the call.
func (c *call) cause() records.Cause {
	c.recorded = true
	return c.who()
}

func (c *call) who() records.Cause {
	actor := c.token.Actor
	if actor == "" {
		actor = c.token.Label
	}
	remote, _, err := net.SplitHostPort(c.r.RemoteAddr)
	if err != nil {
		remote = c.r.RemoteAddr
	}
	return records.Cause{TokenID: c.token.ID, Actor: actor, Remote: remote, Method: c.r.Method,
		Target: c.r.URL.EscapedPath()}
}

// stamp returns the stamp for the events of a change that the call makes.
func (c *call) stamp() events.Stamp { return events.ByToken(c.a.o.Account, c.token) }

// note writes the audit entry of the call, unless a transaction has written it.
func (c *call) note() {
	if !c.recorded {
		c.a.o.Meter.Audit(records.AuditEntry{Time: c.a.o.Now(), Cause: c.who(), Result: c.status, Detail: c.detail})
	}
}

// count adds an operation on a repository to the usage.
func (c *call) count(r records.Repo, operation string, bytes int64) {
	c.a.o.Meter.Count(r, operation, bytes)
}

// repo returns the repository in the path.
func (c *call) repo() (records.Repo, error) {
	r, err := c.a.o.Records.Repos.Get(c.r.Context(), c.params["namespace"], c.params["name"])
	return r, found("Repository", err)
}

// ready returns the repository in the path, or a fault if its objects are not complete.
func (c *call) ready() (records.Repo, error) {
	r, err := c.repo()
	if err != nil {
		return r, err
	}
	return r, unfinished(r)
}

// unfinished returns a fault if the repository is being imported or forked, and nil otherwise.
func unfinished(r records.Repo) error {
	switch r.Status {
	case records.Importing:
		return &Fault{http.StatusConflict, codeImportInProgress, "Repository import is in progress", ""}
	case records.Forking:
		return &Fault{http.StatusConflict, codeForkInProgress, "Repository fork is in progress", ""}
	}
	return nil
}

// remote returns the URL by which git uses a repository.
func (c *call) remote(r records.Repo) string {
	return c.base() + "/git/" + r.Namespace + "/" + r.Name + ".git"
}

// base returns the URL of the server.
func (c *call) base() string {
	if c.a.o.URL != "" {
		return c.a.o.URL
	}
	scheme := "http"
	if c.r.TLS != nil {
		scheme = "https"
	}
	return scheme + "://" + c.r.Host
}

// isExists reports whether err means that a name exists already.
func isExists(err error) bool { return errors.Is(err, records.ErrExists) }
