package arch

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the pages below "+lists)

// lists is the folder of the pages that list all packages.
const lists = "doc/internals/packages"

// TestPackagesAreListed checks that the pages that list all packages match the comments of the packages.
func TestPackagesAreListed(t *testing.T) {
	pages := map[string]*strings.Builder{}
	page := func(name string) *strings.Builder {
		pages[name] = &strings.Builder{}
		return pages[name]
	}
	first := page("README")
	fmt.Fprint(first,
		"# Packages\n\nThis page answers: which folder has what, and what may it import?\n\nThe comment of each folder's package and "+
			"the pages of the folders say more. `go test ./internal/arch -run Listed -update` writes\nthese pages. A test fails if a folder "+
			"imports one that is not on its line.\n\n| folder | what it is | imports, besides internal |\n|---|---|---|\n")
	all := packages(t)
	for _, w := range wings {
		fmt.Fprintf(first, "| [%s](%[1]s.md) | %s | %s |\n", w.name, w.is, strings.Join(w.may, ", "))
		own := page(w.name)
		fmt.Fprintf(own,
			"# Packages of %s\n\nThis page answers: what does each package of the folder do?\n\n%s\n\n| package | what it does |\n|---|---|\n", w.name, w.is)
		for _, p := range all {
			if p.Doc != "" && (p.ImportPath == w.name || strings.HasPrefix(p.ImportPath, w.name+"/")) {
				fmt.Fprintf(own, "| `%s` | %s |\n", p.ImportPath, gist(p))
			}
		}
	}
	for name, want := range pages {
		path := filepath.Join(root, lists, name+".md")
		if *update {
			if err := os.WriteFile(path, []byte(want.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != want.String() {
			t.Errorf("%s/%s.md is not what the comments of the packages result in: run `go test ./internal/arch -run Listed -update`; %v", lists, name, err)
		}
	}
}

// gist returns the first sentence of a package's comment, up to a colon, without the name of the package.
func gist(p pkg) string {
	text, _, _ := strings.Cut(strings.TrimSuffix(p.Doc, "."), ": ")
	text = strings.TrimPrefix(strings.TrimPrefix(text, "Package "+p.Name+" "), "Command ")
	return strings.ReplaceAll(text, "|", "\\|")
}
