package records

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/artifactfs/artifactfs/internal/harness/pgtest"
)

// postgres returns the PostgreSQL server of all tests of this package. The first test that needs it starts it.
var postgres = sync.OnceValues(func() (*pgtest.Server, error) {
	return pgtest.Start(pgtest.Options{Durable: os.Getenv("RECORDS_DURABLE") != ""})
})

// databases is the number of databases that tests have created.
var databases atomic.Int64

// newPostgres returns the URL of a new database.
func newPostgres(t testing.TB) string {
	t.Helper()
	s, err := postgres()
	if err != nil {
		t.Fatalf("start PostgreSQL (scripts/setup.sh installs it): %v", err)
	}
	url, err := s.Create(fmt.Sprintf("test%d", databases.Add(1)))
	do(t, err)
	return url
}

func TestMain(m *testing.M) {
	if os.Getenv(writerEnv) != "" {
		writeInALoop()
		return
	}
	status := m.Run()
	if databases.Load() != 0 {
		if s, err := postgres(); err == nil {
			s.Close()
		}
	}
	os.Exit(status)
}
