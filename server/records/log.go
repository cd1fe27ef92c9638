package records

import (
	"context"
	"sync"
	"time"
)

// Events are the events that clients subscribe to.
type Events struct {
	db *DB

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when events were added
}

// Audit is the audit log. Its entries are never changed.
type Audit struct{ db *DB }

// log adds events and audit entries at the end of a transaction.
//
// Their numbers come from one row, which stays locked until the transaction ends. So numbers grow in the order of commits: a client that
// has read up to a number never misses an event that becomes visible later with a smaller one, as it would with a sequence of
// PostgreSQL. log is the last step of each transaction, so that the lock is short.
func (t *tx) log(ctx context.Context, events []Event, entries []AuditEntry) error {
	n := len(events) + len(entries)
	if n == 0 {
		return nil
	}
	seq, err := t.count(ctx, "UPDATE counters SET value = value + $1 WHERE name = 'log' RETURNING value", n)
	if err != nil {
		return err
	}
	seq -= int64(n)
	for _, e := range events {
		seq++
		if e.Time.IsZero() {
			e.Time = t.now
		}
		if _, err := t.exec(ctx, "INSERT INTO events (seq, type, namespace, repo, time, body) VALUES ($1, $2, $3, $4, $5, $6)",
			seq, e.Type, e.Namespace, e.Repo, e.Time, []byte(e.Body)); err != nil {
			return err
		}
		t.added = true
	}
	for _, a := range entries {
		seq++
		if a.Time.IsZero() {
			a.Time = t.now
		}
		if _, err := t.exec(ctx, `INSERT INTO audit (seq, time, token, actor, remote, method, target, result, detail)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
			seq, a.Time, a.Cause.TokenID, a.Cause.Actor, a.Cause.Remote, a.Cause.Method, a.Cause.Target, a.Result, a.Detail); err != nil {
			return err
		}
	}
	return nil
}

// entry returns the audit entry of a change, and none for the zero Cause, which stands for the server itself.
func (c Cause) entry(t *tx, result int, detail string) []AuditEntry {
	if c == (Cause{}) {
		return nil
	}
	return []AuditEntry{{Time: t.now, Cause: c, Result: result, Detail: detail}}
}

// Add adds events that belong to no other change, such as fetches.
func (e *Events) Add(ctx context.Context, events []Event) error {
	if len(events) == 0 {
		return nil
	}
	return e.db.write(ctx, "add events", func(t *tx) error { return t.log(ctx, events, nil) })
}

const eventColumns = "e.seq, e.type, e.namespace, e.repo, e.time, e.body"

func scanEvent(row scanner) (e Event, err error) {
	err = row.Scan(eventFields(&e)...)
	return e, err
}

func eventFields(e *Event) []any {
	return []any{&e.Seq, &e.Type, &e.Namespace, &e.Repo, stamp{&e.Time}, (*[]byte)(&e.Body)}
}

// After returns up to limit events with a larger number than seq, in order. Empty namespace or repo selects all.
func (e *Events) After(ctx context.Context, seq int64, namespace, repo string, limit int) (events []Event, err error) {
	query, args := "SELECT "+eventColumns+" FROM events e WHERE e.seq > $1", []any{seq, limit}
	if namespace != "" {
		query, args = query+" AND e.namespace = $3", append(args, namespace)
		if repo != "" {
			query, args = query+" AND e.repo = $4", append(args, repo)
		}
	}
	err = e.db.single(ctx, "read events", func(t *tx) error {
		events, err = list(ctx, t, scanEvent, query+" ORDER BY e.seq LIMIT $2", args...)
		return err
	})
	return events, err
}

// Last returns the number of the newest event or audit entry, which share their numbers.
func (e *Events) Last(ctx context.Context) (seq int64, err error) {
	err = e.db.single(ctx, "read number of newest event", func(t *tx) error {
		seq, err = t.last(ctx)
		return err
	})
	return seq, err
}

func (t *tx) last(ctx context.Context) (int64, error) {
	return t.count(ctx, "SELECT value FROM counters WHERE name = 'log'")
}

// Changed returns a channel that is closed when this process has added events.
func (e *Events) Changed() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.changed
}

// announce closes the channel of Changed.
func (e *Events) announce() {
	e.mu.Lock()
	defer e.mu.Unlock()
	close(e.changed)
	e.changed = make(chan struct{})
}

// dropped is the number of rows that one transaction of Drop examines, so that pushes do not wait for it.
const dropped = 1000

// Drop removes events and audit entries that are older than a time, and with them deliveries of these events, tokens that expired or
// were revoked before this time, and records of repositories that FindDeleted does not find any more.
func (e *Events) Drop(ctx context.Context, before time.Time) error {
	for _, table := range []string{"events", "audit"} {
		for more := true; more; {
			if err := e.db.write(ctx, "drop old "+table, func(t *tx) error {
				// Numbers grow with time, except for a few that different nodes assign at about the same time.
				rows, err := t.exec(ctx, "DELETE FROM "+table+" WHERE seq IN (SELECT seq FROM "+table+" ORDER BY seq LIMIT $1) AND time < $2",
					dropped, before)
				more = rows == dropped
				return err
			}); err != nil {
				return err
			}
		}
	}
	return e.db.write(ctx, "drop old tokens and repositories", func(t *tx) error {
		if _, err := t.exec(ctx, "DELETE FROM deliveries WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.seq = deliveries.seq)"); err != nil {
			return err
		}
		if _, err := t.exec(ctx, "DELETE FROM tokens WHERE expires <> 0 AND expires < $1 OR revoked <> 0 AND revoked < $1", before); err != nil {
			return err
		}
		_, err := t.exec(ctx, "DELETE FROM repos WHERE deleted <> 0 AND deleted < $1", t.now.Add(-tombstone))
		return err
	})
}

// Add adds entries of calls that changed no records, or whose entries do not belong to the change.
func (a *Audit) Add(ctx context.Context, entries []AuditEntry) error {
	if len(entries) == 0 {
		return nil
	}
	return a.db.write(ctx, "add audit entries", func(t *tx) error { return t.log(ctx, nil, entries) })
}

// After returns up to limit entries with a larger number than seq, in order.
func (a *Audit) After(ctx context.Context, seq int64, limit int) (entries []AuditEntry, err error) {
	err = a.db.single(ctx, "read audit log", func(t *tx) error {
		entries, err = list(ctx, t, scanAuditEntry, `SELECT seq, time, token, actor, remote, method, target, result, detail
			FROM audit WHERE seq > $1 ORDER BY seq LIMIT $2`, seq, limit)
		return err
	})
	return entries, err
}

func scanAuditEntry(row scanner) (a AuditEntry, err error) {
	err = row.Scan(&a.Seq, stamp{&a.Time}, &a.Cause.TokenID, &a.Cause.Actor, &a.Cause.Remote, &a.Cause.Method, &a.Cause.Target,
		&a.Result, &a.Detail)
	return a, err
}
