package records

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

var postgresDialect = &dialect{
	name: "postgres",
	types: strings.NewReplacer("{key}", "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY", "{bytes}", "BYTEA",
		"{folded}", `TEXT COLLATE "C"`, "{clustered}", "",
		"{numbered}", "entry BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, seq BIGINT UNIQUE"),
	words: strings.NewReplacer("{update}", " FOR UPDATE", "{share}", " FOR SHARE", "{skip}",
		" FOR UPDATE OF d SKIP LOCKED",
		"{bytes}", "BYTEA", "{stamp}", postgresStamp, "{grow}", grow(postgresStamp)),
	// All statements of the transaction see the state of the database that the first statement sees.
	snapshot: sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true},
	now:      "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)",
	tables:   "SELECT count(*) FROM pg_tables WHERE schemaname = current_schema()",
	exists:   "SELECT count(*) FROM pg_tables WHERE schemaname = current_schema() AND tablename = $1",
	// The number is arbitrary; it begins with "afs" in ASCII.
	serial:   "SELECT pg_advisory_xact_lock(6386291)",
	parallel: true,
	classify: classifyPostgres,
}

const (
	postgresConnections = 16
	postgresIdle        = 4
)

// openPostgres opens the pool of connections to a PostgreSQL server.
func openPostgres(url string) (*sql.DB, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		// The error of pgx is not used: it contains the URL, although without the password.
		return nil, errors.New("URL of the PostgreSQL database is not valid")
	}
	for name, value := range map[string]string{
		"application_name": "artifactfs",
		// PostgreSQL ends a transaction that sends no statement for this time, so that a node that hangs does not keep its
		// locks.
		"idle_in_transaction_session_timeout": "30s",
		"lock_timeout":                        "20s",
		// A push is acknowledged after its commit, so the commit must be on disk, whatever the default of the database is.
		"synchronous_commit": "on",
	} {
		if _, ok := config.RuntimeParams[name]; !ok {
			config.RuntimeParams[name] = value
		}
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = 10 * time.Second
	}
	// if the URL names several servers, use the one that accepts writes, because a standby may have older records
	if config.ValidateConnect == nil {
		config.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	db := stdlib.OpenDB(*config)
	db.SetMaxOpenConns(postgresConnections)
	db.SetMaxIdleConns(postgresIdle)
	db.SetConnMaxIdleTime(5 * time.Minute)
	// After a failover, connections to the previous server must end at some time, although that server still answers
	// reads.
	db.SetConnMaxLifetime(5 * time.Minute)
	return db, nil
}

// connectError is a pgconn.ConnectError with a shorter text.
type connectError struct {
	error
	text string
}

func (e connectError) Error() string { return e.text }
func (e connectError) Unwrap() error { return e.error }

// oneLine shortens the text of a failure to connect to one line that contains each reason once. The text of pgx has a
// line for each attempt, with and without TLS, for each server that the URL names. Other errors are returned unchanged.
func oneLine(err error) error {
	var connect *pgconn.ConnectError
	if !errors.As(err, &connect) {
		return err
	}
	var reasons []string
	for line := range strings.Lines(connect.Error()) {
		if line = strings.TrimSpace(line); line != "" && !slices.Contains(reasons, line) {
			reasons = append(reasons, line)
		}
	}
	text := reasons[0]
	if len(reasons) > 1 {
		text += " " + strings.Join(reasons[1:], "; ")
	}
	// The first line of a failed look-up contains the reason that the next lines repeat with another beginning.
	if first, rest, ok := strings.Cut(text, "; "); ok && strings.HasSuffix(first, rest) {
		text = first
	}
	return connectError{err, text}
}

func classifyPostgres(err error) class {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		switch e.Code {
		case "40001", "40P01": // serialization failure, deadlock
			return retriable
		case "53100": // disk full
			return full
		case "57014": // canceled by the context or by statement_timeout
			return interrupted
		case "55P03", "25006", "58030": // lock not available, read-only transaction (a standby), I/O error
			return unavailable
		case "XX001", "XX002": // corrupted data or index
			return damaged
		}
		switch e.Code[:2] {
		case "08", "53", "57": // connection, resources, intervention of the operator
			return unavailable
		}
		return other
	}
	var connect *pgconn.ConnectError
	var network net.Error
	switch {
	case errors.As(err, &connect), errors.As(err, &network), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, net.ErrClosed), errors.Is(err, driver.ErrBadConn), errors.Is(err, sql.ErrConnDone),
		pgconn.SafeToRetry(err), pgconn.Timeout(err), strings.Contains(err.Error(), "conn closed"):
		return unavailable
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return interrupted
	}
	return other
}
