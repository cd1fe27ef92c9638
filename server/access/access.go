// Package access creates tokens, finds the token of a request, and decides whether the token allows the request.
//
// A token is a prefix and 40 random hexadecimal digits. Together they are its secret; only the SHA-256 of the secret is
// stored. The text of a token of a repository also contains the time at which it expires, which informs its user; the
// server uses the time in the record.
//
// Locks: Guard.mu is a leaf.
package access

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
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

// Challenge is the value of the header WWW-Authenticate in the answer to a request without credentials.
const Challenge = `Basic realm="artifacts"`

// prefixes of the secrets of tokens.
var prefixes = map[records.Role]string{
	records.RepoToken:  "art_v1_",
	records.OwnerToken: "afs_owner_",
	records.AdminToken: "afs_admin_",
}

// secretBytes is the number of random bytes in a secret.
const secretBytes = 20

// tokens is the part of records.Tokens that a Guard uses.
type tokens interface {
	ByHash(ctx context.Context, hash []byte) (records.Token, error)
	Revoke(ctx context.Context, id string, events []records.Event, cause records.Cause) error
	Rotate(ctx context.Context, old string, next records.Token, events []records.Event, cause records.Cause) error
	RevokedSince(ctx context.Context, since time.Time) ([]string, error)
}

// Guard checks tokens, and ends the transfers of tokens that are revoked.
type Guard struct {
	tokens tokens
	every  time.Duration // interval at which revocations by other nodes are looked up while transfers run

	mu      sync.Mutex
	watched map[string]map[*watch]bool // transfers by the ids of their tokens
	stop    context.CancelFunc         // ends the look-ups; nil while there are none
}

// NewGuard returns a Guard for the tokens in a database.
func NewGuard(db *records.DB) *Guard { return newGuard(db.Tokens) }

func newGuard(t tokens) *Guard {
	return &Guard{tokens: t, every: 750 * time.Millisecond, watched: map[string]map[*watch]bool{}}
}

// Mint returns a new token with a random secret, and the text for its user: art_v1_SECRET?expires=UNIX for
// repositories, afs_admin_SECRET and afs_owner_SECRET for the REST API. Only the hash of the secret is in the record.
// Mint sets ID, Hash and Created; the scope is WriteScope unless the caller has set another one.
func Mint(t records.Token, now time.Time) (records.Token, string) {
	var random [secretBytes]byte
	rand.Read(random[:]) // never fails
	text := prefixes[t.Role] + hex.EncodeToString(random[:])
	t.ID, t.Created, t.Hash = records.NewID(), now, hashOf(text)
	if t.Scope == "" {
		t.Scope = records.WriteScope
	}
	if !t.Expires.IsZero() && t.Role == records.RepoToken {
		text += "?expires=" + strconv.FormatInt(t.Expires.Unix(), 10)
	}
	return t, text
}

func hashOf(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}

// Admin returns the token of a request to the REST API. The argument needs is the namespace that the request concerns,
// or "" for the whole account. Repository tokens are refused with ErrInvalid.
func (g *Guard) Admin(ctx context.Context, r *http.Request, needs string, scope records.Scope) (records.Token, error) {
	t, err := g.token(ctx, r.Header)
	switch {
	case err != nil:
		return records.Token{}, err
	case t.Role != records.AdminToken && t.Role != records.OwnerToken:
		return records.Token{}, ErrInvalid
	case t.Role == records.OwnerToken && !ownerOf(t, needs), !permits(t, scope):
		return records.Token{}, ErrInsufficient
	}
	return t, nil
}

// Control returns the token of a request to the REST API that every token for the REST API allows, whatever its
// namespace and scope are.
func (g *Guard) Control(ctx context.Context, r *http.Request) (records.Token, error) {
	t, err := g.token(ctx, r.Header)
	if err == nil && t.Role != records.AdminToken && t.Role != records.OwnerToken {
		err = ErrInvalid
	}
	if err != nil {
		return records.Token{}, err
	}
	return t, nil
}

// Any returns the token of a request, whatever the token allows.
func (g *Guard) Any(ctx context.Context, r *http.Request) (records.Token, error) {
	return g.token(ctx, r.Header)
}

// Git returns the token of a git request to a repository: Bearer, or Basic with any user and the token or its secret as
// password. Tokens for the REST API are also accepted. If the repository does not exist, repo has only its namespace:
// tokens of repositories are then refused with ErrInvalid.
func (g *Guard) Git(ctx context.Context, r *http.Request, repo records.Repo,
	scope records.Scope) (records.Token, error) {
	t, err := g.token(ctx, r.Header)
	if err != nil {
		return records.Token{}, err
	}
	switch t.Role {
	case records.AdminToken:
	case records.OwnerToken:
		if !ownerOf(t, repo.Namespace) {
			return records.Token{}, ErrInvalid
		}
	case records.RepoToken:
		if repo.ID == "" || t.RepoID != repo.ID {
			return records.Token{}, ErrInvalid
		}
	default:
		return records.Token{}, ErrInvalid
	}
	if !permits(t, scope) {
		return records.Token{}, ErrInsufficient
	}
	return t, nil
}

// ownerOf reports whether an owner's token is for a namespace. Names of namespaces are found without regard to case, so
// the token and the request may spell the name differently.
func ownerOf(t records.Token, namespace string) bool {
	return t.Namespace != "" && strings.EqualFold(t.Namespace, namespace)
}

// permits reports whether the scope of a token includes the required scope.
func permits(t records.Token, scope records.Scope) bool {
	return t.Scope == records.WriteScope || t.Scope == scope && scope == records.ReadScope
}

// token returns the valid token that the header of a request contains.
func (g *Guard) token(ctx context.Context, h http.Header) (records.Token, error) {
	secret, err := credentials(h["Authorization"])
	if err != nil {
		return records.Token{}, err
	}
	hash := hashOf(secret)
	t, err := g.tokens.ByHash(ctx, hash)
	switch {
	case errors.Is(err, records.ErrNotFound):
		return records.Token{}, ErrInvalid
	case err != nil:
		return records.Token{}, err
	case subtle.ConstantTimeCompare(hash, t.Hash) != 1, !t.Revoked.IsZero(),
		!t.Expires.IsZero() && !time.Now().Before(t.Expires):
		return records.Token{}, ErrInvalid
	}
	return t, nil
}

// Adopt returns a token of the REST API whose text an operator has chosen: afs_admin_ or afs_owner_ and 40 hexadecimal
// digits. Like Mint, it sets ID, Hash and Created.
func Adopt(t records.Token, text string, now time.Time) (records.Token, error) {
	secret, ok := secretOf(text)
	if !ok || secret != text || !strings.HasPrefix(text, prefixes[t.Role]) {
		return records.Token{}, fmt.Errorf("token must consist of %s and %d hexadecimal digits", prefixes[t.Role],
			2*secretBytes)
	}
	t.ID, t.Created, t.Hash, t.Scope = records.NewID(), now, hashOf(text), records.WriteScope
	return t, nil
}
