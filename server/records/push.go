package records

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
)

// Push makes updates of refs visible in one transaction. The result contains an error for each update that failed, with
// a text for the user of git, such as "stale ref". If Push returns an error, such as ErrChanged, no update was made.
// The pack must have been recorded by Packs.Begin. It is added to the repository if an update that may need it
// succeeds. The push is counted in the usage of the repository.
func (r *Repos) Push(ctx context.Context, p Push) (results []error, err error) {
	err = r.db.write(ctx, "push to repository "+p.RepoID, func(t *tx) error {
		results, err = t.push(ctx, p)
		return err
	})
	if err != nil {
		return nil, err
	}
	return results, nil
}

func (t *tx) push(ctx context.Context, p Push) ([]error, error) {
	repo, err := t.lockRepo(ctx, p.RepoID)
	if err != nil {
		return nil, err
	}
	if p.TokenID != "" {
		if err := t.checkToken(ctx, p.TokenID, p.MostRefs != 0); err != nil {
			return nil, err
		}
	}
	if err := repo.check(p.Version); err != nil {
		return nil, err
	}
	refs, err := t.affected(ctx, repo.refs, p.Updates, p.Assumed)
	if err != nil {
		return nil, err
	}
	for _, a := range p.Assumed {
		if refs.ids[a.Name] != a.ID {
			return nil, fmt.Errorf("%w: %s", ErrChanged, a.Name)
		}
	}
	archived, err := t.refuseArchived(ctx, repo.key, p.Updates)
	if err != nil {
		return nil, err
	}
	results := refs.applyOthers(p.Updates, p.Atomic, archived)
	if err := t.removeRefs(ctx, repo.refs, refs.removed()); err != nil {
		return nil, err
	}
	written := refs.written()
	if err := t.putRefs(ctx, repo.key, written); err != nil {
		return nil, err
	}
	if p.MostRefs != 0 {
		if err := t.countRefs(ctx, p.TokenID, refs.done, p.MostRefs); err != nil {
			return nil, err
		}
	}
	var events []Event
	if len(refs.done) != 0 {
		if p.Pack != nil && len(written) != 0 {
			if err := t.link(ctx, repo.key, *p.Pack); err != nil {
				return nil, err
			}
		}
		set := "UPDATE repos SET {grow}, updated = $2, last_push = $2 WHERE repo = $1"
		if p.TokenID == "" {
			set = "UPDATE repos SET {grow}, updated = $2 WHERE repo = $1"
		}
		if _, err := t.exec(ctx, set, repo.key, t.now); err != nil {
			return nil, err
		}
		if err := t.recordChanges(ctx, repo, refs); err != nil {
			return nil, err
		}
		if p.Events != nil {
			events = p.Events(refs.done)
		}
	}
	usage := UsageRow{Day: t.now.Format("2006-01-02"), Namespace: repo.namespace, RepoID: p.RepoID,
		Operation: "push", Count: 1}
	switch {
	case p.Usage != "":
		usage.Operation = p.Usage
	case p.TokenID == "":
		usage.Operation = "import"
	}
	if p.Pack != nil {
		usage.Bytes = p.Pack.Bytes
	}
	if err := t.addUsage(ctx, usage); err != nil {
		return nil, err
	}
	return results, t.log(ctx, events, p.Cause.entry(t, 200, join(describe(p.Updates, results), p.Detail)))
}

// checkToken returns ErrRevoked if a token is not valid any more. It locks the token, so that a revocation waits until
// the transaction of the push ends, and no push becomes visible after a revocation was acknowledged. counts is true if
// the transaction also calls countRefs.
func (t *tx) checkToken(ctx context.Context, id string, counts bool) error {
	lock := "{share}"
	if counts {
		lock = "{update}" // with a shared lock, two such transactions would wait for each other
	}
	var token Token
	err := t.one(ctx, []any{stamp{&token.Expires}, stamp{&token.Revoked}},
		"SELECT expires, revoked FROM tokens WHERE id = $1"+lock, id)
	if errors.Is(err, sql.ErrNoRows) {
		return ErrRevoked
	}
	if err != nil {
		return err
	}
	if !token.Revoked.IsZero() || !token.Expires.IsZero() && !token.Expires.After(t.now) {
		return ErrRevoked
	}
	return nil
}

// tokenRefsSchema adds the column with the number of refs that each token has created and not removed.
const tokenRefsSchema = `ALTER TABLE tokens ADD COLUMN refs BIGINT NOT NULL DEFAULT 0;`

// countRefs counts the refs that a token creates and removes by the updates done. It returns a TokenRefsError if the
// updates create refs and the token then has created more than most.
func (t *tx) countRefs(ctx context.Context, id string, done []RefUpdate, most int64) error {
	var created, removed int64
	for _, u := range done {
		switch {
		case u.Creates():
			created++
		case u.Removes():
			removed++
		}
	}
	if created == removed {
		return nil
	}
	var before int64
	if err := t.one(ctx, []any{&before}, "SELECT refs FROM tokens WHERE id = $1", id); err != nil {
		return err
	}
	after := max(0, before+created-removed)
	if created > removed && after > most {
		return TokenRefsError{most}
	}
	_, err := t.exec(ctx, "UPDATE tokens SET refs = $2 WHERE id = $1", id, after)
	return err
}

// join returns two texts with a line break between them, unless one is empty.
func join(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "\n" + b
}

// maxDetail is the maximum size, in bytes, of the list of refs in the audit entry of a push.
const maxDetail = 4096

// describe returns a text with the updates and their results for the audit log.
func describe(updates []RefUpdate, results []error) string {
	var b strings.Builder
	for i, u := range updates {
		line := fmt.Sprintf("%s %.12s..%.12s", u.Name, u.Old, u.New)
		if results[i] != nil {
			line += ": " + results[i].Error()
		}
		if b.Len()+len(line) > maxDetail {
			fmt.Fprintf(&b, "and %d more", len(updates)-i)
			break
		}
		b.WriteString(line + "\n")
	}
	return strings.TrimSuffix(b.String(), "\n")
}
