package records

import (
	"context"
	"time"
)

// garbageSchema adds the time of the last search for garbage in a repository.
const garbageSchema = `
ALTER TABLE repos ADD COLUMN swept BIGINT NOT NULL DEFAULT 0;
CREATE INDEX repos_swept ON repos (swept) WHERE deleted = 0;
`

// GarbageExtension is the extension of a file of git that states, for each object in a pack, since when no ref has led
// to the object (gitformat-pack(5), "pack-*.mtimes files"). Only packs of garbage have such a file.
const GarbageExtension = ".mtimes"

// Unswept returns ids of repositories whose last search for garbage was before the time since, if they have changed
// after that search or have a pack of garbage. The repository with the oldest search is first.
func (r *Repos) Unswept(ctx context.Context, since time.Time, limit int) ([]string, error) {
	return readList(ctx, r.db, "find repositories with garbage", scanText,
		`SELECT r.id FROM repos r WHERE r.deleted = 0 AND r.swept < $1 AND (r.updated > r.swept OR EXISTS (
			SELECT 1 FROM links l JOIN packs p ON p.pack = l.pack WHERE l.repo = r.repo AND p.extensions LIKE '%`+GarbageExtension+`%'))
			ORDER BY r.swept LIMIT $2`, since, limit)
}

// Swept records that garbage was searched for in a repository. The search has seen the state of the repository at the
// time at.
func (r *Repos) Swept(ctx context.Context, id string, at time.Time) error {
	return r.db.write(ctx, "record sweep of repository "+id, func(t *tx) error {
		_, err := t.exec(ctx, "UPDATE repos SET swept = $2 WHERE id = $1 AND deleted = 0", id, at)
		return err
	})
}

// Overfull returns ids of repositories that have at least the given number of packs, including shared packs; forks must
// have at least twice as many. The repository with the most packs is first.
func (r *Repos) Overfull(ctx context.Context, packs, limit int) ([]string, error) {
	return readList(ctx, r.db, "find repositories with very many packs", scanText,
		`SELECT r.id FROM (SELECT repo, count(*) AS n FROM links GROUP BY repo HAVING count(*) >= $1) c
			JOIN repos r ON r.repo = c.repo WHERE c.n >= $1 * 2 OR r.source NOT LIKE 'artifacts:%' ORDER BY c.n DESC, r.id LIMIT $2`,
		packs, limit)
}

// largeSchema adds an index of large packs.
const largeSchema = `CREATE INDEX packs_large ON packs (objects) WHERE objects >= 1000;`

// Unindexed returns ids of repositories that have a large pack without a bitmap, if no other repository lists the pack.
// A pack is large if its number of objects is at least the parameter objects, which must not be below 1,000.
func (r *Repos) Unindexed(ctx context.Context, objects int64, limit int) ([]string, error) {
	return readList(ctx, r.db, "find repositories without bitmap", scanText,
		`SELECT DISTINCT r.id FROM packs p JOIN links l ON l.pack = p.pack JOIN repos r ON r.repo = l.repo
			WHERE p.objects >= 1000 AND p.objects >= $1 AND p.extensions NOT LIKE '%.bitmap%' AND r.shallow = '' AND r.base_url = ''
			AND NOT EXISTS (SELECT 1 FROM links o WHERE o.pack = p.pack AND o.repo <> l.repo) LIMIT $2`, objects, limit)
}
