// Package packedrefs encodes and decodes git's packed-refs file. By replacing this file, any number of refs can be
// changed in one atomic step. The format is described in git's refs/packed-backend.c, in gitrepository-layout(5) and in
// git-pack-refs(1).
package packedrefs

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
)

// Ref is one ref in the file.
type Ref struct {
	Name   string
	ID     object.ID
	Peeled object.ID // object that an annotated tag finally points to; zero for all other refs
}

// ours is the first line of the files that Encode writes. It is git's header, which promises that every tag is peeled
// and that names are sorted, with one additional trait. Git ignores the unknown trait, and leaves it out when git
// writes the file itself.
const ours = "# pack-refs with: peeled fully-peeled sorted artifactfs \n"

// Ours reports whether the file was last written by Encode, and not by git.
func Ours(text []byte) bool { return bytes.HasPrefix(text, []byte(ours)) }

// gits is the first line of the files that git itself writes.
const gits = "# pack-refs with: peeled fully-peeled sorted \n"

// Encode returns the contents of the file with the given refs, which it sorts by name. The parameter before is the
// contents of the file that will be replaced. If git wrote that file, the new file also gets git's header, so that Ours
// remains false.
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

// These are the headers of files in which refs outside of refs/tags/ are not peeled.
const (
	unpeeled   = "# pack-refs with: sorted \n"
	tagsPeeled = "# pack-refs with: peeled sorted \n"
)

// EncodeTags returns the contents of a file with refs that are sorted by name. If peeled is true, the field Peeled must
// be correct for all refs below refs/tags/; for other refs, git reads the object to find out whether it is a tag. If
// peeled is false, git reads the objects of all refs.
func EncodeTags(refs []Ref, peeled bool) []byte {
	text := []byte(unpeeled)
	if peeled {
		text = []byte(tagsPeeled)
	}
	for _, r := range refs {
		text = appendRef(text, r, peeled)
	}
	return text
}

func appendRef(text []byte, r Ref, peeled bool) []byte {
	text = append(text, r.ID.String()...)
	text = append(text, ' ')
	text = append(text, r.Name...)
	text = append(text, '\n')
	if peeled && !r.Peeled.IsZero() && strings.HasPrefix(r.Name, "refs/tags/") {
		text = append(text, '^')
		text = append(text, r.Peeled.String()...)
		text = append(text, '\n')
	}
	return text
}

// TagsPeeled reports whether EncodeTags wrote the file with peeled set.
func TagsPeeled(text []byte) bool { return bytes.HasPrefix(text, []byte(tagsPeeled)) }

// Decode returns the refs of a file in the order of the file. It accepts any header and skips empty lines. It returns
// an error for any other line that does not have the expected format. It does not check the names of refs; package
// refname does.
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
