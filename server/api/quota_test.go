package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/integration/harness/gittest"
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

// TestQuotaOfForks checks that the refs of a fork that gets all refs of its parent count.
func TestQuotaOfForks(t *testing.T) {
	w := newWorld(t, func(o *api.Options) {
		o.Quotas = quota.New(o.Records, quota.Limits{Amounts: records.Amounts{Refs: 1}})
	})
	base := "/client/v4/accounts/" + account + "/artifacts/namespaces/ns/repos"
	w.do(t, w.admin, http.MethodPost, base, `{"name":"one"}`)
	dir := t.TempDir()
	gittest.Must(t, dir, "init", "-q", "--bare", "-b", "main")
	commit := gittest.Must(t, dir, "-c", "user.name=a", "-c", "user.email=b", "commit-tree", "-m", "c",
		gittest.Must(t, dir, "mktree"))
	for _, branch := range []string{"main", "other"} {
		gittest.Must(t, dir, "update-ref", "refs/heads/"+branch, commit)
	}
	w.fill(t, "ns", "one", dir)
	got := w.do(t, w.admin, http.MethodPost, base+"/one/fork", `{"name":"two"}`)
	if got.status != http.StatusForbidden || !strings.Contains(got.body, "its quota of 1 refs") {
		t.Errorf("fork of two refs: got %d %s", got.status, got.body)
	}
}
