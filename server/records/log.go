package records

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Events are the events that clients subscribe to.
type Events struct {
	db *DB

	mu      sync.Mutex
	changed chan struct{} // closed and replaced by a new channel when events were added
}

// Audit is the audit log. Its entries are never changed.
type Audit struct{ db *DB }

// log adds events and audit entries to a transaction.
//
// Their numbers grow in the order in which they become visible, so that a client that has read up to a number never
// misses an entry that becomes visible later. In SQLite, the transaction takes them from a counter. In PostgreSQL,
// several transactions add entries at once, and they are committed in an unknown order: a sequence would number them in
// another order, and a counter would make each transaction wait until the previous one is synced to the disk. So
// PostgreSQL stores the entries without numbers, and the method number assigns numbers to visible entries before they
// are read.
func (t *tx) log(ctx context.Context, events []Event, entries []AuditEntry) error {
	n := len(events) + len(entries)
	if n == 0 {
		return nil
	}
	next := func() any { return nil }
	if !t.dialect.parallel {
		seq, err := t.count(ctx, "UPDATE counters SET value = value + $1 WHERE name = 'log' RETURNING value", n)
		if err != nil {
			return err
		}
		seq -= int64(n)
		next = func() any { seq++; return seq }
	}
	for _, e := range events {
		if e.Time.IsZero() {
			e.Time = t.now
		}
		if _, err := t.exec(ctx,
			"INSERT INTO events (seq, type, namespace, repo, time, body) VALUES ($1, $2, $3, $4, $5, $6)",
			next(), e.Type, e.Namespace, e.Repo, e.Time, []byte(e.Body)); err != nil {
			return err
		}
		t.added = true
	}
	for _, a := range entries {
		if a.Time.IsZero() {
			a.Time = t.now
		}
		if _, err := t.exec(ctx, `INSERT INTO audit (seq, time, token, actor, remote, method, target, result, detail)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
			next(), a.Time, a.Cause.TokenID, a.Cause.Actor, a.Cause.Remote, a.Cause.Method, a.Cause.Target, a.Result,
			a.Detail); err != nil {
			return err
		}
	}
	return nil
}

// number assigns numbers to the entries of the log that have none. It is called before entries are read by their
// numbers.
func (db *DB) number(ctx context.Context) error {
	if !db.dialect.parallel {
		return nil
	}
	const what = "number events"
	var fresh int64
	if err := db.single(ctx, what, func(t *tx) (err error) {
		fresh, err = t.count(ctx, `SELECT CASE WHEN EXISTS (SELECT 1 FROM events WHERE seq IS NULL)
			OR EXISTS (SELECT 1 FROM audit WHERE seq IS NULL) THEN 1 ELSE 0 END`)
		return err
	}); err != nil || fresh == 0 {
		return err
	}
	return db.write(ctx, what, func(t *tx) error {
		// The lock lets one node at a time assign numbers. Transactions that add entries do not take it.
		last, err := t.count(ctx, "SELECT value FROM counters WHERE name = 'log'{update}")
		if err != nil {
			return err
		}
		for _, table := range []string{"events", "audit"} {
			// The statement sees all entries that were committed before it began. Entries that are committed later get
			// larger numbers in a later call.
			n, err := t.exec(ctx,
				"UPDATE "+table+" SET seq = $1 + f.i FROM (SELECT entry, row_number() OVER (ORDER BY entry) AS i FROM "+table+
					" WHERE seq IS NULL) f WHERE "+table+".entry = f.entry", last)
			if err != nil {
				return err
			}
			last += n
		}
		_, err = t.exec(ctx, "UPDATE counters SET value = $1 WHERE name = 'log'", last)
		return err
	})
}

// entry returns a list with the audit entry of a change. The list is empty for the zero Cause, which means that the
// server itself makes the change.
func (c Cause) entry(t *tx, result int, detail string) []AuditEntry {
	if c == (Cause{}) {
		return nil
	}
	return []AuditEntry{{Time: t.now, Cause: c, Result: result, Detail: detail}}
}

// Add adds events that are not part of a change of other records, such as events of fetches.
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

// eventBytes is the total size of bodies, in bytes, after which a page of events ends.
const eventBytes = 64 << 10

// errPageEnd stops the reading of rows, because the page is full.
var errPageEnd = errors.New("page of events is full")

// After returns events with numbers larger than seq, in order: at least one if there is any, and at most limit. It
// returns fewer if their bodies are large. An empty namespace or repo selects all.
func (e *Events) After(ctx context.Context, seq int64, namespace, repo string, limit int) (events []Event, err error) {
	query, args := "SELECT "+eventColumns+" FROM events e WHERE e.seq > $1", []any{seq, limit}
	if namespace != "" {
		query, args = query+" AND e.namespace = $3", append(args, namespace)
		if repo != "" {
			query, args = query+" AND e.repo = $4", append(args, repo)
		}
	}
	if err := e.db.number(ctx); err != nil {
		return nil, err
	}
	err = e.db.single(ctx, "read events", func(t *tx) error {
		events = nil
		size := 0
		err := t.each(ctx, func(row scanner) error {
			event, err := scanEvent(row)
			events = append(events, event)
			if size += len(event.Body); err == nil && size >= eventBytes {
				err = errPageEnd
			}
			return err
		}, query+" ORDER BY e.seq LIMIT $2", args...)
		if errors.Is(err, errPageEnd) {
			err = nil
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return events, nil
}

// Last returns the number of the newest event or audit entry, which share their numbers.
func (e *Events) Last(ctx context.Context) (seq int64, err error) {
	if err := e.db.number(ctx); err != nil {
		return 0, err
	}
	err = e.db.single(ctx, "read number of newest event", func(t *tx) error {
		seq, err = t.last(ctx)
		return err
	})
	return seq, err
}

func (t *tx) last(ctx context.Context) (int64, error) {
	return t.count(ctx, "SELECT value FROM counters WHERE name = 'log'")
}

// Changed returns a channel that is closed when this process adds events.
func (e *Events) Changed() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.changed
}

// announce closes the channel that Changed has returned.
func (e *Events) announce() {
	e.mu.Lock()
	defer e.mu.Unlock()
	close(e.changed)
	e.changed = make(chan struct{})
}

// dropped is the maximum number of rows that one transaction of Drop examines, so that pushes do not wait long for it.
const dropped = 1000

// Drop removes events and audit entries that are older than the time before. It also removes the deliveries of these
// events, tokens that expired or were revoked before this time, records of deleted repositories that FindDeleted does
// not find any more, and sets of shared refs that no fork uses any more.
func (e *Events) Drop(ctx context.Context, before time.Time) error {
	if err := e.db.number(ctx); err != nil {
		return err
	}
	for _, table := range []string{"events", "audit"} {
		for more := true; more; {
			if err := e.db.write(ctx, "drop old "+table, func(t *tx) error {
				// Entries with larger numbers are newer, except for a few that different nodes have added at about the
				// same time.
				rows, err := t.exec(ctx, "DELETE FROM "+table+" WHERE seq IN (SELECT seq FROM "+table+
					" ORDER BY seq LIMIT $1) AND time < $2",
					dropped, before)
				more = rows == dropped
				return err
			}); err != nil {
				return err
			}
		}
	}
	for more := true; more; {
		if err := e.db.write(ctx, "drop unused refs", func(t *tx) (err error) {
			more, err = t.dropShared(ctx)
			return err
		}); err != nil {
			return err
		}
	}
	return e.db.write(ctx, "drop old tokens and repositories", func(t *tx) error {
		if _, err := t.exec(ctx,
			"DELETE FROM deliveries WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.seq = deliveries.seq)"); err != nil {
			return err
		}
		if _, err := t.exec(ctx, "DELETE FROM tokens WHERE expires <> 0 AND expires < $1 OR revoked <> 0 AND revoked < $1",
			before); err != nil {
			return err
		}
		_, err := t.exec(ctx, "DELETE FROM repos WHERE deleted <> 0 AND deleted <= $1", t.now.Add(-tombstone))
		return err
	})
}

// Add adds audit entries in a separate transaction, for calls that have changed no records, such as reads.
func (a *Audit) Add(ctx context.Context, entries []AuditEntry) error {
	if len(entries) == 0 {
		return nil
	}
	return a.db.write(ctx, "add audit entries", func(t *tx) error { return t.log(ctx, nil, entries) })
}

// After returns up to limit entries with a larger number than seq, in order.
func (a *Audit) After(ctx context.Context, seq int64, limit int) (entries []AuditEntry, err error) {
	if err := a.db.number(ctx); err != nil {
		return nil, err
	}
	return readList(ctx, a.db, "read audit log", scanAuditEntry,
		`SELECT seq, time, token, actor, remote, method, target, result, detail
			FROM audit WHERE seq > $1 ORDER BY seq LIMIT $2`, seq, limit)
}

func scanAuditEntry(row scanner) (a AuditEntry, err error) {
	err = row.Scan(&a.Seq, stamp{&a.Time}, &a.Cause.TokenID, &a.Cause.Actor, &a.Cause.Remote, &a.Cause.Method,
		&a.Cause.Target,
		&a.Result, &a.Detail)
	return a, err
}
