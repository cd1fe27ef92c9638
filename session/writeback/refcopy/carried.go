package refcopy

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/packedrefs"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/session"
)

// carried lists the refs of the user that the git directory had at the last pass of a Copier, and that were copied. If
// a ref of the list is missing in the git directory, the user has removed it. A ref of the Repo that is not on the list
// was not copied from the git directory, so that it is not removed if it is missing there.
//
// The list is stored in a file in the directory of the Repo, in the format of packed-refs.
type carried map[string]object.ID

// carriedFile is the name of the file with the list of copied refs.
const carriedFile = "artifactfs.carried"

// readCarried reads the list of copied refs. It returns an empty list if the file is missing or damaged.
func readCarried(repo *session.Repo) (carried, error) {
	text, err := os.ReadFile(filepath.Join(repo.Dir(), carriedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return carried{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read list of copied refs: %w", err)
	}
	refs, err := packedrefs.Decode(text)
	if err != nil {
		// The list is used only to recognize removed refs. With an empty list, no ref counts as removed.
		return carried{}, nil
	}
	c := carried{}
	for _, r := range refs {
		// Only branches, tags and notes are copied, so any other name is damage.
		if session.IsUsers(r.Name) {
			c[r.Name] = r.ID
		}
	}
	return c, nil
}

// write writes the list to its file, unless before, the list in the file, has the same names.
func (c carried) write(repo *session.Repo, before carried) error {
	if maps.EqualFunc(c, before, func(_, old object.ID) bool { return !old.IsZero() }) {
		return nil
	}
	var refs []packedrefs.Ref
	for name, id := range c {
		refs = append(refs, packedrefs.Ref{Name: name, ID: id})
	}
	if err := disk.WriteFile(filepath.Join(repo.Dir(), carriedFile), packedrefs.Encode(nil, refs), 0o644); err != nil {
		return fmt.Errorf("write list of copied refs: %w", err)
	}
	return nil
}
