package records

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Packs stores the records of the packs in the object store. The record of a pack is created by Begin. The pack is
// listed by repositories after Repos.Push, Packs.Replace and forks, and Unused finds it when no repository lists it any
// more. Then Condemn prevents that a repository lists it again, so that its files can be deleted, and Forget removes
// the record. An id is never used again.
type Packs struct{ db *DB }

const packColumns = "p.id, p.hash, p.extensions, p.bytes, p.objects, p.created"

func scanPack(row scanner) (p Pack, err error) {
	var extensions string
	err = row.Scan(&p.ID, &p.Hash, &extensions, &p.Bytes, &p.Objects, stamp{&p.Created})
	p.Extensions = strings.Fields(extensions)
	return p, err
}

// Begin records a pack before its files are stored, so that Unused finds the pack if the process dies. Push and Replace
// accept recorded packs only.
func (p *Packs) Begin(ctx context.Context, pack Pack) error {
	return p.db.write(ctx, "record pack "+pack.ID, func(t *tx) error {
		if pack.Created.IsZero() {
			pack.Created = t.now
		}
		return orNone(ErrExists)(t.exec(ctx, `INSERT INTO packs (id, hash, extensions, bytes, objects, created, idle_since)
			VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (id) DO NOTHING`,
			pack.ID, pack.Hash, strings.Join(pack.Extensions, " "), pack.Bytes, pack.Objects, pack.Created, pack.Created))
	})
}

// link adds a pack to a repository, and stores the number and the sizes of its files, which are complete at that time.
func (t *tx) link(ctx context.Context, repo int64, p Pack) error {
	// The update locks the row, so a transaction of Condemn waits for this transaction, and then finds the link.
	keys, err := list(ctx, t, scanInt,
		`UPDATE packs SET hash = $2, extensions = $3, bytes = $4, objects = $5, idle_since = 0
		WHERE id = $1 AND idle_since <> -1 RETURNING pack`, p.ID, p.Hash, strings.Join(p.Extensions, " "), p.Bytes, p.Objects)
	if err != nil {
		return err
	}
	if len(keys) == 0 {
		// The push took longer than the grace period for unused packs, so its pack was removed. A new push stores a new
		// pack.
		return fmt.Errorf("%w: pack %s has no record, or was removed because no repository listed it", ErrUnavailable, p.ID)
	}
	_, err = t.exec(ctx, "INSERT INTO links (repo, pack) VALUES ($1, $2) ON CONFLICT DO NOTHING", repo, keys[0])
	return err
}

// Replace replaces packs of a repository by others with the same objects, in one transaction. It returns ErrNotFound if
// the repository no longer has all of the old packs.
func (p *Packs) Replace(ctx context.Context, repoID string, old []string, packs []Pack) error {
	return p.db.write(ctx, "replace packs of repository "+repoID, func(t *tx) error {
		repo, err := t.lockRepo(ctx, repoID)
		if err != nil {
			return err
		}
		return t.replacePacks(ctx, repo, old, packs, 0)
	})
}

// Collect replaces packs as Replace does, but the new packs do not have all objects of the old ones. version is the
// version of the repository at which the caller has determined that its refs do not need the missing objects. If the
// version has changed since then, Collect fails with ErrChanged. From then on, a push that was checked before fails
// with ErrCollected.
func (p *Packs) Collect(ctx context.Context, repoID string, version Version, old []string, packs []Pack) error {
	return p.db.write(ctx, "collect garbage of repository "+repoID, func(t *tx) error {
		repo, err := t.lockRepo(ctx, repoID)
		if err != nil {
			return err
		}
		if now := repo.version(); now != version {
			return fmt.Errorf("replace packs: version of the repository is %v instead of %v: %w", now, version, ErrChanged)
		}
		return t.replacePacks(ctx, repo, old, packs, 1)
	})
}

// replacePacks replaces packs of a repository, and adds the number collections to the repository's number of garbage
// collections.
func (t *tx) replacePacks(ctx context.Context, repo lockedRepo, old []string, packs []Pack, collections int) error {
	for _, id := range old {
		keys, err := list(ctx, t, scanInt,
			`DELETE FROM links WHERE repo = $1 AND pack = (SELECT pack FROM packs WHERE id = $2)
			RETURNING pack`, repo.key, id)
		if err != nil {
			return err
		}
		if len(keys) == 0 {
			return fmt.Errorf("pack %s: %w", id, ErrNotFound)
		}
		if _, err := t.exec(ctx, "UPDATE packs SET idle_since = $2 WHERE pack = $1", keys[0], t.now); err != nil {
			return err
		}
	}
	for _, pack := range packs {
		if err := t.link(ctx, repo.key, pack); err != nil {
			return err
		}
	}
	_, err := t.exec(ctx, "UPDATE repos SET {grow}, collections = collections + $2 WHERE repo = $1", repo.key,
		collections)
	return err
}

// Unused returns packs that no repository has listed since the time before.
func (p *Packs) Unused(ctx context.Context, before time.Time, limit int) ([]Pack, error) {
	return readList(ctx, p.db, "find unused packs", scanPack,
		"SELECT "+packColumns+` FROM packs p WHERE p.idle_since <> 0 AND p.idle_since < $1
			AND NOT EXISTS (SELECT 1 FROM links l WHERE l.pack = p.pack) ORDER BY p.idle_since LIMIT $2`, before, limit)
}

// Condemn marks an unused pack, so that no repository can list it any more and its files can be deleted. It returns
// false if a repository lists the pack or has listed it since the time before, or if the pack has no record. Unused
// still returns the pack, in case the process dies before Forget.
func (p *Packs) Condemn(ctx context.Context, id string, before time.Time) (condemned bool, err error) {
	err = p.db.write(ctx, "condemn pack "+id, func(t *tx) error {
		condemned = false
		// The lock makes this transaction wait for a push that links the pack. The links are counted by a separate
		// statement, which sees that push.
		var key int64
		err := t.one(ctx, []any{&key}, "SELECT pack FROM packs WHERE id = $1 AND idle_since <> 0 AND idle_since < $2{update}",
			id, before)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		links, err := t.count(ctx, "SELECT count(*) FROM links WHERE pack = $1", key)
		if err != nil || links != 0 {
			return err
		}
		_, err = t.exec(ctx, "UPDATE packs SET idle_since = -1 WHERE pack = $1", key)
		condemned = err == nil
		return err
	})
	return condemned && err == nil, err
}

// Forget removes the record of a condemned pack whose files were deleted.
func (p *Packs) Forget(ctx context.Context, id string) error {
	return p.db.write(ctx, "forget pack "+id, func(t *tx) error {
		_, err := t.exec(ctx, "DELETE FROM packs WHERE id = $1 AND idle_since = -1", id)
		return err
	})
}

// Sharers returns, for each pack of a repository, the number of repositories that list the pack.
func (p *Packs) Sharers(ctx context.Context, repoID string) (sharers map[string]int, err error) {
	sharers = map[string]int{}
	err = p.db.single(ctx, "count sharers of packs of repository "+repoID, func(t *tx) error {
		return t.each(ctx, func(row scanner) error {
			var id string
			var n int
			err := row.Scan(&id, &n)
			sharers[id] = n
			return err
		}, `SELECT p.id, (SELECT count(*) FROM links o WHERE o.pack = l.pack)
			FROM repos r JOIN links l ON l.repo = r.repo JOIN packs p ON p.pack = l.pack WHERE r.id = $1`, repoID)
	})
	return sharers, err
}

// Totals returns the total number of objects and of bytes in the packs of a repository. An object in two packs counts
// twice.
func (p *Packs) Totals(ctx context.Context, repoID string) (objects, bytes int64, err error) {
	err = p.db.single(ctx, "measure repository "+repoID, func(t *tx) error {
		return t.one(ctx, []any{&objects, &bytes},
			`SELECT CAST(COALESCE(SUM(p.objects), 0) AS BIGINT), CAST(COALESCE(SUM(p.bytes), 0) AS BIGINT)
			FROM repos r JOIN links l ON l.repo = r.repo JOIN packs p ON p.pack = l.pack WHERE r.id = $1`, repoID)
	})
	return objects, bytes, err
}
