package openapitest

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// failures collects the errors of a Checker, so that they do not fail the test.
type failures struct {
	testing.TB
	n int
}

func (f *failures) Errorf(format string, args ...any) { f.n++; f.TB.Logf("expected: "+format, args...) }

// TestCheckerReports checks that the Checker accepts requests and answers that the document describes, and reports all
// others.
func TestCheckerReports(t *testing.T) {
	const namespace = `"result":{"namespace":"a","jurisdiction":"eu","repo_count":1,"created_at":"2026-01-01T00:00:00Z","updated_at":"2026-01-01T00:00:00Z"}`
	base := "/client/v4/accounts/" + strings.Repeat("0", 32) + "/artifacts/namespaces"
	for _, x := range []struct {
		name, path, media, body string
		status                  int
		wrong                   bool
	}{
		{"as described", base + "/a", "application/json", `{` + namespace + `,"success":true,"errors":[],"messages":[]}`, 200,
			false},
		{"older path", "/v1/api/namespaces/a", "application/json",
			`{` + namespace + `,"success":true,"errors":[],"messages":[]}`, 200, false},
		{"unknown field", base + "/a", "application/json",
			`{` + namespace + `,"success":true,"errors":[],"messages":[],"more":1}`, 200, true},
		{"missing field", base + "/a", "application/json",
			`{"result":{"namespace":"a"},"success":true,"errors":[],"messages":[]}`, 200, true},
		{"wrong status", base + "/a", "application/json", `{` + namespace + `,"success":true,"errors":[],"messages":[]}`, 201,
			true},
		{"wrong media type", base + "/a", "text/plain", "a", 200, true},
		{"unknown parameter", base + "/a?x=1", "application/json",
			`{` + namespace + `,"success":true,"errors":[],"messages":[]}`, 200, true},
		{"unknown operation", "/client/v4/x", "application/json", "{}", 200, true},
		{"error", base + "/a", "application/json",
			`{"result":null,"success":false,"errors":[{"code":10200,"message":"x"}],"messages":[]}`, 404, false},
		{"error without code", base + "/a", "application/json",
			`{"result":null,"success":false,"errors":[{"message":"x"}],"messages":[]}`, 404, true},
	} {
		f := &failures{TB: t}
		c := New(f, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", x.media)
			w.WriteHeader(x.status)
			_, _ = w.Write([]byte(x.body))
		}))
		c.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, x.path, http.NoBody))
		if (f.n > 0) != x.wrong {
			t.Errorf("%s: %d errors, want some: %v", x.name, f.n, x.wrong)
		}
	}
}
