package openapi_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/server/openapi"
	"github.com/artifactfs/artifactfs/server/openapi/openapitest"
)

// TestDocument checks that names in the document are unique, every placeholder of a path is a parameter, every
// operation has a success, and every schema is valid.
func TestDocument(t *testing.T) {
	doc, err := openapi.Parse()
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	for _, o := range doc.Operations() {
		if !regexp.MustCompile(`^artifact(s|fs)_[a-z_]+$`).MatchString(o.ID) || ids[o.ID] {
			t.Errorf("%s %s: operationId %q is empty, not of this form, or not unique", o.Method, o.Path, o.ID)
		}
		ids[o.ID] = true
		var want, got []string
		for _, m := range regexp.MustCompile(`\{(\w+)\}`).FindAllStringSubmatch(o.Path, -1) {
			want = append(want, m[1])
		}
		for _, p := range o.In("path") {
			got = append(got, p.Name)
			if !p.Required {
				t.Errorf("%s: parameter %s of the path is not required", o.ID, p.Name)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: parameters %v of the path %s", o.ID, got, o.Path)
		}
		status, _ := o.Success()
		if status == "" {
			t.Errorf("%s: no success", o.ID)
		}
		op := []string{"paths", o.Path, strings.ToLower(o.Method)}
		for at, r := range o.Responses.By {
			if _, ok := r.Content.By["application/json"]; ok && at != "default" {
				check(t, append(op, "responses", at, "content", "application/json", "schema"))
			}
		}
		if o.Body != nil && o.Body.Content.Names[0] == "application/json" {
			check(t, append(op, "requestBody", "content", "application/json", "schema"))
		}
	}
	for _, name := range doc.Components.Schemas.Names {
		check(t, []string{"components", "schemas", name})
	}
}

func check(t *testing.T, place []string) {
	t.Helper()
	if _, err := openapitest.Schema(true, place...); err != nil {
		t.Errorf("schema %s: %v", strings.Join(place, " > "), err)
	}
}

func TestHandler(t *testing.T) {
	s := httptest.NewServer(openapi.Handler())
	t.Cleanup(s.Close)
	a, err := http.Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	if a.Header.Get("Content-Type") != "application/json" || string(body) != string(openapi.Bytes()) {
		t.Errorf("GET: %s and %d bytes, want application/json and %d", a.Header.Get("Content-Type"), len(body),
			len(openapi.Bytes()))
	}
	r, err := http.NewRequest(http.MethodGet, s.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("If-None-Match", a.Header.Get("ETag"))
	again, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	again.Body.Close()
	if again.StatusCode != http.StatusNotModified {
		t.Errorf("GET with the entity tag: status %d, want 304", again.StatusCode)
	}
}
