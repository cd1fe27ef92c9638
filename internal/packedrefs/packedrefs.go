// Package packedrefs writes git's packed-refs file, which stands for any number of refs in one atomic step.
package packedrefs

import (
	"fmt"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/object"
)

// Ref is one line of the file.
type Ref struct {
	Name   string
	ID     object.ID
	Peeled object.ID // what an annotated tag points to in the end; zero for all others
}

// Encode gives the content of the file (format: gitrepository-layout and git-pack-refs; the header promises that
// every tag is peeled and that names are sorted).
func Encode(refs []Ref) []byte {
	refs = slices.Clone(refs)
	slices.SortFunc(refs, func(a, b Ref) int { return strings.Compare(a.Name, b.Name) })
	var text strings.Builder
	text.WriteString("# pack-refs with: peeled fully-peeled sorted \n")
	for _, r := range refs {
		fmt.Fprintf(&text, "%s %s\n", r.ID, r.Name)
		if !r.Peeled.IsZero() {
			fmt.Fprintf(&text, "^%s\n", r.Peeled)
		}
	}
	return []byte(text.String())
}
