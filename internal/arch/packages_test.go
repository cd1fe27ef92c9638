package arch

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write "+list)

// list is the document that lists all packages.
const list = "doc/internals/packages.md"

// The list of packages is made of the comments of the packages.
func TestPackagesAreListed(t *testing.T) {
	var page strings.Builder
	fmt.Fprintf(&page, "# Packages\n\nWhich package does what? `go test ./internal/arch -run Listed -update` writes this page from the comments of "+
		"the packages.\nA test fails if a folder imports another one that is not on its line.\n")
	all := packages(t)
	for _, w := range wings {
		fmt.Fprintf(&page, "\n## %s\n%s", w.name, w.is)
		if len(w.may) > 0 {
			fmt.Fprintf(&page, " Imports: %s.", strings.Join(w.may, ", "))
		}
		fmt.Fprint(&page, "\n\n| package | what it does |\n|---|---|\n")
		for _, p := range all {
			if p.Doc != "" && (p.ImportPath == w.name || strings.HasPrefix(p.ImportPath, w.name+"/")) {
				fmt.Fprintf(&page, "| `%s` | %s |\n", p.ImportPath, gist(p))
			}
		}
	}
	path := root + "/" + list
	if *update {
		if err := os.WriteFile(path, []byte(page.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != page.String() {
		t.Errorf("%s is not what the comments of the packages result in: run `go test ./internal/arch -run Listed -update`", list)
	}
}

// gist returns the first sentence of a package's comment, up to a colon, without the name of the package.
func gist(p pkg) string {
	text, _, _ := strings.Cut(strings.TrimSuffix(p.Doc, "."), ": ")
	text = strings.TrimPrefix(strings.TrimPrefix(text, "Package "+p.Name+" "), "Command ")
	return strings.ReplaceAll(text, "|", "\\|")
}
