package control

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the tables of fields into the pages of doc/internals/protocol")

// document is the folder with the pages about the protocol.
const document = "../doc/internals/protocol"

// structs returns the struct types of this package with their comments, and those of the packages control/profile,
// fetchmap and readprofile.
func structs(t *testing.T) map[string]*ast.StructType {
	t.Helper()
	found := make(map[string]*ast.StructType)
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(names, "profile/profile.go", "../fetch/fetchmap/map.go",
		"../fetch/readprofile/mounted.go") {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, s := range g.Specs {
				if s, ok := s.(*ast.TypeSpec); ok {
					if st, ok := s.Type.(*ast.StructType); ok {
						found[s.Name.Name] = st
					}
				}
			}
		}
	}
	return found
}

// jsonType returns what a Go type is in JSON.
func jsonType(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return jsonType(e.X) + " or null"
	case *ast.ArrayType:
		if elt, ok := e.Elt.(*ast.Ident); ok && elt.Name == "byte" {
			return "string" // encoding/json encodes bytes in base64
		}
		return "array of " + jsonType(e.Elt)
	case *ast.SelectorExpr:
		switch e.Sel.Name {
		case "Time":
			return "time"
		case "Duration":
			return "nanoseconds"
		case "Profile", "Change", "MapRequest", "Map":
			return e.Sel.Name
		}
		return "any"
	case *ast.Ident:
		switch e.Name {
		case "string", "State", "HistoryState", "History", "Prefetch", "Wait", "GitDir", "Policy", "TraceSource", "ErrorCode",
			"Secret", "Verdict", "PromoteMethod", "Ignored":
			return "string"
		case "bool":
			return "boolean"
		case "int", "int64", "uint32", "float64":
			return "number"
		}
		return e.Name
	}
	return "?"
}

// table returns the fields of a struct as a table; those that it embeds come first.
func table(all map[string]*ast.StructType, name string) string {
	var b strings.Builder
	keys := jsonKeys(all, name)
	var rows func(name string)
	rows = func(name string) {
		for _, f := range all[name].Fields.List {
			if len(f.Names) == 0 {
				if name := embedded(f); all[name] != nil {
					rows(name)
				}
				continue
			}
			if f.Tag == nil {
				continue
			}
			key, options, _ := strings.Cut(reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json"), ",")
			if key == "-" {
				continue
			}
			about := strings.TrimSpace(f.Comment.Text())
			if about == "" {
				about = strings.TrimSpace(f.Doc.Text())
			}
			about = jsonNames(about, f.Names[0].Name, keys)
			kind := jsonType(f.Type)
			if strings.HasPrefix(options, "omit") {
				kind += ", optional"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", key, kind, strings.NewReplacer("\n", " ", "|", "\\|").Replace(about))
		}
	}
	rows(name)
	if b.Len() == 0 {
		return "No fields.\n"
	}
	return "| field | type | |\n|---|---|---|\n" + b.String()
}

// embedded returns the name of the type of a field without the name of its package; "" if the type is not a named one.
func embedded(f *ast.Field) string {
	switch e := f.Type.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

// jsonKeys maps the names of the fields of a struct, and of the structs that it embeds, to their keys in JSON.
func jsonKeys(all map[string]*ast.StructType, name string) map[string]string {
	keys := make(map[string]string)
	for _, f := range all[name].Fields.List {
		if name := embedded(f); len(f.Names) == 0 && all[name] != nil {
			maps.Copy(keys, jsonKeys(all, name))
		}
		if len(f.Names) == 0 || f.Tag == nil {
			continue
		}
		key, _, _ := strings.Cut(reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json"), ",")
		if key != "-" {
			keys[f.Names[0].Name] = key
		}
	}
	return keys
}

// words matches the words of a comment. A word with a dash is matched in parts.
var words = regexp.MustCompile(`\w+`)

// jsonNames replaces the names of fields in the comment on a field by their keys in JSON. A comment may begin with the
// name of its field; any other first word is a word of the sentence.
func jsonNames(comment, field string, keys map[string]string) string {
	var b strings.Builder
	end := 0
	for _, at := range words.FindAllStringIndex(comment, -1) {
		word := comment[at[0]:at[1]]
		key, ok := keys[word]
		if !ok || at[0] == 0 && word != field {
			continue
		}
		b.WriteString(comment[end:at[0]] + "`" + key + "`")
		end = at[1]
	}
	return b.String() + comment[end:]
}

// The tables of fields in doc/internals/protocol are made of the types of this package: go test ./control -run Document
// -update
func TestProtocolDocumentHasEveryField(t *testing.T) {
	all := structs(t)
	pages, err := filepath.Glob(document + "/*.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile(`(?s)<!-- fields of (\w+) -->\n.*?<!-- end -->`)
	var shown []string
	var whole strings.Builder
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		want := block.ReplaceAllStringFunc(string(text), func(old string) string {
			name := block.FindStringSubmatch(old)[1]
			shown = append(shown, name)
			if all[name] == nil {
				t.Errorf("%s has the fields of %s, which package control does not have", page, name)
				return old
			}
			return "<!-- fields of " + name + " -->\n" + table(all, name) + "<!-- end -->"
		})
		whole.WriteString(want)
		if want == string(text) {
			continue
		}
		if !*update {
			t.Errorf("%s is out of date: go test ./control -run Document -update", page)
		} else if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, s := range all {
		embedded := slices.Contains([]string{"wireMount", "wireFork", "wireCredential", "MountFetch", "MountAccess",
			"MountLogin", "Selection"}, name)
		for _, f := range s.Fields.List {
			if f.Tag != nil && strings.Contains(f.Tag.Value, "json:") && !embedded && !slices.Contains(shown, name) {
				t.Errorf("%s does not show the fields of %s: add a block <!-- fields of %s -->", document, name, name)
				break
			}
		}
	}
	for o := range decoders {
		if !strings.Contains(whole.String(), "\n## `"+string(o)+"`\n") {
			t.Errorf("%s has no section about the operation %s", document, o)
		}
	}
	for _, code := range errorCodes(t) {
		if !strings.Contains(whole.String(), "| `"+code+"` |") {
			t.Errorf("%s does not list the error code %s", document, code)
		}
	}
}

// errorCodes returns the values of the constants of type ErrorCode.
func errorCodes(t *testing.T) (codes []string) {
	t.Helper()
	source, err := os.ReadFile("error.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^\tCode\w+ +ErrorCode = "([a-z-]+)"`).FindAllStringSubmatch(string(source),
		-1) {
		codes = append(codes, m[1])
	}
	if len(codes) < 10 {
		t.Fatalf("found %d error codes", len(codes))
	}
	return codes
}

func TestEveryCallHasAnExample(t *testing.T) {
	source, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for m := range reflect.TypeFor[*Client]().Methods() {
		if !strings.Contains(string(source), "\nfunc ExampleClient_"+m.Name+"() {\n") {
			t.Errorf("Client.%s has no example in example_test.go", m.Name)
		}
	}
}
