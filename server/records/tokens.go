package records

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Tokens stores the tokens for git access and for the REST API.
type Tokens struct{ db *DB }

const tokenColumns = "id, hash, role, scope, namespace, repo_id, label, actor, session, rules, created, expires, revoked"

func scanToken(row scanner) (t Token, err error) {
	var rules string
	err = row.Scan(&t.ID, &t.Hash, &t.Role, &t.Scope, &t.Namespace, &t.RepoID, &t.Label, &t.Actor, &t.Session, &rules,
		stamp{&t.Created}, stamp{&t.Expires}, stamp{&t.Revoked})
	if err == nil && rules != "" {
		if err = json.Unmarshal([]byte(rules), &t.Rules); err != nil {
			err = fmt.Errorf("parse rules of token %s: %w", t.ID, err)
		}
	}
	return t, err
}

// Create creates a token. It returns ErrNotFound if the token is for a repository that does not exist.
func (k *Tokens) Create(ctx context.Context, token Token, events []Event, cause Cause) error {
	return k.db.write(ctx, "create token", func(t *tx) error {
		if err := t.lockRepoOf(ctx, token); err != nil {
			return err
		}
		if err := t.addToken(ctx, token); err != nil {
			return err
		}
		return t.log(ctx, events, cause.entry(t, 201, ""))
	})
}

// Rotate revokes the token with the id old and creates the token next, in one transaction, so that a token is never
// created without being returned to the caller. It returns ErrRevoked if the old token is not valid any more, and
// ErrNotFound if the old token, or the repository of the new one, does not exist.
func (k *Tokens) Rotate(ctx context.Context, old string, next Token, events []Event, cause Cause) error {
	return k.db.write(ctx, "rotate token "+old, func(t *tx) error {
		if err := t.lockRepoOf(ctx, next); err != nil {
			return err
		}
		rows, err := t.exec(ctx,
			"UPDATE tokens SET revoked = $2 WHERE id = $1 AND revoked = 0 AND (expires = 0 OR expires > $2)", old, t.now)
		if err == nil && rows == 0 {
			if _, err = t.count(ctx, "SELECT revoked FROM tokens WHERE id = $1", old); err == nil {
				err = ErrRevoked
			}
		}
		if err != nil {
			return err
		}
		if err := t.addToken(ctx, next); err != nil {
			return err
		}
		return t.log(ctx, events, cause.entry(t, 201, ""))
	})
}

// lockRepoOf locks the repository of a token, so that it cannot be deleted until the transaction ends; a deletion
// revokes its tokens. It returns sql.ErrNoRows if the repository does not exist.
func (t *tx) lockRepoOf(ctx context.Context, token Token) error {
	if token.RepoID == "" {
		return nil
	}
	_, err := t.count(ctx, "SELECT repo FROM repos WHERE id = $1 AND deleted = 0{share}", token.RepoID)
	return err
}

func (t *tx) addToken(ctx context.Context, token Token) error {
	if token.Created.IsZero() {
		token.Created = t.now
	}
	rules := ""
	if len(token.Rules) != 0 {
		b, err := json.Marshal(token.Rules)
		if err != nil {
			return err
		}
		rules = string(b)
	}
	none := fmt.Errorf("token %s: %w", token.ID, ErrExists)
	return orNone(none)(t.exec(ctx,
		"INSERT INTO tokens ("+tokenColumns+") VALUES ("+placeholders(13, 1)+") ON CONFLICT DO NOTHING",
		token.ID, token.Hash, string(token.Role), string(token.Scope), token.Namespace, token.RepoID,
		token.Label, token.Actor,
		token.Session, rules, token.Created, token.Expires, token.Revoked))
}

// ByHash returns the token whose secret has this SHA-256, whether or not it is still valid. The caller must compare the
// hashes in constant time.
func (k *Tokens) ByHash(ctx context.Context, hash []byte) (Token, error) {
	return readFirst(ctx, k.db, "find token", scanToken, "SELECT "+tokenColumns+" FROM tokens WHERE hash = $1", hash)
}

// Get returns the token with an id.
func (k *Tokens) Get(ctx context.Context, id string) (Token, error) {
	return readFirst(ctx, k.db, "find token "+id, scanToken, "SELECT "+tokenColumns+" FROM tokens WHERE id = $1", id)
}

// List returns a page of the tokens of a repository, the newest first, and the number of tokens on all pages. state is
// active, expired, revoked or all. An empty repoID selects the tokens for the REST API.
func (k *Tokens) List(ctx context.Context, repoID, state string,
	offset, limit int) (page []Token, total int, err error) {
	where := " FROM tokens WHERE repo_id = $1"
	var args []any
	switch state {
	case "active":
		where += " AND revoked = 0 AND (expires = 0 OR expires > $2)"
	case "expired":
		where += " AND revoked = 0 AND expires <> 0 AND expires <= $2"
	case "revoked":
		where += " AND revoked <> 0"
	case "all":
	default:
		return nil, 0, fmt.Errorf("list tokens: unknown state %q", state)
	}
	args = []any{repoID}
	err = k.db.read(ctx, "list tokens", func(t *tx) error {
		if state == "active" || state == "expired" {
			args = append(args, t.now)
		}
		all, err := t.count(ctx, "SELECT count(*)"+where, args...)
		if err != nil {
			return err
		}
		total = int(all)
		n := len(args)
		page, err = list(ctx, t, scanToken, fmt.Sprintf("SELECT %s%s ORDER BY created DESC, id DESC LIMIT $%d OFFSET $%d",
			tokenColumns, where, n+1, n+2), append(args, limit, offset)...)
		return err
	})
	return page, total, err
}

// Revoke revokes a token. It returns nil if the token was revoked before.
func (k *Tokens) Revoke(ctx context.Context, id string, events []Event, cause Cause) error {
	return k.db.write(ctx, "revoke token "+id, func(t *tx) error {
		rows, err := t.exec(ctx, "UPDATE tokens SET revoked = $2 WHERE id = $1 AND revoked = 0", id, t.now)
		if err != nil {
			return err
		}
		if rows == 0 {
			// The token was revoked before, or does not exist.
			events = nil
			if _, err := t.count(ctx, "SELECT revoked FROM tokens WHERE id = $1", id); err != nil {
				return err
			}
		}
		return t.log(ctx, events, cause.entry(t, 200, ""))
	})
}

// RevokedSince returns the ids of tokens that were revoked at or after a time.
func (k *Tokens) RevokedSince(ctx context.Context, since time.Time) ([]string, error) {
	return readList(ctx, k.db, "list revoked tokens", scanText,
		"SELECT id FROM tokens WHERE revoked <> 0 AND revoked >= $1", since)
}
