package records

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/jackc/pgx/v5/pgconn"
)

// eachURL runs a test with the URL of an empty database of each kind.
func eachURL(t *testing.T, test func(t *testing.T, url string)) {
	t.Run("sqlite", func(t *testing.T) { test(t, "sqlite:"+filepath.Join(t.TempDir(), "with ?#% space.db")) })
	t.Run("postgres", func(t *testing.T) { test(t, newPostgres(t)) })
}

func TestReopen(t *testing.T) {
	eachURL(t, func(t *testing.T, url string) {
		db := open(t, url)
		id := create(t, db, "r", Ref{"refs/heads/main", oid(1)})
		do(t, db.Close())
		if got := refsOf(t, open(t, url), id); got != "refs/heads/main=2" {
			t.Errorf("refs after the database was opened again: got %q", got)
		}
	})
}

// TestManyOpenAtOnce opens a new database from several nodes at the same time. One of them creates the tables.
func TestManyOpenAtOnce(t *testing.T) {
	eachURL(t, func(t *testing.T, url string) {
		for _, err := range parallel(8, func(int) error {
			db, err := Open(t.Context(), url)
			if err != nil {
				return err
			}
			return db.Close()
		}) {
			do(t, err)
		}
	})
}

// TestUpgrade opens a database of the first schema version with a program that has two further migrations, and then
// with one that lacks the last of them.
func TestUpgrade(t *testing.T) {
	released := migrations
	t.Cleanup(func() { migrations = released })
	eachURL(t, func(t *testing.T, url string) {
		migrations = released
		db := open(t, url)
		id := create(t, db, "r")
		do(t, db.Close())
		migrations = append(released[:len(released):len(released)],
			"CREATE TABLE added (n BIGINT NOT NULL); INSERT INTO added VALUES (1)",
			"ALTER TABLE added ADD COLUMN more BIGINT NOT NULL DEFAULT 2")
		db = open(t, url)
		if n := rows(t, db, "added"); n != 1 {
			t.Errorf("rows of the added table: got %d, want 1", n)
		}
		if _, err := db.Repos.ByID(t.Context(), id); err != nil {
			t.Errorf("repository after the upgrade: %v", err)
		}
		do(t, db.Close())
		do(t, open(t, url).Close())
		migrations = migrations[:len(migrations)-1]
		if _, err := Open(t.Context(), url); err == nil || !strings.Contains(err.Error(), "use a newer artifactfs") {
			t.Errorf("open a newer schema: got %v", err)
		}
		// If a step fails, the schema keeps its previous version.
		migrations = append(migrations, "", "CREATE TABLE half (n BIGINT); INSERT INTO missing VALUES (1)")
		if _, err := Open(t.Context(), url); err == nil {
			t.Error("an upgrade that fails returns no error")
		}
		migrations = migrations[:len(migrations)-1]
		if n := rows(t, open(t, url), "added"); n != 1 {
			t.Errorf("rows after an upgrade that failed: got %d, want 1", n)
		}
	})
}

func TestForeignDatabaseIsRefused(t *testing.T) {
	eachURL(t, func(t *testing.T, url string) {
		var pool *sql.DB
		var err error
		if path, ok := strings.CutPrefix(url, "sqlite:"); ok {
			_, pool, err = openSQLite(path)
		} else {
			pool, err = openPostgres(url)
		}
		do(t, err)
		_, err = pool.ExecContext(t.Context(), "CREATE TABLE tokens (n BIGINT)")
		do(t, errors.Join(err, pool.Close()))
		if _, err := Open(t.Context(), url); err == nil || !strings.Contains(err.Error(), "tables of another program") {
			t.Errorf("open the database of another program: got %v", err)
		}
	})
}

func TestDamagedFileIsRefused(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	do(t, os.WriteFile(text, []byte(strings.Repeat("no database\n", 1000)), 0o600))
	torn := filepath.Join(dir, "torn")
	db := open(t, "sqlite:"+torn)
	for range 50 {
		create(t, db, NewID(), manyRefs(20)...)
	}
	do(t, db.Close())
	data, err := os.ReadFile(torn)
	do(t, err)
	for i := range data[4096:] {
		data[4096+i] ^= 0x55
	}
	do(t, os.WriteFile(torn, data, 0o600))
	for path, want := range map[string]string{text: "damaged", torn: "damaged", dir: "is a directory",
		filepath.Join(dir, "none", "x"): "no such file"} {
		if _, err := Open(t.Context(), "sqlite:"+path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("open %s: got %v, want %q", filepath.Base(path), err, want)
		}
	}
}

func TestURLIsRefusedWithoutItsPassword(t *testing.T) {
	for _, url := range []string{"mysql://user:hunter2@host/db", "postgres://user:hunter2@host:port/db", "sqlite:",
		"postgres://user:hunter2@/db?host=/nonexistent"} {
		_, err := Open(t.Context(), url)
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("open %s: got %v", url, err)
		}
	}
}

func TestFullDisk(t *testing.T) {
	db := open(t, "sqlite:"+filepath.Join(t.TempDir(), "records.db"))
	id := create(t, db, "r", Ref{"refs/heads/main", oid(0)})
	_, err := db.writer.ExecContext(t.Context(), "PRAGMA max_page_count = 60")
	do(t, err)
	for err == nil {
		err = db.Repos.Create(t.Context(), Creation{Repo: Repo{ID: NewID(), Namespace: "ns", Name: NewID()},
			Refs: manyRefs(20)})
	}
	if !errors.Is(err, ErrFull) {
		t.Errorf("create in a full database: got %v, want ErrFull", err)
	}
	if got := refsOf(t, db, id); got != "refs/heads/main=1" {
		t.Errorf("refs in the full database: got %q", got)
	}
	_, err = db.writer.ExecContext(t.Context(), "PRAGMA max_page_count = 100000")
	do(t, err)
	create(t, db, "after")
	integrity(t, db)
}

func TestEndOfContextPassesThrough(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db *DB) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := db.Repos.ByID(ctx, "x")
		if werr := db.Repos.SetStatus(ctx, "x", Ready); !errors.Is(err, context.Canceled) ||
			!errors.Is(werr, context.Canceled) {
			t.Errorf("after the end of the context: got %v and %v", err, werr)
		}
		if errors.Is(err, ErrUnavailable) {
			t.Errorf("the end of the context is an unavailable database: %v", err)
		}
		do(t, db.Ping(t.Context()))
	})
}

// TestPostgresAway kills the PostgreSQL server. Methods must return ErrUnavailable, and succeed when the server runs
// again.
func TestPostgresAway(t *testing.T) {
	db := open(t, newPostgres(t))
	id := create(t, db, "r")
	server, err := postgres()
	do(t, err)
	do(t, server.Kill())
	_, read := db.Repos.ByID(t.Context(), id)
	_, snapshot := db.Repos.Snapshot(t.Context(), id)
	for what, err := range map[string]error{"ping": db.Ping(t.Context()), "read": read, "snapshot": snapshot,
		"write": db.Repos.SetStatus(t.Context(), id, Ready)} {
		if !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s without a server: got %v, want ErrUnavailable", what, err)
		}
	}
	do(t, server.Restart())
	await.Until(t, "the database answers", func() bool { return db.Ping(t.Context()) == nil })
	if _, err := db.Repos.ByID(t.Context(), id); err != nil {
		t.Errorf("repository after the server is back: %v", err)
	}
}

// TestBusySQLiteIsUnavailable checks that methods return ErrUnavailable while another process holds the lock of the
// file.
func TestBusySQLiteIsUnavailable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records.db")
	db := open(t, "sqlite:"+path)
	_, err := db.writer.ExecContext(t.Context(), "PRAGMA busy_timeout = 1")
	do(t, err)
	_, other, err := openSQLite(path)
	do(t, err)
	defer other.Close()
	tx, err := other.BeginTx(t.Context(), nil)
	do(t, err)
	if err := db.Repos.SetStatus(t.Context(), "x", Ready); !errors.Is(err, ErrUnavailable) {
		t.Errorf("write to a locked file: got %v, want ErrUnavailable", err)
	}
	do(t, tx.Rollback())
	if err := db.Repos.SetStatus(t.Context(), "x", Ready); !errors.Is(err, ErrNotFound) {
		t.Errorf("write after the lock: got %v, want ErrNotFound", err)
	}
}

func TestErrorsOfPostgres(t *testing.T) {
	db := open(t, newPostgres(t))
	for code, want := range map[string]error{"53100": ErrFull, "40001": ErrUnavailable, "57P01": ErrUnavailable,
		"53300": ErrUnavailable, "25006": ErrUnavailable} {
		attempts := 0
		err := db.write(t.Context(), "test", func(*tx) error { attempts++; return &pgconn.PgError{Code: code} })
		if !errors.Is(err, want) {
			t.Errorf("code %s: got %v, want %v", code, err, want)
		}
		if again := attempts > 1; again != (code == "40001") {
			t.Errorf("code %s: %d attempts", code, attempts)
		}
	}
	if err := db.write(t.Context(), "test", func(*tx) error { return driver.ErrBadConn }); !errors.Is(err,
		ErrUnavailable) {
		t.Errorf("connection that broke in a transaction: got %v, want ErrUnavailable", err)
	}
	attempts := 0
	do(t, db.write(t.Context(), "test", func(*tx) error {
		if attempts++; attempts < 3 {
			return &pgconn.PgError{Code: "40P01"} // the code of a deadlock
		}
		return nil
	}))
}
