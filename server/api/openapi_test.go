package api

import (
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/server/openapi"
)

// TestDocumentHasTheRoutes checks that the OpenAPI document has exactly the routes of the server.
func TestDocumentHasTheRoutes(t *testing.T) {
	prefix := map[tree]string{
		artifacts: "/client/v4/accounts/{account}/artifacts/", account: "/client/v4/",
		extension: "/artifactfs/v1/accounts/{account}/",
	}
	var want []string
	for _, r := range routes() {
		want = append(want, r.method+" "+prefix[r.tree]+strings.ReplaceAll(strings.Join(r.pattern, "/"), "...}", "}"))
	}
	doc, err := openapi.Parse()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range doc.Operations() {
		if strings.Count(o.Path, "/") > 1 { // paths such as /healthz do not belong to the API
			got = append(got, o.Method+" "+o.Path)
		}
	}
	for _, r := range want {
		if !slices.Contains(got, r) {
			t.Errorf("server/openapi/openapi.json lacks the route %s", r)
		}
	}
	for _, r := range got {
		if !slices.Contains(want, r) {
			t.Errorf("server/openapi/openapi.json has %s, which is no route", r)
		}
	}
}
