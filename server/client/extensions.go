package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Extensions has the methods for the extensions of the API by artifactfs serve. With other servers, they return an
// *Error of the class ErrNotFound.
type Extensions struct{ c *Client }

// Extensions returns the methods for the extensions of the API by artifactfs serve.
func (c *Client) Extensions() Extensions { return Extensions{c} }

// Ref is a ref with its full name and its object id.
type Ref struct {
	Name string `json:"name"`
	Hash string `json:"hash"`
}

// Refs yields the refs of a repository whose names begin with prefix, sorted by name. It requests a page of the list
// when it is needed, and ends after an error.
func (x Extensions) Refs(ctx context.Context, namespace, name, prefix string) iter.Seq2[Ref, error] {
	q := url.Values{}
	if prefix != "" {
		q.Set("prefix", prefix)
	}
	return func(yield func(Ref, error) bool) {
		for {
			var all []Ref
			info, err := x.extend(ctx, request{verb: "list", object: "refs of " + namespace + "/" + name, query: q}, &all,
				"namespaces", namespace, "repos", name, "refs")
			if err != nil {
				yield(Ref{}, err)
				return
			}
			for _, r := range all {
				if !yield(r, nil) {
					return
				}
			}
			if info.Cursor == "" {
				return
			}
			q.Set("cursor", info.Cursor)
		}
	}
}

// Diff describes the differences between two commits.
type Diff struct {
	Base           string   `json:"base"`
	Head           string   `json:"head"`
	Changes        []Change `json:"changes"`
	Truncated      bool     `json:"truncated"` // true if Changes is incomplete, because there are too many
	Patch          string   `json:"patch,omitempty"`
	PatchTruncated bool     `json:"patch_truncated,omitempty"`
}

// Change is a path that differs between two commits.
type Change struct {
	Path      string `json:"path"`
	OldPath   string `json:"old_path,omitempty"` // path in Base; only of a renamed or copied file
	Status    string `json:"status"`             // added, deleted, modified, renamed, copied or type-changed
	OldMode   string `json:"old_mode"`
	NewMode   string `json:"new_mode"`
	OldHash   string `json:"old_hash"`
	NewHash   string `json:"new_hash"`
	Additions int    `json:"additions"`
	Deletions int    `json:"deletions"`
	Binary    bool   `json:"binary"`
}

// Diff returns the differences between the commits base and head, each of which is the name of a ref or an id. If patch
// is true, the result also contains a patch.
func (x Extensions) Diff(ctx context.Context, namespace, name, base, head string, patch bool) (Diff, error) {
	var d Diff
	q := url.Values{"base": {base}, "head": {head}, "patch": {strconv.FormatBool(patch)}}
	_, err := x.extend(ctx, request{verb: "compare", object: base + " and " + head, query: q}, &d,
		"namespaces", namespace, "repos", name, "diff")
	return d, err
}

// ImportStatus describes the progress of an import.
type ImportStatus struct {
	State    string     `json:"state"` // queued, running, succeeded or failed
	Phase    string     `json:"phase"`
	Done     int64      `json:"done"`  // number of objects that have been copied
	Total    int64      `json:"total"` // number of objects to copy; 0 if it is not known
	Bytes    int64      `json:"bytes"`
	Error    string     `json:"error"`
	Started  *time.Time `json:"started_at"`
	Finished *time.Time `json:"finished_at"`
}

// ImportStatus returns the progress of the last import of a repository.
func (x Extensions) ImportStatus(ctx context.Context, namespace, name string) (s ImportStatus, err error) {
	_, err = x.extend(ctx, request{verb: "show", object: "import of " + namespace + "/" + name}, &s,
		"namespaces", namespace, "repos", name, "import")
	return s, err
}

// RefreshImport makes the server import a repository again from its source. It does not wait for the end of the import.
func (x Extensions) RefreshImport(ctx context.Context, namespace, name string) error {
	_, err := x.extend(ctx, request{verb: "import", object: repository(namespace, name), method: http.MethodPost}, nil,
		"namespaces", namespace, "repos", name, "import", "refresh")
	return err
}

// Usage contains the numbers of operations on a namespace or a repository, and the sizes of the data that is stored for
// it.
type Usage struct {
	Operations []struct {
		Day       string `json:"day"` // day (UTC) in the form 2006-01-02
		RepoID    string `json:"repo_id"`
		Operation string `json:"operation"`
		Count     int64  `json:"count"`
		Bytes     int64  `json:"bytes"`
	} `json:"operations"`
	Stored *struct {
		Own int64 `json:"own"` // size in bytes of packs that no other repository, or no other namespace, has
		// size in bytes of packs that other repositories, or other namespaces, also have, such as forks
		Shared int64 `json:"shared"`
	} `json:"stored,omitempty"`
	Quota *struct { // quotas, only of a namespace; 0 means no limit
		Bytes    int64 `json:"bytes"`
		Repos    int64 `json:"repositories"`
		Refs     int64 `json:"refs"`
		Requests int64 `json:"requests_per_minute"`
		Used     struct {
			Bytes int64 `json:"bytes"`
			Repos int64 `json:"repositories"`
			Refs  int64 `json:"refs"`
		} `json:"used"`
	} `json:"quota,omitempty"`
}

// Usage returns the usage of a repository on the days from first to last, which have the form 2006-01-02 (UTC); ""
// means today. If name is "", it returns the usage of the namespace.
func (x Extensions) Usage(ctx context.Context, namespace, name, first, last string) (u Usage, err error) {
	q, parts := url.Values{}, []string{"namespaces", namespace}
	if name != "" {
		parts = append(parts, "repos", name)
	}
	if first != "" {
		q.Set("first", first)
	}
	if last != "" {
		q.Set("last", last)
	}
	_, err = x.extend(ctx, request{verb: "show", object: "usage of " + namespace, query: q}, &u, append(parts, "usage")...)
	return u, err
}

// CreateControlToken contains the parameters of Extensions.CreateControlToken, which creates an owner or admin token.
type CreateControlToken struct {
	Role      string `json:"role"`                // owner (of one namespace) or admin
	Namespace string `json:"namespace,omitempty"` // namespace of the token of an owner
	Scope     string `json:"scope,omitempty"`     // Read or Write (default)
	TTL       int    `json:"ttl,omitempty"`       // lifetime in seconds; 0: the token does not expire
	Label     string `json:"label,omitempty"`
	Actor     string `json:"actor,omitempty"`
}

// CreateControlToken creates a token for the REST API: an owner token or an admin token.
func (x Extensions) CreateControlToken(ctx context.Context, t CreateControlToken) (n NewToken, err error) {
	_, err = x.extend(ctx, request{verb: "create", object: "token of " + t.Role, method: http.MethodPost, body: t}, &n,
		"tokens")
	return n, err
}

// RevokeControlToken revokes the owner or admin token with the given id.
func (x Extensions) RevokeControlToken(ctx context.Context, id string) error {
	_, err := x.extend(ctx, request{verb: "revoke", object: "token " + id, method: http.MethodDelete}, nil, "tokens", id)
	return err
}

// RotateToken replaces the repository token with the given id by a new one with the same rights, and returns the new
// one.
func (x Extensions) RotateToken(ctx context.Context, namespace, id string) (n NewToken, err error) {
	_, err = x.extend(ctx, request{verb: "rotate", object: "token " + id, method: http.MethodPost}, &n,
		"namespaces", namespace, "tokens", id, "rotate")
	return n, err
}

// Webhook describes a webhook: the server sends events to its URL.
type Webhook struct {
	ID        string `json:"id,omitempty"`
	Namespace string `json:"namespace,omitempty"` // namespace whose events are sent; "": all
	// repository whose events are sent; "": all repositories of the namespace
	Repo    string    `json:"repo,omitempty"`
	Types   []string  `json:"types,omitempty"` // types of events; empty: all types
	URL     string    `json:"url"`
	Secret  string    `json:"secret,omitempty"` // key for the signatures of deliveries; only CreateWebhook returns it
	Created time.Time `json:"created_at,omitzero"`
}

// CreateWebhook creates a webhook, and returns it with its id and its secret. If h.Secret is "", the server generates a
// secret.
func (x Extensions) CreateWebhook(ctx context.Context, h Webhook) (Webhook, error) {
	_, err := x.extend(ctx, request{verb: "create", object: "webhook", method: http.MethodPost, body: h}, &h, "webhooks")
	return h, err
}

// Webhooks returns all webhooks of the server, without their secrets.
func (x Extensions) Webhooks(ctx context.Context) (all []Webhook, err error) {
	_, err = x.extend(ctx, request{verb: "list", object: "webhooks"}, &all, "webhooks")
	return all, err
}

// DeleteWebhook deletes the webhook with the given id.
func (x Extensions) DeleteWebhook(ctx context.Context, id string) error {
	_, err := x.extend(ctx, request{verb: "delete", object: "webhook " + id, method: http.MethodDelete}, nil,
		"webhooks", id)
	return err
}

// Event describes a change on the server.
type Event struct {
	Seq  string          `json:"-"` // number of the event, as a value for the parameter after of Events
	Type string          `json:"type"`
	Body json.RawMessage `json:"-"` // complete event, in the format of Cloudflare's event subscriptions
}

// Events yields the events of the server as they happen, until ctx ends or the connection breaks, which is yielded as
// an error. An empty namespace selects all namespaces, and an empty name all repositories of the namespace. after is
// Event.Seq of the last event that the caller has received; if it is "", only new events are yielded.
func (x Extensions) Events(ctx context.Context, namespace, name, after string) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		var parts []string
		if namespace != "" {
			parts = append(parts, "namespaces", namespace)
		}
		if name != "" {
			parts = append(parts, "repos", name)
		}
		r := request{verb: "read", object: "events", method: http.MethodGet,
			header: http.Header{"Accept": {"text/event-stream"}}}
		if after != "" {
			r.header.Set("Last-Event-ID", after)
		}
		var err error
		if r.path, err = x.extension(ctx, append(parts, "events")...); err != nil {
			yield(Event{}, err)
			return
		}
		res, err := x.c.send(ctx, r)
		if err != nil {
			yield(Event{}, err)
			return
		}
		defer res.Body.Close()
		err = readEvents(res.Body, func(e Event) bool { return yield(e, nil) })
		if err != nil {
			yield(Event{}, fmt.Errorf("read events: %w", err))
		}
	}
}

// maxEvent is the maximum length of a line in a stream of events, in bytes.
const maxEvent = 4 << 20

// readEvents parses server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html), and calls emit
// for each one until emit returns false. At the end of the stream it returns io.ErrUnexpectedEOF, because the server
// does not end a stream.
func readEvents(r io.Reader, emit func(Event) bool) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxEvent)
	var e Event
	var data []byte
	for lines.Scan() {
		line := lines.Bytes()
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch {
		case len(line) == 0 && data != nil: // the event is complete
			e.Body = json.RawMessage(bytes.TrimSuffix(data, []byte("\n")))
			if err := json.Unmarshal(e.Body, &e); err != nil {
				return err
			}
			if !emit(e) {
				return nil
			}
			e, data = Event{Seq: e.Seq}, nil
		case string(field) == "id":
			e.Seq = string(value)
		case string(field) == "data":
			data = append(append(data, value...), '\n')
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return io.ErrUnexpectedEOF
}

// Audit returns a reader for the entries of the server's audit log whose numbers are greater than after, as JSON
// objects, one on each line. If limit is not 0, there are at most limit entries. The caller must close the reader.
func (x Extensions) Audit(ctx context.Context, after int64, limit int) (io.ReadCloser, error) {
	path, err := x.extension(ctx, "audit")
	if err != nil {
		return nil, err
	}
	q := url.Values{"after": {strconv.FormatInt(after, 10)}}
	if limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	res, err := x.c.send(ctx, request{verb: "read", object: "audit log", method: http.MethodGet, path: path, query: q})
	if err != nil {
		return nil, err
	}
	return res.Body, nil
}

// extension returns the escaped path of a resource below the path of the extensions, relative to the address of the
// server.
func (x Extensions) extension(ctx context.Context, parts ...string) (string, error) {
	account, err := x.c.Account(ctx)
	if err != nil {
		return "", err
	}
	return "/artifactfs/v1/accounts/" + url.PathEscape(account) + join(parts), nil
}

// extend sends a request to a resource of the extensions, and decodes the field "result" of the answer into result. A
// request without a method is sent as GET.
func (x Extensions) extend(ctx context.Context, r request, result any, parts ...string) (info PageInfo, err error) {
	if r.path, err = x.extension(ctx, parts...); err != nil {
		return info, err
	}
	if r.method == "" {
		r.method = http.MethodGet
	}
	return x.c.call(ctx, r, result)
}

// String returns the rule in the form GLOB or GLOB=DENIAL+DENIAL.
func (r RefRule) String() string {
	if len(r.Deny) == 0 {
		return r.Glob
	}
	return r.Glob + "=" + strings.Join(r.Deny, "+")
}
