// Command clientgen writes the clients in TypeScript and Python from the OpenAPI document of the server: `clientgen
// DIR`, where DIR is the directory clients of the project. It writes types and one method for each operation. Requests,
// errors, pages and streams are in files beside them, which are written by hand.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/artifactfs/artifactfs/server/openapi"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "clientgen:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("usage: clientgen DIR")
	}
	files, err := generate()
	if err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(args[0], name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// generate returns the contents of the generated files by their paths below the directory of the clients.
func generate() (map[string][]byte, error) {
	doc, err := openapi.Parse()
	if err != nil {
		return nil, err
	}
	var calls []call
	for _, o := range doc.Operations() {
		c, err := callOf(o)
		if err != nil {
			return nil, fmt.Errorf("generate %s: %w", o.ID, err)
		}
		calls = append(calls, c)
	}
	for _, name := range doc.Components.Schemas.Names {
		for _, field := range doc.Components.Schemas.By[name].Properties.Names {
			if pyName(field) != field {
				return nil, fmt.Errorf("generate %s: the name of its field %s is a keyword of Python", name, field)
			}
		}
	}
	return map[string][]byte{
		"typescript/artifacts.js":              javascript(calls),
		"typescript/artifacts.d.ts":            declarations(doc, calls),
		"python/artifactfs_client/__init__.py": python(doc, calls),
	}, nil
}

// kind is the form in which a method returns the answer. The clients' own files know the same words.
type kind string

const (
	none   kind = "none"   // the body is empty
	bytes_ kind = "bytes"  // as sent
	text   kind = "text"   // as UTF-8
	whole  kind = "json"   // the JSON document
	result kind = "result" // field result of the envelope
	page   kind = "page"   // fields result and result_info of the envelope
	stream kind = "stream" // server-sent events or lines, each a JSON document
)

// call is one method of a client.
type call struct {
	*openapi.Operation
	words  []string // of the name
	kind   kind
	answer *openapi.Schema // of the value, of one result of a page, or of one value of a stream
	body   *openapi.Schema // nil for none
	path   []*openapi.Parameter
	query  []*openapi.Parameter
}

func callOf(o *openapi.Operation) (call, error) {
	c := call{Operation: o, path: o.In("path"), query: o.In("query")}
	_, name, _ := strings.Cut(o.ID, "_")
	c.words = strings.Split(name, "_")
	if o.Body != nil {
		c.body = o.Body.Content.By[o.Body.Content.Names[0]].Schema
	}
	_, answer := o.Success()
	var err error
	c.kind, c.answer, err = formOf(answer)
	return c, err
}

func formOf(r *openapi.Response) (kind, *openapi.Schema, error) {
	if len(r.Content.Names) == 0 {
		return none, nil, nil
	}
	media := r.Content.Names[0]
	schema := r.Content.By[media].Schema
	switch {
	case schema == nil:
		return "", nil, fmt.Errorf("%s has no schema", media)
	case media == "text/event-stream" || media == "application/x-ndjson":
		return stream, schema, nil
	case schema.Format == "binary":
		return bytes_, nil, nil
	case media != "application/json":
		return text, nil, nil
	}
	inner, enveloped := schema.Properties.By["result"]
	if !enveloped {
		return whole, schema, nil
	}
	if _, paged := schema.Properties.By["result_info"]; paged {
		if inner.Items == nil {
			return "", nil, fmt.Errorf("a page without results")
		}
		return page, inner.Items, nil
	}
	return result, inner, nil
}

// sentences returns the text above a method.
func (c call) sentences() []string {
	lines := []string{c.Summary + "."}
	if c.Description != "" {
		lines = append(lines, c.Description)
	}
	return lines
}
