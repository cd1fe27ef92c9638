// Package openapi contains the description of the REST API in OpenAPI 3.1, which the server serves and from which the
// clients in TypeScript and Python are generated. The file openapi.json is written by hand. Tests compare it with the
// routes and the answers of the server, so that the two stay equal.
//
//go:generate go run ../clientgen ../clients
package openapi

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

//go:embed openapi.json
var document []byte

// Path is where servers serve the document.
const Path = "/openapi.json"

// Bytes returns the document.
func Bytes() []byte { return bytes.Clone(document) }

// Handler serves the document. Pages of other origins may read it, because it contains nothing about this server.
func Handler() http.Handler {
	sum := sha256.Sum256(document)
	tag := `"` + hex.EncodeToString(sum[:8]) + `"`
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "Method Not Allowed", http.StatusMethodNotAllowed)
			return
		}
		h := w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("Access-Control-Allow-Origin", "*")
		h.Set("ETag", tag)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(document))
	})
}

// Document is the part of an OpenAPI document that the generator of clients and the tests use.
type Document struct {
	Paths      Ordered[Ordered[*Operation]] `json:"paths"`
	Components struct {
		Parameters Ordered[*Parameter] `json:"parameters"`
		Responses  Ordered[*Response]  `json:"responses"`
		Schemas    Ordered[*Schema]    `json:"schemas"`
	} `json:"components"`
}

// Operation is one method of one path.
type Operation struct {
	Method      string       `json:"-"` // method of HTTP in upper case
	Path        string       `json:"-"`
	ID          string       `json:"operationId"`
	Summary     string       `json:"summary"`
	Description string       `json:"description"`
	Parameters  []*Parameter `json:"parameters"`
	Body        *struct {
		Required bool           `json:"required"`
		Content  Ordered[Media] `json:"content"`
	} `json:"requestBody"`
	Responses Ordered[*Response] `json:"responses"` // answers by status; "default" is the answer for all other statuses
}

// Parameter is a part of the path or of the query.
type Parameter struct {
	Ref         string  `json:"$ref"`
	Name        string  `json:"name"`
	In          string  `json:"in"`
	Description string  `json:"description"`
	Required    bool    `json:"required"`
	Schema      *Schema `json:"schema"`
}

// Response is an answer.
type Response struct {
	Ref     string         `json:"$ref"`
	Content Ordered[Media] `json:"content"` // bodies by media type
}

// Media is a body of one media type.
type Media struct {
	Schema *Schema `json:"schema"`
}

// Schema is the type of a value, in JSON Schema.
type Schema struct {
	Ref         string           `json:"$ref"`
	Type        Types            `json:"type"`
	Format      string           `json:"format"`
	Description string           `json:"description"`
	Const       any              `json:"const"`
	Enum        []any            `json:"enum"`
	Items       *Schema          `json:"-"`
	RawItems    json.RawMessage  `json:"items"`
	PrefixItems []*Schema        `json:"prefixItems"`
	MinItems    int              `json:"minItems"`
	Properties  Ordered[*Schema] `json:"properties"`
	Required    []string         `json:"required"`
}

// Types are the possible types of a value: "string", or ["string", "null"].
type Types []string

func (t *Types) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		*t = Types{""}
		return json.Unmarshal(b, &(*t)[0])
	}
	return json.Unmarshal(b, (*[]string)(t))
}

// UnmarshalJSON decodes a schema. "items" is a schema, or false where an array has only the values of prefixItems.
func (s *Schema) UnmarshalJSON(b []byte) error {
	type plain Schema
	if err := json.Unmarshal(b, (*plain)(s)); err != nil {
		return err
	}
	if len(s.RawItems) > 0 && s.RawItems[0] == '{' {
		s.Items = &Schema{}
		return json.Unmarshal(s.RawItems, s.Items)
	}
	return nil
}

// Ordered is a JSON object that keeps the order of its fields.
type Ordered[T any] struct {
	Names []string
	By    map[string]T
}

func (o *Ordered[T]) UnmarshalJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return fmt.Errorf("decode object: it begins with %v: %w", t, err)
	}
	o.By = map[string]T{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return err
		}
		var value T
		if err := d.Decode(&value); err != nil {
			return err
		}
		name, _ := t.(string)
		o.Names, o.By[name] = append(o.Names, name), value
	}
	return nil
}

// Parse decodes the document and replaces references to parameters and responses by the parameters and responses.
func Parse() (*Document, error) {
	doc := &Document{}
	if err := json.Unmarshal(document, doc); err != nil {
		return nil, fmt.Errorf("parse openapi.json: %w", err)
	}
	return doc, doc.resolve()
}
