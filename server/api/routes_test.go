package api

import (
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/server/openapi"
)

// The document that clients are generated from describes every route, and no other one.
func TestRoutesAreThoseOfTheDocument(t *testing.T) {
	d, err := openapi.Parse()
	if err != nil {
		t.Fatal(err)
	}
	var described, served []string
	for _, o := range d.Operations() {
		if o.Path != openapi.Path {
			described = append(described, o.Method+" "+o.Path)
		}
	}
	prefixes := map[tree]string{artifacts: "/client/v4/accounts/{account}/artifacts/", account: "/client/v4/",
		extension: "/artifactfs/v1/accounts/{account}/"}
	for _, r := range routes() {
		served = append(served, r.method+" "+prefixes[r.tree]+strings.ReplaceAll(strings.Join(r.pattern, "/"), "...", ""))
	}
	slices.Sort(described)
	slices.Sort(served)
	if !slices.Equal(described, served) {
		t.Errorf("described:\n%s\nserved:\n%s", strings.Join(described, "\n"), strings.Join(served, "\n"))
	}
}
