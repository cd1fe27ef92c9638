package upkeep

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/artifactfs/artifactfs/integration/harness/await"
	"github.com/artifactfs/artifactfs/integration/harness/pgtest"
	"github.com/artifactfs/artifactfs/server/records"
)

// TestALeaseIsNotAwaitedForEver locks the table of leases in PostgreSQL, so that the renewal of a lease hangs, and
// checks that the work then ends.
func TestALeaseIsNotAwaitedForEver(t *testing.T) {
	server, err := pgtest.Start(pgtest.Options{})
	if err != nil {
		t.Fatalf("start PostgreSQL (scripts/setup.sh installs it): %v", err)
	}
	defer server.Close()
	url := server.URL("postgres")
	db, err := records.Open(t.Context(), url+"&lock_timeout=0")
	do(t, err)
	defer db.Close()
	w := New(Options{Records: db})
	if held, err := w.acquire(t.Context(), "test"); err != nil || !held {
		t.Fatalf("first lease: %v, %v", held, err)
	}
	conn, err := pgx.Connect(t.Context(), url)
	do(t, err)
	defer conn.Close(context.Background())
	_, err = conn.Exec(t.Context(), "BEGIN; LOCK TABLE leases IN EXCLUSIVE MODE")
	do(t, err)
	patience, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	w.o.Lease = time.Second
	if held, err := w.acquire(patience, "test"); err == nil || held || patience.Err() != nil {
		t.Errorf("renewal while the database does not answer: got %v, %v, and the test's limit has ended: %v", held, err,
			patience.Err())
	}
}
