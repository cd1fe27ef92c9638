package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// shapes holds the figures of the product's types. A type is named by its package's directory and its name.
type shapes struct {
	structs, interfaces int
	// fields and methods hold the number of fields and methods of each type. Fields are those of the struct and of the
	// structs embedded in it. Methods include functions of any package whose first parameter, apart from a context, is
	// a pointer to the type.
	fields, methods map[string]int
	files           map[string]int // by type: number of the files that contain its methods
}

func shapesOf(packages map[string][]*source) shapes {
	n := shapes{fields: map[string]int{}, methods: map[string]int{}, files: map[string]int{}}
	structs := map[string]*ast.StructType{}
	takers := map[string]int{}
	for dir, p := range packages {
		files := map[string]map[string]bool{}
		for _, s := range p {
			for _, d := range s.ast.Decls {
				switch d := d.(type) {
				case *ast.FuncDecl:
					owner := receiver(d)
					if owner == "" {
						takers[firstTaken(s, d)]++
						continue
					}
					name := dir + "." + owner
					n.methods[name]++
					if files[name] == nil {
						files[name] = map[string]bool{}
					}
					files[name][s.path] = true
				case *ast.GenDecl:
					for _, spec := range d.Specs {
						t, ok := spec.(*ast.TypeSpec)
						if !ok {
							continue
						}
						switch content := t.Type.(type) {
						case *ast.InterfaceType:
							n.interfaces++
						case *ast.StructType:
							n.structs++
							structs[dir+"."+t.Name.Name] = content
						}
					}
				}
			}
		}
		for name, f := range files {
			n.files[name] = len(f)
		}
	}
	for name, s := range structs {
		n.methods[name] += takers[name]
		n.fields[name] = fieldsOf(structs, name[:strings.LastIndexByte(name, '.')], s)
	}
	return n
}

// firstTaken returns the name of the type to which the first parameter of a function points, not counting a context. It
// returns "" if there is no such parameter or if the type belongs to another module.
func firstTaken(s *source, d *ast.FuncDecl) string {
	for _, p := range d.Type.Params.List {
		if text := types.ExprString(p.Type); text == "context.Context" {
			continue
		}
		if star, ok := p.Type.(*ast.StarExpr); ok {
			return nameOf(s, star.X)
		}
		break
	}
	return ""
}

// nameOf returns the name of the type in the expression e, or "" if the type belongs to another module.
func nameOf(s *source, e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return s.dir + "." + e.Name
	case *ast.SelectorExpr:
		x, ok := e.X.(*ast.Ident)
		if !ok {
			return ""
		}
		for _, i := range s.ast.Imports {
			dir, ours := strings.CutPrefix(strings.Trim(i.Path.Value, `"`), module)
			if ours && (i.Name != nil && i.Name.Name == x.Name || i.Name == nil && path.Base(dir) == x.Name) {
				return dir + "." + e.Sel.Name
			}
		}
	}
	return ""
}

// printTypes prints the number of structs for each interface, and the types with the most fields, methods and files.
func printTypes(packages map[string][]*source, worst int) {
	n := shapesOf(packages)
	fmt.Printf("structs for each interface %.1f\n", float64(n.structs)/float64(max(n.interfaces, 1)))
	printWorst("fields of type", n.fields, worst)
	printWorst("methods of type", n.methods, worst)
	printWorst("files that hold methods of type", n.files, worst)
}

// fieldsOf returns the number of fields of a struct of the package dir. Fields of embedded structs of the same package
// are included.
func fieldsOf(structs map[string]*ast.StructType, dir string, t *ast.StructType) int {
	n := 0
	for _, f := range t.Fields.List {
		n += max(1, len(f.Names))
		if len(f.Names) > 0 {
			continue
		}
		embedded := f.Type
		if star, ok := embedded.(*ast.StarExpr); ok {
			embedded = star.X
		}
		if name, ok := embedded.(*ast.Ident); ok {
			if inner := structs[dir+"."+name.Name]; inner != nil {
				n += fieldsOf(structs, dir, inner) - 1
			}
		}
	}
	return n
}

// printCalls prints, for each package of at least 2,000 lines, how many calls between its files run against the order
// of the files. The order is the one against which the fewest calls run. Calls to other packages are ignored, so no
// other package has to be compiled.
func printCalls(files *token.FileSet, packages map[string][]*source) {
	dirs := make([]string, 0, len(packages))
	for dir := range packages {
		dirs = append(dirs, dir)
	}
	slices.Sort(dirs)
	for _, dir := range dirs {
		p := packages[dir]
		lines := 0
		for _, s := range p {
			lines += files.File(s.ast.Pos()).LineCount()
		}
		if lines < 2000 {
			continue
		}
		up, all := callsUp(files, p)
		fmt.Printf("calls between files that run back up, %s %.0f %% of %d\n", dir, 100*float64(up)/float64(max(all, 1)), all)
	}
}

func callsUp(files *token.FileSet, p []*source) (up, all int) {
	var parsed []*ast.File
	for _, s := range p {
		parsed = append(parsed, s.ast)
	}
	info := types.Info{Uses: map[*ast.Ident]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{}}
	config := types.Config{Error: func(error) {}, Importer: noImports{}}
	// Check returns errors, because the names of other packages are unknown here
	own, _ := config.Check(p[0].dir, files, parsed, &info)
	fileOf := func(pos token.Pos) string { return filepath.Base(files.Position(pos).Filename) }
	calls := map[[2]string]int{}
	for _, f := range parsed {
		from := fileOf(f.Pos())
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			var name *ast.Ident
			switch fun := call.Fun.(type) {
			case *ast.Ident:
				name = fun
			case *ast.SelectorExpr:
				name = fun.Sel
			}
			if f, ok := info.Uses[name].(*types.Func); name != nil && ok && f.Pkg() == own {
				if to := fileOf(f.Pos()); to != from {
					calls[[2]string{from, to}]++
				}
			}
			return true
		})
	}
	for _, n := range calls {
		all += n
	}
	return callsAgainst(bestOrder(calls), calls), all
}

// bestOrder returns the files in an order against which few calls run. It moves one file at a time as long as that
// reduces the number of such calls. Finding the best possible order would take exponential time.
func bestOrder(calls map[[2]string]int) []string {
	var order []string
	for way := range calls {
		order = append(order, way[0], way[1])
	}
	slices.Sort(order)
	order = slices.Compact(order)
	for best, better := callsAgainst(order, calls), true; better; {
		better = false
		for from := range order {
			for to := range order {
				tried := slices.Insert(slices.Delete(slices.Clone(order), from, from+1), to, order[from])
				if n := callsAgainst(tried, calls); n < best {
					order, best, better = tried, n, true
				}
			}
		}
	}
	return order
}

func callsAgainst(order []string, calls map[[2]string]int) (n int) {
	at := map[string]int{}
	for i, name := range order {
		at[name] = i
	}
	for way, count := range calls {
		if at[way[0]] > at[way[1]] {
			n += count
		}
	}
	return n
}

// noImports is a types.Importer that returns an empty package for every import.
type noImports struct{}

func (noImports) Import(path string) (*types.Package, error) {
	p := types.NewPackage(path, filepath.Base(path))
	p.MarkComplete()
	return p, nil
}
