package records

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// dialect contains the differences between the databases. All statements use $1 placeholders, RETURNING, ON CONFLICT
// and comparisons of rows, which both databases support. Other parts of statements differ, and are written as these
// words: {update}, {share} and {skip} at the end of a SELECT that locks rows, {bytes} in a CAST, {stamp} for a new
// Version.Stamp, and {grow} for the assignments that increment the generation of a repository.
type dialect struct {
	name     string
	types    *strings.Replacer // replaces the names of types in the schema, such as {key}
	words    *strings.Replacer // replaces the words in statements
	snapshot sql.TxOptions     // options of a transaction that only reads, and sees one state of the database
	now      string            // SQL expression for the present time of the database, in microseconds since 1970
	tables   string            // SELECT statement that counts all tables of the database
	exists   string            // SELECT statement that counts the tables with the name $1
	// statement that makes processes upgrade the schema one after the other; "" if transactions exclude each other
	// anyway
	serial   string
	parallel bool // whether transactions that write can run at the same time
	classify func(error) class
}

// class is the kind of a database error.
type class int

const (
	other       class = iota
	retriable         // the transaction can be repeated
	unavailable       // the database did not answer
	full              // the disk is full
	interrupted       // the context of the call has ended
	damaged           // the file is corrupt or is not a database
)

var sqliteDialect = &dialect{
	name: "sqlite",
	types: strings.NewReplacer("{key}", "INTEGER PRIMARY KEY", "{bytes}", "BLOB", "{folded}", "TEXT",
		"{numbered}", "seq BIGINT NOT NULL PRIMARY KEY", "{clustered}", " WITHOUT ROWID"),
	// A write transaction of SQLite excludes all others, so there are no locks of rows.
	words: strings.NewReplacer("{update}", "", "{share}", "", "{skip}", "", "{bytes}", "BLOB", "{stamp}", sqliteStamp,
		"{grow}", grow(sqliteStamp)),
	now:      "CAST(unixepoch('subsec') * 1000000 AS INTEGER)",
	tables:   "SELECT count(*) FROM sqlite_schema",
	exists:   "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = $1",
	classify: classifySQLite,
}

const (
	sqliteReaders = 4
	// sqliteCache is the size in KiB of the page cache of each connection. It can be small because the kernel also caches
	// the file.
	sqliteCache = 1024
	// busyTime is the maximum time for which a statement or a new connection waits for locks of other processes.
	busyTime = 10 * time.Second
)

// openSQLite opens the pools for reading and for writing. The pool for writing has one connection: SQLite has one
// writer at a time, and transactions that wait in the pool are served in order, but transactions that wait in SQLite
// are not.
func openSQLite(path string) (read, write *sql.DB, err error) {
	if path == "" || path == ":memory:" {
		return nil, nil, errors.New("open SQLite database: URL sqlite: needs the path of a file")
	}
	path, err = filepath.Abs(path)
	if err != nil {
		return nil, nil, err
	}
	// The file contains secrets of webhooks, but SQLite would create it with read permission for all users.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, nil, err
	}
	if err := f.Close(); err != nil {
		return nil, nil, err
	}
	dsn := func(lock string, pragmas ...string) string {
		q := url.Values{}
		all := []string{fmt.Sprintf("busy_timeout(%d)", busyTime.Milliseconds()), fmt.Sprintf("cache_size(-%d)", sqliteCache),
			"temp_store(memory)"}
		for _, p := range append(all, pragmas...) {
			q.Add("_pragma", p)
		}
		q.Set("_txlock", lock)
		return (&url.URL{Scheme: "file", Path: path}).String() + "?" + q.Encode()
	}
	open := func(dsn string, connections int) (*sql.DB, error) {
		c, err := sqlite.NewConnector(dsn)
		if err != nil {
			return nil, err
		}
		db := sql.OpenDB(preparing{c})
		db.SetMaxOpenConns(connections)
		db.SetMaxIdleConns(connections)
		return db, nil
	}
	// Linux distributions build SQLite with fdatasync, which does not wait for the modification time. The driver's default
	// is fsync, and it keeps using fsync if this system has no fdatasync.
	_, _ = sqlite.Fdatasync(true)
	// The log is truncated after a transaction that made it large, such as a push of 100,000 refs.
	// With synchronous=FULL every commit is synced to the disk: a push that was acknowledged survives a power failure.
	write, err = open(dsn("immediate", "journal_mode(wal)", "synchronous(full)", "journal_size_limit(67108864)"), 1)
	if err != nil {
		return nil, nil, err
	}
	read, err = open(dsn("deferred", "query_only(true)"), sqliteReaders)
	if err != nil {
		return nil, nil, errors.Join(err, write.Close())
	}
	return read, write, nil
}

// isBusy reports whether another process has locked the SQLite database.
func isBusy(err error) bool {
	var e *sqlite.Error
	return errors.As(err, &e) && e.Code()&0xff == sqlite3.SQLITE_BUSY
}

func classifySQLite(err error) class {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return other
	}
	switch e.Code() & 0xff {
	case sqlite3.SQLITE_FULL:
		return full
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_IOERR,
		sqlite3.SQLITE_CANTOPEN,
		sqlite3.SQLITE_READONLY, sqlite3.SQLITE_NOMEM:
		return unavailable
	case sqlite3.SQLITE_INTERRUPT:
		return interrupted
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return damaged
	}
	return other
}

// failure returns err with the name of the operation, wrapped with the sentinel error of this package for its class.
func (d *dialect) failure(ctx context.Context, what string, err error) error {
	if err == nil {
		return nil
	}
	if c := context.Cause(ctx); c != nil {
		return fmt.Errorf("%s: %w", what, c)
	}
	switch d.classify(err) {
	case full:
		return fmt.Errorf("%s: %w: %w", what, ErrFull, err)
	case retriable, unavailable, interrupted:
		return fmt.Errorf("%s: %w: %w", what, ErrUnavailable, oneLine(err))
	case damaged:
		return fmt.Errorf("%s: database file is damaged, or is not a database of artifactfs: %w", what, err)
	}
	if errors.Is(err, sql.ErrNoRows) {
		err = ErrNotFound
	}
	return fmt.Errorf("%s: %w", what, err)
}

// micros returns a time as it is stored: in microseconds since 1970, or 0 for the zero time.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// stamp scans a column with a time.
type stamp struct{ t *time.Time }

func (s stamp) Scan(v any) error {
	n, ok := v.(int64)
	if !ok {
		return fmt.Errorf("column with a time has the type %T", v)
	}
	*s.t = time.Time{}
	if n != 0 {
		*s.t = time.UnixMicro(n).UTC()
	}
	return nil
}
