package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strings"
)

// Maximum lengths of lines in columns, in which a tab counts as one. Strings and tables in comments are not broken,
// because they are easier to read and to find whole.
const (
	longLine = 120
	longText = 140 // of a line with a string or of a table
)

// sizes holds the figures of the product's source text.
type sizes struct {
	lines    int            // number of lines of all files
	packages map[string]int // number of lines by package
	long     []string       // positions of lines over longLine columns
	comments float64        // share of comment lines in the lines that are not blank, in per cent
	exported int            // median of the number of exported names of a package
}

func sizesOf(sources []*source, packages map[string][]*source) sizes {
	n := sizes{packages: map[string]int{}}
	code, comments := 0, 0
	for _, s := range sources {
		all := strings.Split(strings.TrimSuffix(string(s.text), "\n"), "\n")
		n.lines += len(all)
		n.packages[s.dir] += len(all)
		texts := textLines(s)
		for i, line := range all {
			if columns := len([]rune(line)); columns > longText || columns > longLine && !texts[i] {
				n.long = append(n.long, fmt.Sprintf("%s:%d", s.path, i+1))
			}
		}
		written, commented := commentLines(s)
		code += written
		comments += commented
	}
	n.comments = 100 * float64(comments) / float64(max(code, 1))
	var exported []int
	for _, p := range packages {
		if p[0].ast.Name.Name != "main" {
			exported = append(exported, exportedNames(p))
		}
	}
	slices.Sort(exported)
	if len(exported) > 0 {
		n.exported = exported[len(exported)/2]
	}
	return n
}

// textLines returns the indexes of the lines that contain a part of a string, or that are a table or an example in a
// comment.
func textLines(s *source) map[int]bool {
	lines := map[int]bool{}
	index := func(p token.Pos) int { return bytes.Count(s.text[:p-s.ast.FileStart], []byte("\n")) }
	ast.Inspect(s.ast, func(n ast.Node) bool {
		if text, ok := n.(*ast.BasicLit); ok && text.Kind == token.STRING {
			for i, last := index(text.Pos()), index(text.End()); i <= last; i++ {
				lines[i] = true
			}
		}
		return true
	})
	for _, group := range s.ast.Comments {
		for _, c := range group.List {
			if strings.HasPrefix(c.Text, "//\t") {
				lines[index(c.Pos())] = true
			}
		}
	}
	return lines
}

// printSizes prints the numbers of lines and packages, the share of comment lines, the median number of exported names,
// and the largest packages.
func printSizes(sources []*source, packages map[string][]*source, worst int) {
	n := sizesOf(sources, packages)
	fmt.Printf("lines of product %d\n", n.lines)
	fmt.Printf("packages %d\n", len(packages))
	fmt.Printf("lines over %d columns %d\n", longLine, len(n.long))
	fmt.Printf("comment share of lines that are not blank %.1f %%\n", n.comments)
	fmt.Printf("exported names of a package, median %d\n", n.exported)
	printWorst("lines of package", n.packages, worst)
}

// commentLines returns the number of lines of a file that are not blank, and the number of those that contain only a
// comment.
func commentLines(s *source) (written, commented int) {
	inside := false
	for line := range strings.Lines(string(s.text)) {
		line = strings.TrimSpace(line)
		switch {
		case line == "":
			continue
		case inside, strings.HasPrefix(line, "//"), strings.HasPrefix(line, "/*"):
			commented++
			inside = (inside || strings.HasPrefix(line, "/*")) && !strings.Contains(line, "*/")
		}
		written++
	}
	return written, commented
}

// exportedNames returns the number of exported package-level names of a package, plus the number of exported methods of
// its exported types.
func exportedNames(p []*source) int {
	n := 0
	count := func(name *ast.Ident) {
		if name.IsExported() {
			n++
		}
	}
	for _, s := range p {
		for _, d := range s.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if owner := receiver(d); owner == "" || ast.IsExported(owner) {
					count(d.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch spec := spec.(type) {
					case *ast.TypeSpec:
						count(spec.Name)
					case *ast.ValueSpec:
						for _, name := range spec.Names {
							count(name)
						}
					}
				}
			}
		}
	}
	return n
}

// receiver returns the name of the type that a method belongs to. It returns "" for a function.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	t := d.Recv.List[0].Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	switch generic := t.(type) {
	case *ast.IndexExpr:
		t = generic.X
	case *ast.IndexListExpr:
		t = generic.X
	}
	if name, ok := t.(*ast.Ident); ok {
		return name.Name
	}
	return ""
}

func printWorst(title string, figures map[string]int, worst int) {
	names := make([]string, 0, len(figures))
	for name := range figures {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		if d := figures[b] - figures[a]; d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	for _, name := range names[:min(worst, len(names))] {
		fmt.Printf("%s %s %d\n", title, name, figures[name])
	}
}
