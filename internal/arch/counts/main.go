// Counts measures how readable a tree of this program is: folders and the imports between them, the sizes of packages
// and types, the share of comments, the words in the comments, functions that exist twice, packages without tests, and
// documents.
//
//	go run ./internal/arch/counts [-dir DIR] [-worst N]
//	go run ./internal/arch/counts -sample SEED [-dir DIR]
//
// The first form prints one figure on each line, so that two trees can be compared with diff. The second form prints
// 100 comments, 30 errors and 30 of the last 100 commit subjects, selected at random with SEED, for a reader who rates
// them without the code. Each comment is printed with the line of code that it belongs to.
package main

import (
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// harness lists the directories that only serve tests and benchmarks. The figures do not include them.
var harness = []string{"integration", "internal/arch", "integration/harness", "internal/disk/disktest",
	"internal/metrics/metricstest", "worktree/worktreetest"}

// module is the prefix of the import paths of the product.
const module = "github.com/artifactfs/artifactfs/"

// source is one parsed Go file of the product.
type source struct {
	path string // path relative to the root of the tree
	dir  string
	ast  *ast.File
	text []byte
}

func main() {
	dir := flag.String("dir", ".", "root of the tree to count")
	worst := flag.Int("worst", 5, "how many of the largest packages and types to print")
	sample := flag.Int64("sample", 0, "print a sample for rating instead, picked by this seed")
	flag.Parse()
	if err := run(*dir, *worst, *sample); err != nil {
		fmt.Fprintf(os.Stderr, "counts: %v\n", err)
		os.Exit(1)
	}
}

func run(dir string, worst int, seed int64) error {
	files := token.NewFileSet()
	sources, err := product(files, dir)
	if err != nil {
		return err
	}
	if len(sources) == 0 {
		return fmt.Errorf("count %s: no Go file of the product below it", dir)
	}
	if seed != 0 {
		return printSample(dir, sources, seed)
	}
	packages := byDir(sources)
	printSizes(sources, packages, worst)
	printTypes(packages, worst)
	printCalls(files, packages)
	printWords(sources)
	printFolders(sources)
	printBodies(sources)
	return errors.Join(printUntested(dir, packages), printDocuments(dir, worst))
}

// product parses every Go file below dir that is neither a test nor a part of the harness.
func product(files *token.FileSet, dir string) ([]*source, error) {
	var found []*source
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); rel != "." && (name[0] == '.' || name == "testdata" || name == "bin") || isHarness(rel) {
				return fs.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		parsed, err := parser.ParseFile(files, rel, text, parser.ParseComments)
		if err != nil {
			return err
		}
		found = append(found, &source{path: rel, dir: filepath.Dir(rel), ast: parsed, text: text})
		return nil
	})
	return found, err
}

func isHarness(rel string) bool {
	return slices.Contains(harness, filepath.ToSlash(rel))
}

func byDir(sources []*source) map[string][]*source {
	packages := map[string][]*source{}
	for _, s := range sources {
		packages[s.dir] = append(packages[s.dir], s)
	}
	return packages
}
