package records

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// sharedSchema adds sets of refs, which a repository and its forks share.
const sharedSchema = `
CREATE TABLE shared_refs (shared {key}, created BIGINT NOT NULL);
ALTER TABLE repos ADD COLUMN shared BIGINT NOT NULL DEFAULT 0;
CREATE INDEX repos_shared ON repos (shared) WHERE shared <> 0;
`

// maxOwn is the maximum number of rows of the table refs that a fork copies. If the parent has more rows, they are
// first moved to a shared set, so that a fork needs little space and about a millisecond, however many refs it has.
const maxOwn = 400

// refRows contains the keys under which the table refs has the refs of a repository. Rows with the key own belong to
// this repository only, and hide rows of the shared set with the same names; such a row with an empty id hides a ref
// that the repository has removed. Rows of a shared set have the negative number of the set as their key, and never
// change.
type refRows struct {
	own    int64
	shared int64 // number of the shared set; 0 if the repository has none
}

// visibleRefs selects the refs of a repository; $1 is refRows.own and $2 is -refRows.shared.
const visibleRefs = `(SELECT name, id FROM refs WHERE repo = $1 AND length(id) > 0
	UNION ALL SELECT s.name, s.id FROM refs s WHERE s.repo = $2 AND NOT EXISTS (SELECT 1 FROM refs o WHERE o.repo = $1 AND o.name = s.name)) v`

// refs returns refs of a repository. where is the rest of the SELECT; its placeholders begin with $3.
func (t *tx) refs(ctx context.Context, r refRows, where string, args ...any) ([]Ref, error) {
	return list(ctx, t, scanRef, "SELECT v.name, v.id FROM "+visibleRefs+where,
		append([]any{r.own, -r.shared}, args...)...)
}

// allRefs returns the refs of a repository, sorted by name.
func (t *tx) allRefs(ctx context.Context, r refRows) ([]Ref, error) {
	return t.refs(ctx, r, " ORDER BY v.name")
}

func scanRef(row scanner) (Ref, error) {
	var name, id []byte
	err := row.Scan(&name, &id)
	return Ref{Name: string(name), ID: hex.EncodeToString(id)}, err
}

// namedRefs returns the refs with the given names, as far as they exist.
func (t *tx) namedRefs(ctx context.Context, r refRows, names []string) (found []Ref, err error) {
	for chunk := range slices.Chunk(names, batch) {
		args := []any{r.own, -r.shared}
		for _, name := range chunk {
			args = append(args, []byte(name))
		}
		// One subquery is written for each name. PostgreSQL assumes that all repositories have about the same number of
		// refs; for a single list of names it would read all refs of the repository and compare each with the list.
		var rows strings.Builder
		for i := range chunk {
			fmt.Fprintf(&rows, ", (CAST($%d AS {bytes}))", i+3)
		}
		err := t.each(ctx, func(row scanner) error {
			ref, err := scanRef(row)
			if ref.ID != "" {
				found = append(found, ref)
			}
			return err
		}, "WITH names (name) AS (VALUES "+rows.String()[2:]+`) SELECT name, COALESCE(
			(SELECT o.id FROM refs o WHERE o.repo = $1 AND o.name = names.name),
			(SELECT s.id FROM refs s WHERE s.repo = $2 AND s.name = names.name)) FROM names`, args...)
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// removeRefs removes refs, all of which must exist.
func (t *tx) removeRefs(ctx context.Context, r refRows, names []string) error {
	if len(names) > few {
		// First, a row that would hide a shared ref is written for each name. Then the rows whose names have no shared
		// ref are removed. So no name has to be looked up.
		hidden := make([]Ref, len(names))
		for i, name := range names {
			hidden[i].Name = name
		}
		if err := t.putRefs(ctx, r.own, hidden); err != nil {
			return err
		}
		_, err := t.exec(ctx, `DELETE FROM refs WHERE repo = $1 AND length(id) = 0
			AND NOT EXISTS (SELECT 1 FROM refs s WHERE s.repo = $2 AND s.name = refs.name)`, r.own, -r.shared)
		return err
	}
	for _, name := range names {
		if _, err := t.exec(ctx, "DELETE FROM refs WHERE repo = $1 AND name = $2", r.own, []byte(name)); err != nil {
			return err
		}
		if r.shared == 0 {
			continue
		}
		if _, err := t.exec(ctx,
			"INSERT INTO refs (repo, name, id) SELECT CAST($1 AS BIGINT), name, $4 FROM refs WHERE repo = $2 AND name = $3",
			r.own, -r.shared, []byte(name), []byte{}); err != nil {
			return err
		}
	}
	return nil
}

// lockParent locks a repository that is to be forked, and returns the keys of its refs and the commits at which its
// history ends. Its refs and packs cannot change until the transaction ends, so the fork gets all objects of its refs.
func (t *tx) lockParent(ctx context.Context, id string, refs bool) (r refRows, shallow string, err error) {
	const row = "SELECT repo, shared, shallow FROM repos WHERE id = $1 AND deleted = 0"
	fields := []any{&r.own, &r.shared, &shallow}
	if refs {
		if err := t.one(ctx, fields, row, id); err != nil {
			return r, "", err
		}
		many, err := t.hasMany(ctx, r)
		if err != nil {
			return r, "", err
		}
		if many {
			if err := t.one(ctx, fields, row+"{update}", id); err != nil {
				return r, "", err
			}
			err = t.share(ctx, &r)
			return r, shallow, err
		}
	}
	// Several transactions that fork can hold this lock at the same time.
	err = t.one(ctx, fields, row+"{share}", id)
	return r, shallow, err
}

// hasMany reports whether a repository has more than maxOwn rows of its own, so that they should be moved to a shared
// set.
func (t *tx) hasMany(ctx context.Context, r refRows) (bool, error) {
	n, err := t.count(ctx, "SELECT count(*) FROM (SELECT 1 FROM refs WHERE repo = $1 LIMIT $2) r", r.own, maxOwn+1)
	return n > maxOwn, err
}

// share moves the refs of a locked repository to a shared set, unless another transaction has done so before the lock
// was taken. The refs stay the same, so the generation of the repository also stays the same.
func (t *tx) share(ctx context.Context, r *refRows) error {
	if many, err := t.hasMany(ctx, *r); err != nil || !many {
		return err
	}
	set, err := t.count(ctx, "INSERT INTO shared_refs (created) VALUES ($1) RETURNING shared", t.now)
	if err != nil {
		return err
	}
	if _, err := t.exec(ctx, "INSERT INTO refs (repo, name, id) SELECT CAST($3 AS BIGINT), v.name, v.id FROM "+visibleRefs+
		" ORDER BY v.name",
		r.own, -r.shared, -set); err != nil {
		return err
	}
	if _, err := t.exec(ctx, "DELETE FROM refs WHERE repo = $1", r.own); err != nil {
		return err
	}
	r.shared = set
	_, err = t.exec(ctx, "UPDATE repos SET shared = $2 WHERE repo = $1", r.own, set)
	return err
}

// dropShared removes a shared set that no repository uses, and reports whether there was one. An unused set cannot be
// used again: a fork gets the set of its parent only while the parent, which uses the set, is locked.
func (t *tx) dropShared(ctx context.Context) (bool, error) {
	sets, err := list(ctx, t, scanInt,
		`SELECT shared FROM shared_refs s WHERE NOT EXISTS (SELECT 1 FROM repos r WHERE r.shared = s.shared)
		LIMIT 1{update}`)
	if err != nil || len(sets) == 0 {
		return false, err
	}
	if _, err := t.exec(ctx, "DELETE FROM refs WHERE repo = $1", -sets[0]); err != nil {
		return false, err
	}
	_, err = t.exec(ctx, "DELETE FROM shared_refs WHERE shared = $1", sets[0])
	return true, err
}
