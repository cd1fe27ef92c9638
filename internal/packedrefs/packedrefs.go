// Package packedrefs encodes and decodes git's packed-refs file. By replacing this file, any number of refs can be changed in
// one atomic step. The format is described in git's refs/packed-backend.c, in gitrepository-layout(5) and in
// git-pack-refs(1).
package packedrefs

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/object"
)

// Ref is one ref in the file.
type Ref struct {
	Name   string
	ID     object.ID
	Peeled object.ID // object that an annotated tag finally points to; zero for all other refs
}

// ours is the first line of the files that Encode writes. It is git's header, which promises that every tag is peeled and
// that names are sorted, with one additional trait. Git ignores the unknown trait, and leaves it out when git writes the file
// itself.
const ours = "# pack-refs with: peeled fully-peeled sorted artifactfs \n"

// Ours reports whether the file was last written by Encode, and not by git.
func Ours(text []byte) bool { return bytes.HasPrefix(text, []byte(ours)) }

// gits is the first line of the files that git itself writes.
const gits = "# pack-refs with: peeled fully-peeled sorted \n"

// Encode returns the contents of the file with the given refs, which it sorts by name. before is the contents of the file
// that is replaced. If git wrote that file, the new file gets git's header too, so that Ours remains false.
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

// EncodeUnpeeled returns the contents of a file whose header makes no promise about peeled tags, so that git reads the tags itself.
// It ignores the field Peeled. refs must be sorted by name.
func EncodeUnpeeled(refs []Ref) []byte {
	text := []byte("# pack-refs with: sorted \n")
	for _, r := range refs {
		text = append(text, r.ID.String()...)
		text = append(text, ' ')
		text = append(text, r.Name...)
		text = append(text, '\n')
	}
	return text
}

// Decode returns the refs of a file in the order of the file. It accepts any header and skips empty lines. It returns an
// error for any other line that does not have the expected format. It does not check the names of refs; package refname does.
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
