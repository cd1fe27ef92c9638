package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/token"
	"math/rand"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// marks are words and phrases that are frequent in unclear comments. The comments of comparable projects contain each
// of them 0 to 5 times in 10,000 words, and "returns" 59 to 136 times.
var marks = []struct {
	name string
	form *regexp.Regexp
}{
	{"gives", regexp.MustCompile(`(?i)\b(give|gives|gave|given)\b`)},
	{"whoever, somebody, nobody", regexp.MustCompile(`(?i)\b(whoever|somebody|someone|nobody|anybody)\b`)},
	{"tell, told", regexp.MustCompile(`(?i)\b(tell|tells|told)\b`)},
	{"what, as a noun", regexp.MustCompile(`(?i)\b(what|whatever) (is|was|were|are|it|they|has|had|have|stands|comes|` +
		`came|goes|follows|the|a|an|of|this|that|there|can|could|no|git|others?)\b`)},
	{"returns", regexp.MustCompile(`(?i)\breturns?\b`)},
}

func printWords(sources []*source) {
	words := 0
	counts := make([]int, len(marks))
	for _, s := range sources {
		for _, group := range s.ast.Comments {
			text := group.Text()
			words += len(strings.Fields(text))
			for i, m := range marks {
				counts[i] += len(m.form.FindAllString(text, -1))
			}
		}
	}
	fmt.Printf("words of comment %d\n", words)
	for i, m := range marks {
		fmt.Printf("of 10,000 words of comment: %s %.0f\n", m.name, 10000*float64(counts[i])/float64(max(words, 1)))
	}
}

// printSample prints comments, errors and commit subjects for rating. All comments have the same probability of being
// selected, as have all errors and all subjects.
func printSample(dir string, sources []*source, seed int64) error {
	random := rand.New(rand.NewSource(seed))
	var comments, names, failures []string
	for _, s := range sources {
		for _, group := range s.ast.Comments {
			if text := strings.TrimSpace(group.Text()); len(strings.Fields(text)) >= 4 {
				comments = append(comments, s.path+": "+text+"\n\t"+s.annotated(group))
			}
		}
		names = append(names, s.names()...)
		ast.Inspect(s.ast, func(n ast.Node) bool {
			if text, ok := errorText(n); ok {
				failures = append(failures, s.path+": "+text)
			}
			return true
		})
	}
	log := exec.Command("git", "-C", dir, "log", "--no-merges", "--format=%s", "-n", "400")
	out, err := log.Output()
	if err != nil {
		return fmt.Errorf("read the history of %s: %w", dir, err)
	}
	printPicked(random, "comment", comments, 100)
	printPicked(random, "name", names, 60)
	printPicked(random, "error", failures, 30)
	printPicked(random, "subject", strings.Split(strings.TrimSpace(string(out)), "\n"), 40)
	return nil
}

// annotated returns the code that is printed with a comment: the code before the comment if both are on the same line,
// otherwise the line below the comment. If the comment is inside a declaration, the first line of the declaration
// precedes this code.
func (s *source) annotated(group *ast.CommentGroup) string {
	start, end := int(group.Pos()-s.ast.FileStart), int(group.End()-s.ast.FileStart)
	line := s.text[bytes.LastIndexByte(s.text[:start], '\n')+1 : start]
	if len(bytes.TrimSpace(line)) == 0 {
		line, _, _ = bytes.Cut(bytes.TrimLeft(s.text[end:], "\n"), []byte("\n"))
	}
	code := string(bytes.TrimSpace(line))
	for _, d := range s.ast.Decls {
		if d.Pos() <= group.Pos() && group.End() <= d.End() {
			first, _, _ := bytes.Cut(s.text[d.Pos()-s.ast.FileStart:], []byte("\n"))
			code = string(first) + "\n\t\t" + code
		}
	}
	return code
}

// names returns the names that the file declares, each with the line that declares it: functions, methods, types,
// constants and variables of the package, and fields.
func (s *source) names() []string {
	var names []string
	add := func(kind string, ids ...*ast.Ident) {
		for _, id := range ids {
			at := id.Pos() - s.ast.FileStart
			line, _, _ := bytes.Cut(s.text[bytes.LastIndexByte(s.text[:at], '\n')+1:], []byte("\n"))
			names = append(names, fmt.Sprintf("%s: %s %s\n\t%s", s.path, kind, id.Name, bytes.TrimSpace(line)))
		}
	}
	for _, d := range s.ast.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			add("function", d.Name)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					add("type", spec.Name)
					if structure, ok := spec.Type.(*ast.StructType); ok {
						for _, f := range structure.Fields.List {
							add("field of "+spec.Name.Name, f.Names...)
						}
					}
				case *ast.ValueSpec:
					add("constant or variable", spec.Names...)
				}
			}
		}
	}
	return names
}

// formatVerb matches a formatting verb of package fmt, and wordForm matches a word.
var formatVerb, wordForm = regexp.MustCompile(`%[-+# 0-9.*]*[a-zA-Z]`), regexp.MustCompile(`[a-zA-Z]+`)

// errorText returns the text of a call of errors.New or fmt.Errorf. It returns false for other nodes, and for texts
// with fewer than two words, not counting formatting verbs.
func errorText(n ast.Node) (string, bool) {
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) == 0 {
		return "", false
	}
	fun, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return "", false
	}
	of, ok := fun.X.(*ast.Ident)
	if !ok || of.Name+"."+fun.Sel.Name != "errors.New" && of.Name+"."+fun.Sel.Name != "fmt.Errorf" {
		return "", false
	}
	literal, ok := call.Args[0].(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(literal.Value)
	return text, err == nil && len(wordForm.FindAllString(formatVerb.ReplaceAllString(text, ""), -1)) >= 2
}

func printPicked(random *rand.Rand, kind string, from []string, n int) {
	slices.Sort(from)
	from = slices.Compact(from)
	random.Shuffle(len(from), func(i, j int) { from[i], from[j] = from[j], from[i] })
	for i, text := range from[:min(n, len(from))] {
		fmt.Printf("## %s %d\n%s\n\n", kind, i+1, text)
	}
}
