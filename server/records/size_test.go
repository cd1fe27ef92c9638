package records

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// TestBytesPerRepository measures the space in the database file that a created repository, a push and a fork need.
func TestBytesPerRepository(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records.db")
	db := open(t, "sqlite:"+path)
	_, err := db.writer.ExecContext(t.Context(), "PRAGMA synchronous = off")
	do(t, err)
	// grown returns the number of bytes by which the function f makes the database larger.
	grown := func(f func()) int64 {
		size := func() (n int64) {
			do(t, db.writer.QueryRowContext(t.Context(), `SELECT (page_count - freelist_count) * page_size
				FROM pragma_page_count, pragma_freelist_count, pragma_page_size`).Scan(&n))
			return n
		}
		before := size()
		f()
		return size() - before
	}
	const repos, forks = 200, 20
	perRepo := grown(func() { fill(t, db, repos) }) / repos
	parent := realistic(t, db, "parent", Creation{Refs: manyRefs(5000)})
	for i := range maxOwn {
		push(t, db, Push{RepoID: parent, Updates: []RefUpdate{{manyRefs(i + 1)[i].Name, oid(i), oid(i + 1)}}})
	}
	realistic(t, db, "first", Creation{Parent: parent, All: true})
	perFork := grown(func() {
		for i := range forks {
			realistic(t, db, fmt.Sprint("fork", i), Creation{Parent: parent, All: true})
		}
	}) / forks
	t.Logf("%d bytes per repository, %d per fork with 5,000 refs", perRepo, perFork)
	if perRepo > 10<<10 || perFork > 64<<10 {
		t.Errorf("a repository needs %d bytes and a fork %d, want at most 10 KiB and 64 KiB", perRepo, perFork)
	}
}

// TestStatementsUseIndexes asks SQLite for the plans of the statements that each request runs. None of them may read a
// whole table.
func TestStatementsUseIndexes(t *testing.T) {
	db := open(t, "sqlite:"+filepath.Join(t.TempDir(), "records.db"))
	for _, query := range []string{
		"SELECT " + tokenColumns + " FROM tokens WHERE hash = $1",
		"SELECT " + repoColumns + " FROM repos WHERE namespace_folded = $1 AND folded = $2 AND deleted = 0",
		"SELECT v.name, v.id FROM " + visibleRefs + " ORDER BY v.name",
		"SELECT v.name, v.id FROM " + visibleRefs + " WHERE v.name > $3 AND v.name < $4 ORDER BY v.name LIMIT 3",
		"SELECT " + packColumns + " FROM links l JOIN packs p ON p.pack = l.pack WHERE l.repo = $1 ORDER BY l.pack",
		"SELECT " + packColumns + ` FROM packs p WHERE p.idle_since <> 0 AND p.idle_since < $1
			AND NOT EXISTS (SELECT 1 FROM links l WHERE l.pack = p.pack) ORDER BY p.idle_since LIMIT $2`,
		"SELECT " + eventColumns +
			" FROM events e WHERE e.seq > $1 AND e.namespace = $3 AND e.repo = $4 ORDER BY e.seq LIMIT $2",
	} {
		found, err := db.reader.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+query, 1, 2, 3, 4)
		do(t, err)
		for found.Next() {
			var a, b, c int
			var step string
			do(t, found.Scan(&a, &b, &c, &step))
			if strings.HasPrefix(step, "SCAN") || strings.Contains(step, "TEMP B-TREE") {
				t.Errorf("%s: %s", query, step)
			}
		}
		do(t, found.Err())
	}
}
