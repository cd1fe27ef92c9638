// Package openapitest compares a server with the OpenAPI document: a Checker receives the requests of a test, passes
// them to the server, and reports requests and answers that differ from the document.
package openapitest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/artifactfs/artifactfs/server/openapi"
)

// Checker is a handler that passes requests on and compares them and their answers with the document. Streams are not
// checked.
type Checker struct {
	t      testing.TB
	next   http.Handler
	routes []route
	schema map[string]*jsonschema.Resolved // schemas by their place in the document

	mu   sync.Mutex
	seen map[string]bool // ids of operations that have succeeded
}

type route struct {
	*openapi.Operation
	path *regexp.Regexp
}

// New returns a Checker of next. Its errors are reported to t until the test ends.
func New(t testing.TB, next http.Handler) *Checker {
	t.Helper()
	doc, err := openapi.Parse()
	if err != nil {
		t.Fatal(err)
	}
	c := &Checker{t: t, next: next, schema: map[string]*jsonschema.Resolved{}, seen: map[string]bool{}}
	for _, o := range doc.Operations() {
		c.routes = append(c.routes, route{o, pattern(o.Path)})
	}
	return c
}

var placeholder = regexp.MustCompile(`\\\{(\w+)\\\}`)

// pattern returns the expression that matches escaped paths of a template. The last placeholder "path" matches slashes
// too.
func pattern(template string) *regexp.Regexp {
	return regexp.MustCompile("^" + placeholder.ReplaceAllStringFunc(regexp.QuoteMeta(template), func(s string) string {
		if s == `\{path\}` {
			return ".+"
		}
		return "[^/]+"
	}) + "$")
}

// older returns a path below the older base /v1/api as the same path below the base in the document, and any other path
// unchanged.
func older(path string) string {
	if rest, ok := strings.CutPrefix(path, "/v1/api/"); ok {
		return "/client/v4/accounts/" + strings.Repeat("0", 32) + "/artifacts/" + rest
	}
	return path
}

func (c *Checker) find(r *http.Request) (o *openapi.Operation, known bool) {
	path := older(r.URL.EscapedPath())
	for _, x := range c.routes {
		if !x.path.MatchString(path) {
			continue
		}
		if known = true; x.Method == r.Method || x.Method == http.MethodGet && r.Method == http.MethodHead {
			return x.Operation, true
		}
	}
	return nil, known
}

func (c *Checker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o, known := c.find(r)
	if o != nil && streams(o) {
		c.note(o)
		c.next.ServeHTTP(w, r)
		return
	}
	sent, err := io.ReadAll(r.Body)
	if err != nil {
		c.t.Logf("%s %s: read body: %v", r.Method, r.URL.Path, err)
	}
	r.Body = io.NopCloser(bytes.NewReader(sent))
	recorder := httptest.NewRecorder()
	c.next.ServeHTTP(recorder, r)
	answer := recorder.Result()
	body := recorder.Body.Bytes()
	if err := c.check(o, known, r, sent, answer, body); err != nil {
		c.t.Errorf("%s %s, status %d: %v", r.Method, r.URL, answer.StatusCode, err)
	}
	for name, values := range answer.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(answer.StatusCode)
	_, _ = w.Write(body)
}

func streams(o *openapi.Operation) bool {
	_, r := o.Success()
	return slices.Contains(r.Content.Names, "text/event-stream")
}

func (c *Checker) note(o *openapi.Operation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[o.ID] = true
}

// Missing returns the operations of the document whose ids begin with prefix and that have not succeeded yet.
func (c *Checker) Missing(prefix string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var missing []string
	for _, x := range c.routes {
		if strings.HasPrefix(x.ID, prefix) && !c.seen[x.ID] {
			missing = append(missing, x.ID)
		}
	}
	return missing
}

func (c *Checker) check(o *openapi.Operation, known bool, r *http.Request, sent []byte, a *http.Response,
	body []byte) error {
	switch {
	case o == nil && a.StatusCode < 300:
		return fmt.Errorf("the document has no such operation")
	case o == nil && !known:
		return nil // the document has no such route
	case o == nil:
		return nil // the route does not have this method
	case a.StatusCode >= 300:
		return c.checkError(o, a, body)
	}
	c.note(o)
	status, want := o.Success()
	if fmt.Sprint(a.StatusCode) != status {
		return fmt.Errorf("%s: the document has status %s", o.ID, status)
	}
	for name := range r.URL.Query() {
		if !slices.ContainsFunc(o.In("query"), func(p *openapi.Parameter) bool { return p.Name == name }) {
			return fmt.Errorf("%s: the document has no parameter %s", o.ID, name)
		}
	}
	if o.Body != nil && len(sent) > 0 && o.Body.Content.Names[0] == "application/json" {
		// Servers ignore fields of requests that they do not know.
		if err := c.validate(o, []string{"requestBody", "content", "application/json", "schema"}, sent, false); err != nil {
			return fmt.Errorf("%s: request: %w", o.ID, err)
		}
	}
	if len(want.Content.Names) == 0 {
		if len(body) > 0 {
			return fmt.Errorf("%s: a body of %d bytes, the document has none", o.ID, len(body))
		}
		return nil
	}
	media, _, _ := mime.ParseMediaType(a.Header.Get("Content-Type"))
	if !slices.Contains(want.Content.Names, media) {
		return fmt.Errorf("%s: media type %q, the document has %v", o.ID, media, want.Content.Names)
	}
	if media != "application/json" || r.Method == http.MethodHead {
		return nil
	}
	return c.validate(o, []string{"responses", status, "content", media, "schema"}, body, true)
}

// checkError compares the answer to a failed request with the schema of errors. It returns nil if the document lists no
// errors for the operation.
func (c *Checker) checkError(o *openapi.Operation, a *http.Response, body []byte) error {
	if _, ok := o.Responses.By["default"]; !ok || a.StatusCode == http.StatusNotModified ||
		a.StatusCode == http.StatusPreconditionFailed {
		return nil
	}
	media, _, _ := mime.ParseMediaType(a.Header.Get("Content-Type"))
	if media == "text/plain" && a.StatusCode == http.StatusNotFound && strings.TrimSpace(string(body)) == "404 Not Found" {
		return nil // net/http itself refuses some paths, such as those with ".."
	}
	if media != "application/json" {
		return fmt.Errorf("%s: media type %q of an error: %.200s", o.ID, media, body)
	}
	return c.validate(nil, []string{"components", "schemas", "ErrorEnvelope"}, body, true)
}

// validate compares a JSON value with the schema at a place in the document. If o is not nil, the place is relative to
// the operation o. If closed is true, fields that the schema does not have are errors.
func (c *Checker) validate(o *openapi.Operation, place []string, value []byte, closed bool) error {
	if o != nil {
		place = append([]string{"paths", o.Path, strings.ToLower(o.Method)}, place...)
	}
	s, err := c.resolved(place, closed)
	if err != nil {
		return err
	}
	var v any
	if err := json.Unmarshal(value, &v); err != nil {
		return fmt.Errorf("decode %.200s: %w", value, err)
	}
	if err := s.Validate(v); err != nil {
		return fmt.Errorf("%.500s: %w", value, err)
	}
	return nil
}

func (c *Checker) resolved(place []string, closed bool) (*jsonschema.Resolved, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := strings.Join(place, "\x00")
	if s := c.schema[key]; s != nil {
		return s, nil
	}
	s, err := Schema(closed, place...)
	if err != nil {
		return nil, err
	}
	c.schema[key] = s
	return s, nil
}

// Schema returns the schema at a place in the document. If closed is true, values with fields that the schema does not
// have are invalid.
func Schema(closed bool, place ...string) (*jsonschema.Resolved, error) {
	var root map[string]any
	if err := json.Unmarshal(openapi.Bytes(), &root); err != nil {
		return nil, err
	}
	var at any = root
	for _, name := range place {
		object, ok := at.(map[string]any)
		if !ok || object[name] == nil {
			return nil, fmt.Errorf("the document has no %s", strings.Join(place, " > "))
		}
		at = object[name]
	}
	schema, ok := at.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%s is not an object", strings.Join(place, " > "))
	}
	schemas, _ := root["components"].(map[string]any)["schemas"].(map[string]any)
	whole := map[string]any{"$defs": schemas}
	for k, v := range schema {
		whole[k] = v
	}
	if closed {
		closeObjects(whole)
	}
	b, err := json.Marshal(whole)
	if err != nil {
		return nil, err
	}
	b = bytes.ReplaceAll(b, []byte(`"#/components/schemas/`), []byte(`"#/$defs/`))
	s := &jsonschema.Schema{}
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("parse schema %s: %w", strings.Join(place, " > "), err)
	}
	return s.Resolve(nil)
}

// closeObjects makes all objects that have a list of properties refuse other properties.
func closeObjects(x any) {
	switch x := x.(type) {
	case map[string]any:
		if _, ok := x["properties"].(map[string]any); ok && x["additionalProperties"] == nil {
			x["additionalProperties"] = false
		}
		for _, v := range x {
			closeObjects(v)
		}
	case []any:
		for _, v := range x {
			closeObjects(v)
		}
	}
}
