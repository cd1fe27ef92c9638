package api

import (
	"context"
	"encoding/base64"
	"net/http"
	"strings"

	"github.com/artifactfs/artifactfs/internal/lazy"
	"github.com/artifactfs/artifactfs/server/gitread"
	"github.com/artifactfs/artifactfs/server/meter"
	"github.com/artifactfs/artifactfs/server/records"
)

const (
	refsLimit  = 1000
	refsMax    = 10_000
	auditLimit = 10_000
	auditMax   = 1_000_000
)

type refInfo struct {
	Name string `json:"name"`
	Hash string `json:"hash"`
}

// listRefs lists the refs of a repository in the order of their names.
func listRefs(c *call) error {
	q := c.query()
	prefix, limit := q.text("prefix"), q.number("limit", refsLimit, 1, refsMax)
	after, err := base64.RawURLEncoding.DecodeString(q.text("cursor"))
	if err != nil {
		q.refuse(invalid("cursor", "Invalid cursor"))
	}
	if err := q.err(); err != nil {
		return err
	}
	ctx, cancel := c.context()
	defer cancel()
	r, err := c.repo()
	if err != nil {
		return err
	}
	all, err := c.a.o.Records.Repos.Refs(ctx, r.ID)
	if err != nil {
		return found("Repository", err)
	}
	list, next := []refInfo{}, ""
	for _, ref := range all {
		if !strings.HasPrefix(ref.Name, prefix) || ref.Name <= string(after) {
			continue
		}
		if len(list) == limit {
			next = base64.RawURLEncoding.EncodeToString([]byte(list[limit-1].Name))
			break
		}
		list = append(list, refInfo{ref.Name, ref.ID})
	}
	c.count(r, meter.Read, 0)
	if len(after) == 0 && next == "" {
		return c.send(http.StatusOK, list, pages(1, limit, len(list), len(list)))
	}
	return c.send(http.StatusOK, list, cursorInfo{next, limit, len(list)})
}

// getDiff compares two commits.
func getDiff(c *call) error {
	q := c.query()
	base, head := q.required("base"), q.required("head")
	patch := q.option("patch", "false", "true") == "true"
	if err := q.err(); err != nil {
		return err
	}
	return c.readJSON("Commit",
		func(ctx context.Context, g gitread.Repo) (any, error) { return g.Diff(ctx, base, head, patch) })
}

// streamEvents streams events until the client closes the connection or its token is revoked.
func streamEvents(c *call) error {
	if c.a.o.Events == nil {
		return missing("Stream")
	}
	if c.params["name"] != "" {
		r, err := c.repo()
		if err != nil {
			return err
		}
		c.r.SetPathValue("repo", r.Name)
		c.r.SetPathValue("namespace", r.Namespace)
	} else if name := c.params["namespace"]; name != "" {
		n, err := c.a.o.Records.Namespaces.Get(c.r.Context(), name)
		if err != nil {
			return found("Namespace", err)
		}
		c.r.SetPathValue("namespace", n.Name)
	}
	ctx, stop := c.a.o.Guard.Watch(c.r.Context(), c.token)
	defer stop()
	c.a.o.Events.ServeHTTP(&observer{c.w, c}, c.r.WithContext(ctx))
	return nil
}

// observer records the status of an answer that another handler writes.
type observer struct {
	http.ResponseWriter
	c *call
}

func (o *observer) WriteHeader(status int) {
	o.c.status = status
	o.ResponseWriter.WriteHeader(status)
}

func (o *observer) Write(p []byte) (int, error) {
	if o.c.status == 0 {
		o.c.status = http.StatusOK
	}
	return o.ResponseWriter.Write(p)
}

// Unwrap returns the wrapped writer, for http.ResponseController.
func (o *observer) Unwrap() http.ResponseWriter { return o.ResponseWriter }

// exportAudit sends audit entries as lines of JSON, in the order of their numbers.
func exportAudit(c *call) error {
	q := c.query()
	after, limit := q.number("after", 0, 0, -1), q.number("limit", auditLimit, 1, auditMax)
	if err := q.err(); err != nil {
		return err
	}
	ctx, cancel := c.context()
	defer cancel()
	if _, err := c.a.o.Records.Audit.After(ctx, int64(after), 1); err != nil {
		return err // an error after the first line can only end the answer, without a message
	}
	c.w.Header().Set("Content-Type", "application/x-ndjson")
	c.w.Header().Set("Cache-Control", "no-store")
	c.status = http.StatusOK
	c.w.WriteHeader(http.StatusOK)
	return meter.Export(ctx, c.w, c.a.o.Records.Audit, int64(after), limit)
}

type usageRow struct {
	Day       string `json:"day"`
	RepoID    string `json:"repo_id"`
	Operation string `json:"operation"`
	Count     int64  `json:"count"`
	Bytes     int64  `json:"bytes"`
}

type usageInfo struct {
	Operations []usageRow  `json:"operations"`
	Stored     *storedInfo `json:"stored"`
	Quota      *quotaInfo  `json:"quota,omitempty"`
}

// quotaInfo contains the quotas of a namespace and what it stores. A quota of 0, which means no limit, is left out.
type quotaInfo struct {
	Bytes    int64    `json:"bytes,omitempty"`
	Repos    int64    `json:"repositories,omitempty"`
	Refs     int64    `json:"refs,omitempty"`
	Requests int64    `json:"requests_per_minute,omitempty"`
	Used     usedInfo `json:"used"`
}

type usedInfo struct {
	Bytes int64 `json:"bytes"`
	Repos int64 `json:"repositories"`
	Refs  int64 `json:"refs"`
}

// storedInfo contains the size, in bytes, of the packs that only this repository, or this namespace, has, and the size
// of the packs that it shares with others.
type storedInfo struct {
	Own    int64 `json:"own"`
	Shared int64 `json:"shared"`
}

var day = lazy.Regexp(`^\d{4}-\d{2}-\d{2}$`)

func namespaceUsage(c *call) error {
	n, err := c.a.o.Records.Namespaces.Get(c.r.Context(), c.params["namespace"])
	if err != nil {
		return found("Namespace", err)
	}
	ctx, cancel := c.context()
	defer cancel()
	own, shared, err := c.a.o.Records.Namespaces.Size(ctx, n.Name)
	if err != nil {
		return err
	}
	used, err := c.a.o.Records.Namespaces.Amounts(ctx, n.Name)
	if err != nil {
		return err
	}
	l := c.a.o.Quotas.Limits()
	return c.usage(n.Name, "", &storedInfo{own, shared}, &quotaInfo{l.Bytes, l.Repos, l.Refs, l.Requests, usedInfo(used)})
}

func repoUsage(c *call) error {
	r, err := c.repo()
	if err != nil {
		return err
	}
	ctx, cancel := c.context()
	defer cancel()
	own, shared, err := c.a.o.Records.Repos.Size(ctx, r.ID)
	if err != nil {
		return err
	}
	return c.usage(r.Namespace, r.ID, &storedInfo{own, shared}, nil)
}

// usage sends the counters of a namespace, or of one of its repositories if repoID is not "". The default is the
// present day.
func (c *call) usage(namespace, repoID string, stored *storedInfo, quota *quotaInfo) error {
	q := c.query()
	first, last := q.text("first"), q.text("last")
	today := c.a.o.Now().UTC().Format("2006-01-02")
	for name, d := range map[string]*string{"first": &first, "last": &last} {
		if *d == "" {
			*d = today
		} else if !day().MatchString(*d) {
			q.refuse(invalid(name, "Invalid ISO date"))
		}
	}
	if err := q.err(); err != nil {
		return err
	}
	ctx, cancel := c.context()
	defer cancel()
	rows, err := c.a.o.Records.Usage.List(ctx, namespace, repoID, first, last)
	if err != nil {
		return err
	}
	u := usageInfo{Operations: make([]usageRow, len(rows)), Stored: stored, Quota: quota}
	for i, r := range rows {
		u.Operations[i] = usageRow{r.Day, r.RepoID, r.Operation, r.Count, r.Bytes}
	}
	return c.send(http.StatusOK, u, nil)
}

// Control tokens are the tokens for the REST API.

func listControlTokens(c *call) error { return c.sendTokens("") }

func createControlToken(c *call) error {
	in, err := c.body()
	if err != nil {
		return err
	}
	const owner, admin = string(records.OwnerToken), string(records.AdminToken)
	t := records.Token{Role: records.Role(in.option("role", owner, owner, admin)),
		Scope:     records.Scope(in.option("scope", "write", "read", "write")),
		Namespace: in.text("namespace"), Label: in.text("label"), Actor: in.text("actor")}
	ttl := in.ttl(0)
	switch {
	case t.Role == records.OwnerToken:
		in.refuse(validNamespace(t.Namespace))
	case t.Namespace != "":
		in.refuse(invalid("namespace", "Only tokens with the role owner have a namespace"))
	}
	if err := in.err(); err != nil {
		return err
	}
	ctx, cancel := c.context()
	defer cancel()
	return c.mint(ctx, t, ttl, nil)
}

// controlToken returns the token whose id is in the path, which must be a token for the REST API.
func (c *call) controlToken(ctx context.Context) (records.Token, error) {
	t, err := c.a.o.Records.Tokens.Get(ctx, c.params["id"])
	if err == nil && t.Role == records.RepoToken {
		err = records.ErrNotFound
	}
	return t, found("Token", err)
}

func revokeControlToken(c *call) error {
	ctx, cancel := c.context()
	defer cancel()
	t, err := c.controlToken(ctx)
	if err != nil {
		return err
	}
	return c.revoke(ctx, t.ID, nil)
}

func rotateControlToken(c *call) error {
	ctx, cancel := c.context()
	defer cancel()
	t, err := c.controlToken(ctx)
	if err != nil {
		return err
	}
	return c.rotate(ctx, t, nil)
}
