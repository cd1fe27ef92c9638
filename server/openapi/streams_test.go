package openapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/server/events"
	"github.com/artifactfs/artifactfs/server/meter"
	"github.com/artifactfs/artifactfs/server/openapi/openapitest"
	"github.com/artifactfs/artifactfs/server/records"
)

// fixedAudit is an audit log with one entry.
type fixedAudit struct{ records.AuditEntry }

func (f fixedAudit) Add(context.Context, []records.AuditEntry) error { return nil }

func (f fixedAudit) After(_ context.Context, seq int64, _ int) ([]records.AuditEntry, error) {
	if seq >= f.Seq {
		return nil, nil
	}
	return []records.AuditEntry{f.AuditEntry}, nil
}

// TestStreams compares events and audit entries with the document. The Checker does not do so, because they are parts
// of streams.
func TestStreams(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	r := records.Repo{ID: "id", Namespace: "team", Name: "app", DefaultBranch: "main", Created: now, Updated: now}
	s := events.ByToken("account", records.Token{ID: "token", Label: "ci"})
	update := records.RefUpdate{Name: "refs/heads/main", Old: "0", New: "1"}
	list := append(events.Pushed(s, r, []records.RefUpdate{update}, nil), events.Created(s, r), events.Deleted(s, r),
		events.Forked(s, r, r),
		events.Imported(s, r, "https://example.org/app.git", "main"), events.Cloned(s, r), events.Fetched(s, r),
		events.TokenCreated(s, r, records.Token{ID: "token", Scope: records.ReadScope}), events.TokenRevoked(s, r, "token"))
	for _, e := range list {
		valid(t, "Event", e.Body)
	}
	var b bytes.Buffer
	entry := records.AuditEntry{Seq: 1, Time: now, Result: 200, Detail: "refs/heads/main",
		Cause: records.Cause{TokenID: "token", Actor: "ci", Remote: "127.0.0.1", Method: "GET", Target: "/x"}}
	if err := meter.Export(t.Context(), &b, fixedAudit{entry}, 0, 0); err != nil {
		t.Fatal(err)
	}
	valid(t, "AuditEntry", b.Bytes())
}

// valid fails the test unless a JSON value matches the schema name of the document.
func valid(t *testing.T, name string, value []byte) {
	t.Helper()
	s, err := openapitest.Schema(true, "components", "schemas", name)
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if err := json.Unmarshal(value, &v); err != nil {
		t.Fatal(err)
	}
	if err := s.Validate(v); err != nil {
		t.Errorf("%s is not as the schema %s says: %v", value, name, err)
	}
}
