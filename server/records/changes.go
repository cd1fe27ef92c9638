package records

import (
	"context"
	"encoding/hex"
)

// changesSchema adds the table of the latest changes of refs in large repositories. A replica can be updated from these
// changes, without reading all refs.
const changesSchema = `
CREATE TABLE changed_refs (
	repo BIGINT NOT NULL,
	generation BIGINT NOT NULL, -- the first one that has the change
	name {bytes} NOT NULL,
	id {bytes} NOT NULL, -- empty if the ref was removed
	PRIMARY KEY (repo, generation, name)
){clustered};
`

// recordChanges records which refs a push has changed, if the repository has many refs and the push has changed few of
// them. It removes the records of changes for whose generations no stamps are kept. If a generation has no record, its
// changes are not known.
func (t *tx) recordChanges(ctx context.Context, repo lockedRepo, s *refSet) error {
	if len(s.changed) > few {
		return nil
	}
	if repo.refs.shared == 0 {
		if many, err := t.hasMany(ctx, repo.refs); err != nil || !many {
			return err
		}
	}
	next := repo.generation + 1
	if _, err := t.exec(ctx, "DELETE FROM changed_refs WHERE repo = $1 AND generation <= $2", repo.key,
		next-stamps); err != nil {
		return err
	}
	for name := range s.changed {
		id, err := hex.DecodeString(s.ids[name])
		if err != nil {
			return err
		}
		if _, err := t.exec(ctx, "INSERT INTO changed_refs (repo, generation, name, id) VALUES ($1, $2, $3, $4)",
			repo.key, next, []byte(name), id); err != nil {
			return err
		}
	}
	return nil
}

// SnapshotSince is like Snapshot for a caller that has read the refs of the repository at the version v. If the refs
// that were changed since then are recorded, the snapshot has them in Changed, and Refs is nil.
func (r *Repos) SnapshotSince(ctx context.Context, id string, v Version) (s Snapshot, err error) {
	err = r.snapshot(ctx, id, &s, func(t *tx, refs refRows) (known bool, err error) {
		var now history
		if err := t.one(ctx, now.fields(), "SELECT "+historyColumns+" FROM repos WHERE repo = $1", refs.own); err != nil {
			return false, err
		}
		if now.generation-v.Generation >= stamps || now.check(v) != nil {
			return false, nil
		}
		generations, err := t.count(ctx,
			"SELECT count(DISTINCT generation) FROM changed_refs WHERE repo = $1 AND generation > $2",
			refs.own, v.Generation)
		if err != nil || generations == 0 || generations != now.generation-v.Generation {
			return false, err
		}
		s.Changed, err = list(ctx, t, scanRef,
			`SELECT name, id FROM changed_refs c WHERE repo = $1 AND generation > $2 AND generation =
			(SELECT max(generation) FROM changed_refs WHERE repo = $1 AND name = c.name) ORDER BY name`, refs.own, v.Generation)
		return err == nil, err
	})
	return s, err
}
