package ui_test

import (
	"net/http"
	"testing"

	"github.com/artifactfs/artifactfs/server/quota"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/ui"
)

// TestQuotaOfPages checks that pages count as requests of their namespace.
func TestQuotaOfPages(t *testing.T) {
	w := newWorld(t, func(o *ui.Options) { o.Quotas = quota.New(&records.DB{}, quota.Limits{Requests: 2}) })
	app, other := w.repo(t, "team", "app", ""), w.repo(t, "other", "app", "")
	token := w.reader(t, app)
	_, owner := w.token(t, records.Token{Role: records.OwnerToken, Namespace: "team", Scope: records.ReadScope})
	w.get(t, owner, "/ui/team", http.StatusOK)
	w.get(t, token, "/ui/team/app", http.StatusOK)
	for _, path := range []string{"/ui/team/app", "/ui/team/app/tree/main", "/ui/team"} {
		wants(t, w.get(t, owner, path, http.StatusTooManyRequests), "has made its 2 requests of this minute")
	}
	w.get(t, w.reader(t, other), "/ui/other/app", http.StatusOK)
}
