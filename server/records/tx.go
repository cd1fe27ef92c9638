package records

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/internal/backoff"
)

// retries is the maximum number of repetitions of a transaction that has failed because of another transaction.
const retries = 10

// pauses are the pauses before these repetitions.
var pauses = backoff.Backoff{First: 5 * time.Millisecond, Longest: 40 * time.Millisecond}

// querier is a transaction, or a pool of connections, which can run a single statement without a transaction.
type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// tx runs statements, in a transaction except for those of DB.single.
type tx struct {
	querier
	dialect *dialect
	now     time.Time
	added   bool // whether the transaction has added events
	whole   bool // whether statements continue when their context ends (see group)
}

// write runs f in a transaction that writes. It calls f again if the transaction has failed because of another
// transaction, so f must set all of its results each time. what names the operation in errors.
func (db *DB) write(ctx context.Context, what string, f func(t *tx) error) (err error) {
	defer db.calls.measure(&db.calls.writes, time.Now(), &err)
	for attempt := 1; ; attempt++ {
		added, err := db.try(ctx, f)
		if err == nil {
			if added {
				db.Events.announce()
			}
			return nil
		}
		if attempt > retries || db.dialect.classify(err) != retriable {
			return db.dialect.failure(ctx, what, err)
		}
		if !pauses.Wait(ctx, attempt) {
			return db.dialect.failure(ctx, what, err)
		}
	}
}

func (db *DB) try(ctx context.Context, f func(t *tx) error) (added bool, err error) {
	if !db.dialect.parallel {
		return db.group.write(ctx, f)
	}
	s, err := db.writer.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer s.Rollback()
	t := &tx{querier: s, dialect: db.dialect, now: db.now()}
	if err := f(t); err != nil {
		return false, err
	}
	return t.added, s.Commit()
}

// read runs f in a transaction that sees the database at one moment.
func (db *DB) read(ctx context.Context, what string, f func(t *tx) error) (err error) {
	defer db.calls.measure(&db.calls.reads, time.Now(), &err)
	s, err := db.reader.BeginTx(ctx, &db.dialect.snapshot)
	if err != nil {
		return db.dialect.failure(ctx, what, err)
	}
	defer s.Rollback()
	return db.dialect.failure(ctx, what, f(&tx{querier: s, dialect: db.dialect, now: db.now()}))
}

// single calls f without a transaction; f may run one statement that reads.
func (db *DB) single(ctx context.Context, what string, f func(t *tx) error) (err error) {
	defer db.calls.measure(&db.calls.reads, time.Now(), &err)
	return db.dialect.failure(ctx, what, f(&tx{querier: db.reader, dialect: db.dialect, now: db.now()}))
}

// readList runs one SELECT without a transaction and returns its rows. what names the operation in errors.
func readList[T any](ctx context.Context, db *DB, what string, scan scanFunc[T], query string,
	args ...any) (all []T, err error) {
	err = db.single(ctx, what, func(t *tx) error {
		all, err = list(ctx, t, scan, query, args...)
		return err
	})
	return all, err
}

// readFirst runs one SELECT without a transaction and returns its only row. It returns ErrNotFound if there is no row.
// what names the operation in errors.
func readFirst[T any](ctx context.Context, db *DB, what string, scan scanFunc[T], query string,
	args ...any) (v T, err error) {
	err = db.single(ctx, what, func(t *tx) error {
		v, err = first(ctx, t, scan, query, args...)
		return err
	})
	return v, err
}

func (t *tx) context(ctx context.Context) context.Context {
	if t.whole {
		return context.WithoutCancel(ctx)
	}
	return ctx
}

// exec runs a statement and returns the number of rows that the statement has changed.
func (t *tx) exec(ctx context.Context, query string, args ...any) (int64, error) {
	r, err := t.ExecContext(t.context(ctx), t.dialect.words.Replace(query), bind(args)...)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

// orNone returns a function for the results of exec: it returns the error none if the statement has changed no row.
func orNone(none error) func(rows int64, err error) error {
	return func(rows int64, err error) error {
		if err == nil && rows == 0 {
			return none
		}
		return err
	}
}

// each runs a SELECT, and calls scan for each row.
func (t *tx) each(ctx context.Context, scan func(row scanner) error, query string, args ...any) error {
	rows, err := t.QueryContext(t.context(ctx), t.dialect.words.Replace(query), bind(args)...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// one runs a statement that returns one row, and scans it into dest. It returns sql.ErrNoRows if there is no row.
func (t *tx) one(ctx context.Context, dest []any, query string, args ...any) error {
	found := false
	err := t.each(ctx, func(row scanner) error {
		found = true
		return row.Scan(dest...)
	}, query, args...)
	if err == nil && !found {
		err = sql.ErrNoRows
	}
	return err
}

// count runs a statement that returns one number.
func (t *tx) count(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = t.one(ctx, []any{&n}, query, args...)
	return n, err
}

// scanFunc reads a value from a row.
type scanFunc[T any] = func(row scanner) (T, error)

// list runs a SELECT and returns its rows.
func list[T any](ctx context.Context, t *tx, scan scanFunc[T], query string, args ...any) (all []T, err error) {
	err = t.each(ctx, func(row scanner) error {
		v, err := scan(row)
		all = append(all, v)
		return err
	}, query, args...)
	return all, err
}

// scanner is a row of a result.
type scanner interface{ Scan(dest ...any) error }

// bind returns arguments in a form that both databases store: times as numbers, and texts without NUL and invalid
// UTF-8, which PostgreSQL refuses. Names of refs may contain such bytes, so they are stored as bytes.
func bind(args []any) []any {
	for i, a := range args {
		switch a := a.(type) {
		case time.Time:
			args[i] = micros(a)
		case string:
			args[i] = strings.ReplaceAll(strings.ToValidUTF8(a, "\ufffd"), "\x00", "")
		}
	}
	return args
}

// values returns the text of rows for VALUES, such as ($1,$2),($3,$4). The number of the first placeholder is first.
func values(rows, columns, first int) string {
	var b strings.Builder
	for i := range rows {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('(')
		b.WriteString(placeholders(columns, first+i*columns))
		b.WriteByte(')')
	}
	return b.String()
}

// placeholders returns the text of n placeholders, such as $1,$2,$3. The number of the first one is first.
func placeholders(n, first int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "$%d", first+i)
	}
	return b.String()
}

// first runs a SELECT and returns its only row, or sql.ErrNoRows.
func first[T any](ctx context.Context, t *tx, scan scanFunc[T], query string, args ...any) (v T, err error) {
	all, err := list(ctx, t, scan, query, args...)
	if err == nil && len(all) == 0 {
		err = sql.ErrNoRows
	}
	if err != nil {
		return v, err
	}
	return all[0], nil
}
