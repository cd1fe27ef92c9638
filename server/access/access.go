// Package access creates tokens, and decides what a request may do: it finds the token of a request and compares it with what the
// request needs.
package access

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/artifactfs/artifactfs/server/records"
)

var (
	// ErrMissing means that a request has no credentials.
	ErrMissing = errors.New("no credentials")
	// ErrInvalid means that a token is unknown, revoked, expired, or for another repository.
	//
	//lint:ignore ST1005 clients know this text
	ErrInvalid = errors.New("Invalid or expired token")
	// ErrInsufficient means that a token does not allow what the request does.
	//
	//lint:ignore ST1005 clients know this text
	ErrInsufficient = errors.New("Insufficient permissions")
)

// Guard checks tokens.
type Guard struct{}

func NewGuard(db *records.DB) *Guard { panic("not written yet") }

// Mint returns a new token with a random secret, and the text that its user gets: art_v1_SECRET?expires=UNIX for repositories,
// afs_admin_SECRET and afs_owner_SECRET for the REST API. Only the hash of the secret is in the record.
func Mint(t records.Token, now time.Time) (records.Token, string) { panic("not written yet") }

// Admin returns the token of a request to the REST API. needs is the namespace that the request concerns, "" for the whole account.
// Repository tokens are refused.
func (g *Guard) Admin(ctx context.Context, r *http.Request, needs string, scope records.Scope) (records.Token, error) {
	panic("not written yet")
}

// Git returns the token of a git request to a repository: Bearer, or Basic with any user and the token or its secret as
// password. Tokens for the REST API are accepted too.
func (g *Guard) Git(ctx context.Context, r *http.Request, repo records.Repo, scope records.Scope) (records.Token, error) {
	panic("not written yet")
}

// Allow returns nil if the rules of a token allow an update. forced reports whether the update is not a fast-forward; it is called
// only if a rule needs it.
func Allow(t records.Token, u records.RefUpdate, forced func() (bool, error)) error {
	panic("not written yet")
}

// Watch returns a context that ends when the token is revoked, on this node or on another one, or expires.
func (g *Guard) Watch(ctx context.Context, t records.Token) (context.Context, context.CancelFunc) {
	panic("not written yet")
}
