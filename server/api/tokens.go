package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/server/access"
	"github.com/artifactfs/artifactfs/server/events"
	"github.com/artifactfs/artifactfs/server/meter"
	"github.com/artifactfs/artifactfs/server/records"
)

const (
	minTTL     = 60
	maxTTL     = 365 * 24 * 60 * 60
	defaultTTL = 24 * 60 * 60
	maxRules   = 100
)

// tokenInfo describes a token in lists. The fields from Label on are extensions.
type tokenInfo struct {
	ID        string  `json:"id"`
	Scope     string  `json:"scope"`
	State     string  `json:"state"`
	CreatedAt string  `json:"created_at"`
	ExpiresAt *string `json:"expires_at"`
	Label     string  `json:"label,omitempty"`
	Session   string  `json:"session,omitempty"`
	Actor     string  `json:"actor,omitempty"`
	Refs      []any   `json:"refs,omitempty"`
	Role      string  `json:"role,omitempty"`      // role of the token; only for tokens of the REST API
	Namespace string  `json:"namespace,omitempty"` // namespace of the token; only for tokens of owners
}

func infoOfToken(t records.Token, now time.Time) tokenInfo {
	i := tokenInfo{ID: t.ID, Scope: string(t.Scope), State: "active", CreatedAt: timeText(t.Created),
		ExpiresAt: optionalTime(t.Expires),
		Label:     t.Label, Session: t.Session, Actor: t.Actor}
	switch {
	case !t.Revoked.IsZero():
		i.State = "revoked"
	case !t.Expires.IsZero() && !now.Before(t.Expires):
		i.State = "expired"
	}
	for _, r := range t.Rules {
		deny := make([]string, len(r.Deny))
		for k, d := range r.Deny {
			deny[k] = string(d)
		}
		i.Refs = append(i.Refs, []any{r.Glob, deny})
	}
	if t.Role != records.RepoToken {
		i.Role, i.Namespace = string(t.Role), t.Namespace
	}
	return i
}

// newToken is the answer to requests that create a token.
type newToken struct {
	ID        string  `json:"id"`
	Plaintext string  `json:"plaintext"`
	Scope     string  `json:"scope"`
	ExpiresAt *string `json:"expires_at"`
}

// ttl returns the lifetime of a token. If the field is missing, it is otherwise seconds.
func (f *fields) ttl(otherwise int) time.Duration {
	seconds := f.number("ttl", otherwise)
	if (seconds != otherwise || otherwise != 0) && (seconds < minTTL || seconds > maxTTL) {
		f.refuse(&Fault{http.StatusBadRequest, codeTTL, "ttl must be between 60 and 31536000 seconds", "/ttl"})
	}
	return time.Duration(seconds) * time.Second
}

// rules returns the rules of a token, which have the form [[glob, [denial, ...]], ...].
func (f *fields) rules(name string) (rules []records.RefRule) {
	for i, raw := range f.list(name) {
		var parts []json.RawMessage
		var r records.RefRule
		if json.Unmarshal(raw, &parts) != nil || len(parts) == 0 || len(parts) > 2 ||
			json.Unmarshal(parts[0], &r.Glob) != nil ||
			len(parts) == 2 && json.Unmarshal(parts[1], &r.Deny) != nil {
			f.refuse(invalid(name+"/"+strconv.Itoa(i), "Invalid input: expected [glob, [denial, ...]]"))
			return nil
		}
		rules = append(rules, r)
	}
	switch {
	// an empty list would permit changes of every ref, so it is refused
	case len(rules) == 0 && kindOf(f.in[name]) == "array":
		f.refuse(invalid(name, "Too small: expected array to have >=1 items"))
	case len(rules) > maxRules:
		f.refuse(invalid(name, "Too big: expected array to have <=%d items", maxRules))
	default:
		if err := access.CheckRules(rules); err != nil {
			f.refuse(invalid(name, "Invalid rule: %v", err))
		}
	}
	return rules
}

// createToken creates a token for git access to a repository.
func createToken(c *call) error {
	in, err := c.body()
	if err != nil {
		return err
	}
	name := in.required("repo")
	t := records.Token{Role: records.RepoToken, Scope: records.Scope(in.option("scope", "write", "read", "write")),
		Label: in.text("label"),
		Actor: in.text("actor"), Session: in.text("session")}
	ttl := in.ttl(defaultTTL)
	if t.Rules = in.rules("refs"); t.Session != "" {
		rules, err := access.SessionRules(t.Session)
		if err != nil {
			in.refuse(invalid("session", "Invalid name of a session"))
		}
		if t.Rules != nil {
			in.refuse(invalid("refs", "A token has either refs or a session"))
		}
		t.Rules = rules
	}
	if err := in.err(); err != nil {
		return err
	}
	ctx, cancel := c.context()
	defer cancel()
	r, err := c.a.o.Records.Repos.Get(ctx, c.params["namespace"], name)
	if err != nil {
		return found("Repository", err)
	}
	t.Namespace, t.RepoID = r.Namespace, r.ID
	return c.mint(ctx, t, ttl, &r)
}

// mint creates a token and sends it. r is the repository of the token, or nil for a token of the REST API.
func (c *call) mint(ctx context.Context, t records.Token, ttl time.Duration, r *records.Repo) error {
	t, text := successor(t, c.a.o.Now(), ttl)
	var list []records.Event
	if r != nil {
		list = append(list, events.TokenCreated(c.stamp(), *r, t))
	}
	if err := c.a.o.Records.Tokens.Create(ctx, t, list, c.cause()); err != nil {
		return found("Repository", err)
	}
	return c.sendToken(t, text, r)
}

// successor returns a new token with the rights of t, and the text of the new token. It is valid for ttl, or without
// limit if ttl is 0.
func successor(t records.Token, now time.Time, ttl time.Duration) (records.Token, string) {
	if t.Expires = (time.Time{}); ttl > 0 {
		t.Expires = now.Add(ttl)
	}
	return access.Mint(t, now)
}

// sendToken sends a token that was just created. text is the token with its secret.
func (c *call) sendToken(t records.Token, text string, r *records.Repo) error {
	if r != nil {
		c.count(*r, meter.Token, 0)
	}
	return c.send(http.StatusCreated, newToken{t.ID, text, string(t.Scope), optionalTime(t.Expires)}, nil)
}

func listTokens(c *call) error {
	r, err := c.repo()
	if err != nil {
		return err
	}
	c.count(r, meter.Info, 0)
	return c.sendTokens(r.ID)
}

// sendTokens sends a page of the tokens of a repository, or of the tokens for the REST API if repoID is "".
func (c *call) sendTokens(repoID string) error {
	q := c.query()
	state := q.option("state", "active", "expired", "revoked", "all")
	perPage := q.number("per_page", tokenLimit, 1, tokenMax)
	page := q.number("page", 1, 1, maxPage)
	if err := q.err(); err != nil {
		return err
	}
	ctx, cancel := c.context()
	defer cancel()
	list, total, err := c.a.o.Records.Tokens.List(ctx, repoID, state, (page-1)*perPage, perPage)
	if err != nil {
		return err
	}
	result := make([]tokenInfo, len(list))
	for i, t := range list {
		result[i] = infoOfToken(t, c.a.o.Now())
	}
	return c.send(http.StatusOK, result, pages(page, perPage, len(list), total))
}

// repoToken returns the token in the path and its repository, which must be in the namespace in the path. If the
// repository of an old token was deleted, only its id and its namespace are set.
func (c *call) repoToken(ctx context.Context) (t records.Token, r records.Repo, err error) {
	t, err = c.a.o.Records.Tokens.Get(ctx, c.params["id"])
	if err == nil && (t.Role != records.RepoToken || !strings.EqualFold(t.Namespace, c.params["namespace"])) {
		err = records.ErrNotFound
	}
	if err != nil {
		return t, r, found("Token", err)
	}
	if r, err = c.a.o.Records.Repos.ByID(ctx, t.RepoID); err != nil {
		if _, ok := found("Repository", err).(*Fault); !ok {
			return t, r, err
		}
		r = records.Repo{ID: t.RepoID, Namespace: t.Namespace}
	}
	return t, r, nil
}

func revokeToken(c *call) error {
	ctx, cancel := c.context()
	defer cancel()
	t, r, err := c.repoToken(ctx)
	if err != nil {
		return err
	}
	var list []records.Event
	if r.Name != "" {
		list = append(list, events.TokenRevoked(c.stamp(), r, t.ID))
	}
	return c.revoke(ctx, t.ID, list)
}

// revoke revokes a token. For a token that was revoked before, the answer is the same.
func (c *call) revoke(ctx context.Context, id string, list []records.Event) error {
	if err := c.a.o.Guard.Revoke(ctx, id, list, c.cause()); err != nil {
		return found("Token", err)
	}
	return c.send(http.StatusOK, struct {
		ID string `json:"id"`
	}{id}, nil)
}

// rotateToken replaces a token by one with the same rights and the same lifetime, counted from now.
func rotateToken(c *call) error {
	ctx, cancel := c.context()
	defer cancel()
	t, r, err := c.repoToken(ctx)
	if err != nil {
		return err
	}
	if r.Name == "" {
		return missing("Repository")
	}
	return c.rotate(ctx, t, &r)
}

func (c *call) rotate(ctx context.Context, old records.Token, r *records.Repo) error {
	ttl := time.Duration(0)
	if !old.Expires.IsZero() {
		ttl = old.Expires.Sub(old.Created)
	}
	t, text := successor(old, c.a.o.Now(), ttl)
	var list []records.Event
	if r != nil {
		list = append(list, events.TokenCreated(c.stamp(), *r, t), events.TokenRevoked(c.stamp(), *r, old.ID))
	}
	err := c.a.o.Guard.Rotate(ctx, old.ID, t, list, c.cause())
	if errors.Is(err, records.ErrRevoked) {
		return &Fault{http.StatusConflict, codeInput, "Token is not active", ""}
	}
	if err != nil {
		return found("Token", err)
	}
	return c.sendToken(t, text, r)
}
