package records

import (
	"context"
	"time"
)

// Usage stores counters of operations.
type Usage struct{ db *DB }

// UsageRow counts the operations of one kind on a repository on one UTC day.
type UsageRow struct {
	Day       string // day in the form 2006-01-02
	Namespace string
	RepoID    string
	Operation string // name of the operation: push, fetch, clone, read, create, fork, ...
	Count     int64
	Bytes     int64 // number of bytes that were sent and received
}

// Add adds the rows to the counters. Repos.Push counts pushes itself.
func (u *Usage) Add(ctx context.Context, rows []UsageRow) error {
	if len(rows) == 0 {
		return nil
	}
	return u.db.write(ctx, "count usage", func(t *tx) error {
		for _, row := range rows {
			if err := t.addUsage(ctx, row); err != nil {
				return err
			}
		}
		return nil
	})
}

func (t *tx) addUsage(ctx context.Context, row UsageRow) error {
	_, err := t.exec(ctx,
		`INSERT INTO usage (namespace, day, repo_id, operation, count, bytes) VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (namespace, day, repo_id, operation) 
		DO UPDATE SET count = usage.count + excluded.count, bytes = usage.bytes + excluded.bytes`,
		row.Namespace, row.Day, row.RepoID, row.Operation, row.Count, row.Bytes)
	return err
}

// List returns the counters of a namespace, or of one of its repositories, for the days from first to last.
func (u *Usage) List(ctx context.Context, namespace, repoID, first, last string) (rows []UsageRow, err error) {
	query, args := `SELECT day, namespace, repo_id, operation, count, bytes FROM usage
		WHERE namespace = $1 AND day >= $2 AND day <= $3`, []any{namespace, first, last}
	if repoID != "" {
		query, args = query+" AND repo_id = $4", append(args, repoID)
	}
	return readList(ctx, u.db, "read usage", scanUsageRow, query+" ORDER BY day, repo_id, operation", args...)
}

func scanUsageRow(row scanner) (u UsageRow, err error) {
	err = row.Scan(&u.Day, &u.Namespace, &u.RepoID, &u.Operation, &u.Count, &u.Bytes)
	return u, err
}

// Leases stores leases, which make sure that one node at a time does a piece of background work.
type Leases struct{ db *DB }

// Acquire takes or renews a lease for the time ttl. It returns false if another holder has the lease. The database's
// clock is used, because all nodes share it.
func (l *Leases) Acquire(ctx context.Context, name, holder string, ttl time.Duration) (acquired bool, err error) {
	now := l.db.dialect.now
	err = l.db.write(ctx, "acquire lease on "+name, func(t *tx) error {
		rows, err := t.exec(ctx, "INSERT INTO leases (name, holder, expires) VALUES ($1, $2, "+now+` + $3)
			ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires = excluded.expires
			WHERE leases.holder = excluded.holder OR leases.expires <= `+now, name, holder, ttl.Microseconds())
		acquired = rows == 1
		return err
	})
	return acquired && err == nil, err
}

// Release ends a lease. It does nothing if the holder does not have the lease.
func (l *Leases) Release(ctx context.Context, name, holder string) error {
	return l.db.write(ctx, "release lease on "+name, func(t *tx) error {
		_, err := t.exec(ctx, "DELETE FROM leases WHERE name = $1 AND holder = $2", name, holder)
		return err
	})
}

// Settings are values that all nodes share, and that are set only once.
type Settings struct{ db *DB }

// Get returns the value of a setting, such as the id of the account. It returns ErrNotFound if the setting was never
// set.
func (s *Settings) Get(ctx context.Context, key string) (value string, err error) {
	err = s.db.single(ctx, "read setting "+key, func(t *tx) error {
		return t.one(ctx, []any{&value}, "SELECT value FROM settings WHERE key = $1", key)
	})
	return value, err
}

// SetOnce sets a setting that has no value yet, and returns the value of the setting.
func (s *Settings) SetOnce(ctx context.Context, key, value string) (current string, err error) {
	err = s.db.write(ctx, "set "+key, func(t *tx) error {
		if _, err := t.exec(ctx, "INSERT INTO settings (key, value) VALUES ($1, $2) ON CONFLICT (key) DO NOTHING", key,
			value); err != nil {
			return err
		}
		return t.one(ctx, []any{&current}, "SELECT value FROM settings WHERE key = $1", key)
	})
	return current, err
}
