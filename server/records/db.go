package records

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/base32"
	"errors"
	"fmt"
	"strings"
	"time"
)

// DB is a database of records. Its fields group the methods by the kind of record.
type DB struct {
	Namespaces *Namespaces
	Repos      *Repos
	Packs      *Packs
	Tokens     *Tokens
	Events     *Events
	Audit      *Audit
	Usage      *Usage
	Leases     *Leases
	Webhooks   *Webhooks
	Imports    *Imports
	Archives   *Archives
	Retention  *Retention
	Settings   *Settings

	calls   calls
	dialect *dialect
	reader  *sql.DB
	// pool of connections for transactions that write; for PostgreSQL, the same pool as for reading
	writer *sql.DB
	group  group            // transactions that write to SQLite
	clock  func() time.Time // returns the current time; time.Now except in tests
}

// Open opens the database at url: sqlite:PATH or postgres://... It creates missing tables, and upgrades those of older
// versions.
func Open(ctx context.Context, url string) (*DB, error) {
	db := &DB{clock: time.Now}
	db.group.db = db
	scheme, rest, _ := strings.Cut(url, ":")
	var err error
	switch scheme {
	case "sqlite":
		db.dialect = sqliteDialect
		db.reader, db.writer, err = openSQLite(rest)
	case "postgres", "postgresql":
		db.dialect = postgresDialect
		db.reader, err = openPostgres(url)
		db.writer = db.reader
	default:
		// The URL is not part of the error, because it may contain a password.
		err = errors.New("URL of the database must begin with sqlite: or postgres://")
	}
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	db.Namespaces = &Namespaces{db}
	db.Repos = &Repos{db}
	db.Packs = &Packs{db}
	db.Tokens = &Tokens{db}
	db.Events = &Events{db: db, changed: make(chan struct{})}
	db.Audit = &Audit{db}
	db.Usage = &Usage{db}
	db.Leases = &Leases{db}
	db.Webhooks = &Webhooks{db}
	db.Imports = &Imports{db}
	db.Archives = &Archives{db}
	db.Retention = &Retention{db}
	db.Settings = &Settings{db}
	if err := db.migrate(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open database: %w", err), db.Close())
	}
	return db, nil
}

// Close closes the database. Transactions in progress fail.
func (db *DB) Close() error {
	err := db.reader.Close()
	if db.writer != db.reader {
		err = errors.Join(err, db.writer.Close())
	}
	return err
}

// Ping returns nil if the database answers, and ErrUnavailable otherwise.
func (db *DB) Ping(ctx context.Context) error {
	return db.single(ctx, "ping database", func(t *tx) error {
		_, err := t.count(ctx, "SELECT count(*) FROM counters")
		return err
	})
}

// now returns the current time, rounded to the microseconds that the database stores.
func (db *DB) now() time.Time { return db.clock().UTC().Truncate(time.Microsecond) }

// idEncoding is Crockford's base32 in lower case, in which ids sort like their bytes.
var idEncoding = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// NewID returns a random id of 26 characters that sorts by its time (a ULID).
func NewID() string {
	// A ULID has 48 bits of milliseconds and 80 random bits. Its 128 bits are encoded at the end of 130.
	var b [17]byte
	ms := uint64(time.Now().UnixMilli())
	for i := range 6 {
		b[i] = byte(ms >> (40 - 8*i))
	}
	rand.Read(b[6:16])
	// The encoding begins at the highest bit, so all bits are shifted down by two.
	for i := 16; i > 0; i-- {
		b[i] = b[i]>>2 | b[i-1]<<6
	}
	b[0] >>= 2
	return idEncoding.EncodeToString(b[:])[:26]
}

// fold returns a name in lower case. Two names of one kind must not differ only in case.
func fold(name string) string { return strings.ToLower(name) }
