package gate

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/artifactfs/artifactfs/server/records"
)

// refFile is the contents of a file packed-refs: a line "ID NAME" for each ref. It is searched as a text, because to parse all lines of
// a repository with many refs takes longer.
type refFile []byte

func readRefs(dir string) (refFile, error) {
	text, err := os.ReadFile(filepath.Join(dir, "packed-refs"))
	if err != nil {
		return nil, fmt.Errorf("read refs: %w", err)
	}
	return text, nil
}

// id returns the value of a ref, "" if the ref does not exist.
func (f refFile) id(name string) string {
	found := f.search(name+"\n", 1)
	if len(found) == 0 {
		return ""
	}
	return found[0].ID
}

// below returns the refs whose names begin with a prefix, in the order of the file.
func (f refFile) below(prefix string) []records.Ref { return f.search(prefix, -1) }

// search returns the first refs, at most limit or all if it is negative, whose lines have the text start after the ID. Names of refs
// contain no spaces, so a space is found before a name only.
func (f refFile) search(start string, limit int) (found []records.Ref) {
	pattern := []byte(" " + start)
	for rest := []byte(f); len(found) != limit; {
		i := bytes.Index(rest, pattern)
		if i < 0 {
			break
		}
		line := rest[bytes.LastIndexByte(rest[:i], '\n')+1:]
		line, rest, _ = bytes.Cut(line, []byte("\n"))
		if id, name, ok := bytes.Cut(line, []byte(" ")); ok && id[0] != '#' {
			found = append(found, records.Ref{Name: string(name), ID: string(id)})
		}
	}
	return found
}
