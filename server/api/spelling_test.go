package api_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/server/access"
	"github.com/artifactfs/artifactfs/server/records"
)

// TestSpellingsOfNamespaces checks that the case of letters in the name of a namespace does not matter for any route or
// owner token.
func TestSpellingsOfNamespaces(t *testing.T) {
	w := newWorld(t, nil)
	const ours, owned = "/artifactfs/v1/accounts/" + account, "/v1/api/namespaces/"
	const under = ours + "/namespaces/"
	must := func(token, ask, body string, status int) string {
		t.Helper()
		method, path, _ := strings.Cut(ask, " ")
		got := w.do(t, token, method, path, body)
		if got.status != status {
			t.Errorf("%s %s: got %d %s, want %d", ask, body, got.status, got.body, status)
		}
		var a struct {
			Result struct{ ID, Plaintext string }
		}
		_ = json.Unmarshal([]byte(got.body), &a) // answers with lists have no id
		if a.Result.Plaintext != "" {
			return a.Result.Plaintext
		}
		return a.Result.ID
	}
	must(w.admin, "POST /v1/api/namespaces", `{"namespace":"Team"}`, http.StatusCreated)
	for _, spelling := range []string{"Team", "team", "TEAM"} {
		owner := must(w.admin, "POST "+ours+"/tokens", `{"namespace":"`+spelling+`"}`, http.StatusCreated)
		for _, path := range []string{"Team", "team", "TEAM"} {
			repo := "app-" + spelling + "-" + path
			must(owner, "GET "+owned+path, "", http.StatusOK)
			must(owner, "POST "+owned+path+"/repos", `{"name":"`+repo+`"}`, http.StatusCreated)
			must(owner, "GET "+owned+path+"/repos", "", http.StatusOK)
			must(owner, "GET "+owned+path+"/repos/"+repo+"/tokens", "", http.StatusOK)
			must(owner, "POST "+owned+path+"/tokens", `{"repo":"`+repo+`"}`, http.StatusCreated)
			must(owner, "GET "+under+path+"/usage", "", http.StatusOK)
			hook := must(owner, "POST "+under+path+"/webhooks", `{"url":"https://example.com/","namespace":"TeaM"}`,
				http.StatusCreated)
			for _, other := range []string{"Team", "team", "TEAM"} {
				if got := w.do(t, owner, "GET", under+other+"/webhooks", ""); !strings.Contains(got.body, hook) {
					t.Errorf("webhooks of %s: got %s, want %s", other, got.body, hook)
				}
				must(owner, "GET "+under+other+"/webhooks/"+hook+"/dead", "", http.StatusOK)
			}
			must(owner, "DELETE "+under+path+"/webhooks/"+hook, "", http.StatusOK)
			r, err := w.db.Repos.Get(t.Context(), path, repo)
			if err != nil {
				t.Fatal(err)
			}
			git, err := http.NewRequestWithContext(t.Context(), "GET", w.url, nil)
			if err != nil {
				t.Fatal(err)
			}
			git.Header.Set("Authorization", "Bearer "+owner)
			if _, err := access.NewGuard(w.db).Git(t.Context(), git, r, records.WriteScope); err != nil {
				t.Errorf("git with the owner's token for %s: %v", spelling, err)
			}
			must(owner, "DELETE "+owned+path+"/repos/"+repo, "", http.StatusAccepted)
			must(owner, "GET "+owned+"Teams", "", http.StatusForbidden)
		}
	}
}
