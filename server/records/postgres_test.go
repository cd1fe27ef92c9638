package records

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/pgtest"
)

// postgres returns the PostgreSQL server of all tests of this package. The first test that needs it starts it.
var postgres = sync.OnceValues(func() (*pgtest.Server, error) {
	return pgtest.Start(pgtest.Options{Durable: os.Getenv("RECORDS_DURABLE") != ""})
})

// schemas is the number of schemas that tests have created.
var schemas atomic.Int64

// newPostgres returns the URL of an empty schema, which PostgreSQL creates faster than a database.
func newPostgres(t testing.TB) string {
	t.Helper()
	s, err := postgres()
	if err != nil {
		t.Fatalf("start PostgreSQL (scripts/setup.sh installs it): %v", err)
	}
	name := fmt.Sprintf("test%d", schemas.Add(1))
	_, err = s.Query("postgres", "create schema "+name)
	do(t, err)
	return s.URL("postgres") + "&search_path=" + name
}

func TestMain(m *testing.M) {
	if os.Getenv(writerEnv) != "" {
		writeInALoop()
		return
	}
	status := m.Run()
	if schemas.Load() != 0 {
		if s, err := postgres(); err == nil {
			s.Close()
		}
	}
	os.Exit(status)
}

// TestCommitsAreSynced checks that commits are synced to disk although the database has another default, unless the URL
// requests otherwise.
func TestCommitsAreSynced(t *testing.T) {
	url := newPostgres(t)
	s, err := postgres()
	do(t, err)
	_, err = s.Query("postgres", "create database lax")
	do(t, err)
	_, err = s.Query("postgres", "alter database lax set synchronous_commit to off")
	do(t, err)
	lax := s.URL("lax")
	for url, want := range map[string]string{url: "on", lax: "on", lax + "&synchronous_commit=off": "off"} {
		var got string
		do(t, open(t, url).writer.QueryRowContext(t.Context(), "SHOW synchronous_commit").Scan(&got))
		if got != want {
			t.Errorf("synchronous_commit with %s: got %s, want %s", url, got, want)
		}
	}
}

// TestFailureToConnectIsOneLine checks that the error of a failed connection is one line with each reason once, and
// contains no password.
func TestFailureToConnectIsOneLine(t *testing.T) {
	for url, reasons := range map[string][]string{
		"postgres://user:secret@127.0.0.1:1/db":             {"dial tcp 127.0.0.1:1"},
		"postgres://user:secret@127.0.0.1:1,127.0.0.1:2/db": {"dial tcp 127.0.0.1:1", "dial tcp 127.0.0.1:2"},
		"postgres://user:secret@name.invalid/db":            {"lookup name.invalid"},
	} {
		_, err := Open(t.Context(), url)
		if !errors.Is(err, ErrUnavailable) {
			t.Fatalf("open %s: got %v, want ErrUnavailable", url, err)
		}
		text := err.Error()
		for _, reason := range append(reasons, "failed to connect to") {
			if strings.Count(text, reason) != 1 {
				t.Errorf("open %s: got %q, want %q once", url, text, reason)
			}
		}
		if strings.ContainsAny(text, "\n\t") || strings.Contains(text, "secret") {
			t.Errorf("open %s: got %q, want one line without the password", url, text)
		}
	}
}
