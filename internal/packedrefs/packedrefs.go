// Package packedrefs encodes and decodes git's packed-refs file, which replaces any number of refs in one atomic step. Its format is
// described in git's refs/packed-backend.c, in gitrepository-layout(5) and in git-pack-refs(1).
package packedrefs

import (
	"bytes"
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

// ours is the first line of what Encode writes: git's header, which promises that every tag is peeled and that names are
// sorted, with a trait that git does not know, passes over, and leaves out when it writes the file itself.
const ours = "# pack-refs with: peeled fully-peeled sorted artifactfs \n"

// Ours reports whether Encode wrote the file, and git has not written it since.
func Ours(text []byte) bool { return bytes.HasPrefix(text, []byte(ours)) }

const gits = "# pack-refs with: peeled fully-peeled sorted \n"

// Encode returns the contents of the file with refs, sorted by name. before is the file that it replaces: if git wrote that, the header
// stays git's, so that Ours remains false.
func Encode(before []byte, refs []Ref) []byte {
	refs = slices.Clone(refs)
	slices.SortFunc(refs, func(a, b Ref) int { return strings.Compare(a.Name, b.Name) })
	var text strings.Builder
	if len(before) > 0 && !Ours(before) {
		text.WriteString(gits)
	} else {
		text.WriteString(ours)
	}
	for _, r := range refs {
		fmt.Fprintf(&text, "%s %s\n", r.ID, r.Name)
		if !r.Peeled.IsZero() {
			fmt.Fprintf(&text, "^%s\n", r.Peeled)
		}
	}
	return []byte(text.String())
}

// Decode returns the refs of a file in its order. It accepts any header, and skips empty lines; other lines that are not of the format
// are errors. It does not check names: see package refname.
func Decode(text []byte) ([]Ref, error) {
	var refs []Ref
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "#") || line == "" {
			continue
		}
		if peeled, ok := strings.CutPrefix(line, "^"); ok && len(refs) > 0 {
			id, err := object.ParseID(peeled)
			if err != nil {
				return nil, fmt.Errorf("read packed-refs: %w", err)
			}
			refs[len(refs)-1].Peeled = id
			continue
		}
		text, name, ok := strings.Cut(line, " ")
		id, err := object.ParseID(text)
		if err != nil || !ok || name == "" {
			return nil, fmt.Errorf("read packed-refs: invalid line %.80q", line)
		}
		refs = append(refs, Ref{Name: name, ID: id})
	}
	return refs, nil
}
