package meter

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/server/records"
)

// TestRefusedRequestsAreLimited checks that requests without a valid token, which anyone can send, add few entries to
// the audit log, and that all requests with a token are recorded.
func TestRefusedRequestsAreLimited(t *testing.T) {
	db, now := newMemory(), day
	m := start(db, audit{db}, zap.NewNop(), func() time.Time { return now }, time.Hour)
	flood := func(n int) {
		for i := range n {
			m.Audit(records.AuditEntry{Cause: records.Cause{Method: "GET",
				Target: fmt.Sprint("/v1/api/namespaces/", i, strings.Repeat("A", 60<<10))},
				Result: http.StatusUnauthorized})
		}
	}
	const requests = 10_000
	flood(requests)
	for range 100 {
		m.Audit(records.AuditEntry{Cause: records.Cause{TokenID: "t", Method: "GET", Target: "/x"}, Result: 200})
	}
	if err := m.flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := len(db.entries); got != maxRefused+100 {
		t.Errorf("entries of a minute: got %d, want %d", got, maxRefused+100)
	}
	now = day.Add(refusedTime)
	if err := m.flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	rest := db.entries[len(db.entries)-1]
	want := fmt.Sprint(requests-maxRefused, " more requests without a valid token since 2026-02-03T23:59:00Z")
	if rest.Detail != want || rest.Result != http.StatusUnauthorized {
		t.Errorf("entry about the others: got %q with status %d, want %q with 401", rest.Detail, rest.Result, want)
	}
	flood(maxRefused + 7) // these requests are in a new minute, which ends with Close
	m.Close()
	if got, want := len(db.entries), 2*maxRefused+102; got != want {
		t.Errorf("all entries: got %d, want %d", got, want)
	}
	if rest = db.entries[len(db.entries)-1]; !strings.HasPrefix(rest.Detail, "7 more") {
		t.Errorf("entry at the end: got %q, want 7 more", rest.Detail)
	}
	size := 0
	for _, e := range db.entries {
		size += len(e.Cause.Target) + len(e.Detail)
	}
	if size > 64<<10 {
		t.Errorf("size of all entries: got %d bytes, want at most 64 KiB", size)
	}
}
