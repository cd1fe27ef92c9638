package main

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/artifactfs/artifactfs/server/openapi"
)

// python returns the module: a TypedDict for each schema, and the class with one method for each operation.
func python(doc *openapi.Document, calls []call) []byte {
	var b bytes.Buffer
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p(`"""Client of the REST API of artifactfs serve and Cloudflare Artifacts.`)
	p("")
	p("%s", generated)
	p(`"""`)
	p("")
	p("from __future__ import annotations")
	p("")
	p("from collections.abc import Iterator")
	p("from typing import Any, Literal, NotRequired, TypedDict")
	p("")
	p("from .client import ApiError, Client, Page, paginate, segment, segments")
	p("")
	p("__all__ = [")
	p(`    "ApiError",`)
	p(`    "Artifacts",`)
	p(`    "Client",`)
	p(`    "Page",`)
	for _, name := range doc.Components.Schemas.Names {
		if !isEnvelope(name) {
			p(`    "%s",`, name)
		}
	}
	p(`    "paginate",`)
	p("]")
	for _, name := range doc.Components.Schemas.Names {
		s := doc.Components.Schemas.By[name]
		if isEnvelope(name) {
			continue
		}
		p("")
		if len(s.Properties.Names) == 0 {
			p("%s = %s", name, pyType(s))
			continue
		}
		p("")
		p("class %s(TypedDict):", name)
		if s.Description != "" {
			p(`    """%s"""`, s.Description)
			p("")
		}
		for _, field := range s.Properties.Names {
			t := pyType(s.Properties.By[field])
			if !slices.Contains(s.Required, field) {
				t = "NotRequired[" + t + "]"
			}
			p("    %s: %s", field, t)
			if d := s.Properties.By[field].Description; d != "" {
				p(`    """%s"""`, d)
			}
		}
	}
	p("")
	p("")
	p("class Artifacts(Client):")
	p(`    """A method for each operation of the REST API."""`)
	for _, c := range calls {
		pyMethod(p, c)
	}
	return b.Bytes()
}

func pyMethod(p func(string, ...any), c call) {
	args := []string{"self"}
	for _, v := range c.path {
		if v.Name != account {
			args = append(args, v.Name+": "+pyType(v.Schema))
		}
	}
	if c.body != nil {
		t := "body: " + pyType(c.body)
		if !c.Body.Required {
			t += " | None = None"
		}
		args = append(args, t)
	}
	if len(c.query) > 0 {
		args = append(args, "*")
	}
	var query []string
	for _, v := range c.query {
		t := pyName(v.Name) + ": " + pyType(v.Schema)
		if !v.Required {
			t += " | None = None"
		}
		args = append(args, t)
		query = append(query, fmt.Sprintf("%q: %s", v.Name, pyName(v.Name)))
	}
	path := `f"` + placeholder().ReplaceAllStringFunc(c.Path, pySegment) + `"`
	if !strings.Contains(strings.ReplaceAll(path, "{{", ""), "{") {
		path = strings.NewReplacer("{{", "{", "}}", "}").Replace(path[1:])
	}
	p("")
	p("    def %s -> %s:", folded(strings.Join(c.words, "_"), args, "    ", "    "), pyAnswer(c))
	p(`        """%s"""`, strings.Join(c.sentences(), "\n\n        "))
	call, values := "self._call", []string{fmt.Sprintf("%q", c.Method), path, fmt.Sprintf("%q", c.kind)}
	if c.kind == stream {
		call, values = "self._stream", values[:2]
	}
	if len(query) > 0 {
		values = append(values, "query={"+strings.Join(query, ", ")+"}")
	}
	if c.body != nil {
		values = append(values, "body=body")
	}
	p("        return %s", folded(call, values, "        ", "    "))
}

// folded returns a call or a signature: on one line if that is short, else with one argument on each line, which step
// indents further than the line of the name.
func folded(name string, args []string, indent, step string) string {
	if line := name + "(" + strings.Join(args, ", ") + ")"; len(line) <= 100 {
		return line
	}
	return name + "(\n" + indent + step + strings.Join(args, ",\n"+indent+step) + ",\n" + indent + ")"
}

// pyName returns the name of an argument. Words of the language get an underscore, as is usual in Python.
func pyName(name string) string {
	if slices.Contains([]string{"from", "in", "is", "class", "import", "global", "pass"}, name) {
		return name + "_"
	}
	return name
}

// pySegment returns the expression for a placeholder of a path.
func pySegment(s string) string {
	switch name := strings.Trim(s, "{}"); name {
	case account:
		return "{{account}}"
	case "path":
		return "{segments(path)}"
	default:
		return "{segment(" + name + ")}"
	}
}

func pyAnswer(c call) string {
	switch c.kind {
	case none:
		return "None"
	case bytes_:
		return "bytes"
	case text:
		return "str"
	case page:
		return "Page[" + pyType(c.answer) + "]"
	case stream:
		return "Iterator[" + pyType(c.answer) + "]"
	case whole, result:
		return pyType(c.answer)
	default:
		panic("clientgen: unknown kind " + c.kind)
	}
}

// pyWords are the types of Python by those of JSON Schema.
var pyWords = map[string]string{
	"string": "str", "boolean": "bool", "null": "None", "integer": "int", "number": "float", "object": "dict[str, Any]",
}

func pyType(s *openapi.Schema) string {
	switch {
	case s.Ref != "":
		return s.Name()
	case s.Const != nil:
		return "Literal[" + pyLiteral(s.Const) + "]"
	case len(s.Enum) > 0:
		var all []string
		for _, v := range s.Enum {
			all = append(all, pyLiteral(v))
		}
		return "Literal[" + strings.Join(all, ", ") + "]"
	}
	var types []string
	for _, t := range s.Type {
		if s.Format == "binary" {
			types = append(types, "bytes")
			continue
		}
		if t != "array" {
			types = append(types, pyWords[t])
			continue
		}
		item := "Any"
		if s.Items != nil {
			item = pyType(s.Items)
		}
		types = append(types, "list["+item+"]")
	}
	if len(types) == 0 {
		return "Any"
	}
	return strings.Join(types, " | ")
}

func pyLiteral(v any) string {
	switch v := v.(type) {
	case bool:
		return map[bool]string{true: "True", false: "False"}[v]
	case string:
		return strconv.Quote(v)
	}
	return fmt.Sprint(v)
}
