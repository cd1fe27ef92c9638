package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/server/api"
	"github.com/artifactfs/artifactfs/server/quota"
	"github.com/artifactfs/artifactfs/server/records"
)

// TestQuotas checks that a namespace cannot exceed its quotas of repositories and requests, that the error states the
// reason, and that the usage of the namespace contains both.
func TestQuotas(t *testing.T) {
	w := newWorld(t, func(o *api.Options) {
		o.Quotas = quota.New(o.Records, quota.Limits{Amounts: records.Amounts{Repos: 1}, Requests: 4})
	})
	base := "/client/v4/accounts/" + account + "/artifacts/namespaces/"
	for _, step := range []struct {
		method, path, body string
		status             int
		text               string
	}{
		{http.MethodPost, base + "full/repos", `{"name":"one"}`, 201, ""},
		{http.MethodPost, base + "full/repos", `{"name":"two"}`, 403,
			`"code":10903,"message":"the namespace would exceed its quota of 1 repositories"`},
		{http.MethodPost, base + "full/repos/one/fork", `{"name":"two"}`, 403, "10903"},
		{http.MethodGet, "/artifactfs/v1/accounts/" + account + "/namespaces/full/usage", "", 200,
			`"quota":{"repositories":1,"requests_per_minute":4,"used":{"bytes":0,"repositories":1,"refs":0}}`},
		{http.MethodGet, base + "full", "", 429, "the namespace has made its 4 requests of this minute, try again later"},
		{http.MethodPost, base + "other/repos", `{"name":"one"}`, 201, ""},
	} {
		got := w.do(t, w.admin, step.method, step.path, step.body)
		if got.status != step.status || !strings.Contains(got.body, step.text) {
			t.Errorf("%s %s: got %d %s, want %d %s", step.method, step.path, got.status, got.body, step.status, step.text)
		}
	}
}
