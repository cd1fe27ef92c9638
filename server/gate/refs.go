package gate

import (
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/server/records"
)

// refFile is the file packed-refs of the copy of a replica. It never changes: package replica replaces it by another
// file.
type refFile struct{ packedrefs.File }

// below returns the refs whose names begin with a prefix.
func (f refFile) below(prefix string) (found []records.Ref) {
	for name, id := range f.Below(prefix) {
		found = append(found, records.Ref{Name: name, ID: id})
	}
	return found
}
