package replicatest

import (
	"database/sql"
	"fmt"
	"testing"
)

// Backup saves the refs and packs of all repositories in an SQLite database, and returns a function that restores them
// while nodes run. The restore has the same effect as promoting a standby database that lacks the last changes.
func Backup(t testing.TB, path string) (restore func()) {
	t.Helper()
	run := func(format string) {
		db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(30000)&_txlock=immediate")
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		for _, table := range []string{"repos", "refs", "links"} {
			if _, err := tx.ExecContext(t.Context(), fmt.Sprintf(format, table)); err != nil {
				t.Fatal(err)
			}
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	run("CREATE TABLE saved_%[1]s AS SELECT * FROM %[1]s")
	return func() { run("DELETE FROM %[1]s; INSERT INTO %[1]s SELECT * FROM saved_%[1]s") }
}
