package client

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"time"
)

// These are the scopes of tokens.
const (
	Read  = "read"
	Write = "write"
)

// CreateToken contains the parameters of Client.CreateToken, which creates a token for git access to one repository.
type CreateToken struct {
	Repo  string `json:"repo"`
	Scope string `json:"scope,omitempty"` // Read or Write (default)
	TTL   int    `json:"ttl,omitempty"`   // lifetime in seconds, from 60 to 31536000; 0 means 86400

	// The fields below are extensions.
	Label   string    `json:"label,omitempty"`   // text for people; has no effect
	Session string    `json:"session,omitempty"` // session for which the token is made
	Actor   string    `json:"actor,omitempty"`   // user or program that uses the token
	Refs    []RefRule `json:"refs,omitempty"`    // refs that the token may change; empty: all
}

// RefRule allows a token to change the refs that match Glob, except by the kinds of changes that Deny lists. In JSON, a
// rule is the array [glob, [deny, ...]].
type RefRule struct {
	Glob string
	Deny []string // no-push, no-force-push, append-only, no-delete
}

// MarshalJSON implements json.Marshaler.
func (r RefRule) MarshalJSON() ([]byte, error) {
	deny := r.Deny
	if deny == nil {
		deny = []string{}
	}
	return json.Marshal([]any{r.Glob, deny})
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *RefRule) UnmarshalJSON(text []byte) error {
	var parts []json.RawMessage
	if err := json.Unmarshal(text, &parts); err != nil {
		return err
	}
	if len(parts) == 0 || len(parts) > 2 {
		return fmt.Errorf("rule of refs has %d parts, but must have the form [glob, [deny, ...]]", len(parts))
	}
	if err := json.Unmarshal(parts[0], &r.Glob); err != nil || len(parts) == 1 {
		return err
	}
	return json.Unmarshal(parts[1], &r.Deny)
}

// NewToken is a new token. Plaintext is its secret, which the server does not return again.
type NewToken struct {
	ID        string    `json:"id"`
	Plaintext string    `json:"plaintext"`
	Scope     string    `json:"scope"`
	Expires   time.Time `json:"expires_at"`
}

// Token describes an existing token, without its secret.
type Token struct {
	ID      string    `json:"id"`
	Scope   string    `json:"scope"`
	State   string    `json:"state"` // active, expired or revoked
	Created time.Time `json:"created_at"`
	Expires time.Time `json:"expires_at"`

	// The fields below are extensions.
	Label   string    `json:"label,omitempty"`
	Session string    `json:"session,omitempty"`
	Actor   string    `json:"actor,omitempty"`
	Refs    []RefRule `json:"refs,omitempty"`
}

// CreateToken creates a token for git access to the repository t.Repo of the namespace.
func (c *Client) CreateToken(ctx context.Context, namespace string, t CreateToken) (NewToken, error) {
	return do[NewToken](ctx, c, "create", "token for "+namespace+"/"+t.Repo, http.MethodPost, t, "namespaces",
		namespace, "tokens")
}

// RevokeToken revokes the token with the given id, which is for a repository of the namespace. It returns nil if the
// token was revoked before.
func (c *Client) RevokeToken(ctx context.Context, namespace, id string) error {
	_, err := do[any](ctx, c, "revoke", "token "+id, http.MethodDelete, nil, "namespaces", namespace, "tokens", id)
	return err
}

// Tokens yields the tokens of a repository in the given state: "active", "expired", "revoked" or "all"; "" means
// "active". It requests a page of the list when it is needed, and ends after an error.
func (c *Client) Tokens(ctx context.Context, namespace, repo, state string) iter.Seq2[Token, error] {
	q := url.Values{"per_page": {"100"}}
	if state != "" {
		q.Set("state", state)
	}
	return pages[Token](ctx, c, "list", "tokens of "+namespace+"/"+repo, q, "namespaces", namespace, "repos",
		repo, "tokens")
}
