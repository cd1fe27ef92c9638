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

// carried lists the refs of the session that the git directory had at the last pass of a Copier. If a ref on the list is missing
// from the git directory, the user has removed the ref. If a ref of the Repo was never on the list, it was not copied from the git
// directory, so the user need not have removed a ref that is missing there.
//
// The list is stored in a file of the Repo, in the format of packed-refs.
type carried map[string]object.ID

// carriedFile is the name of the file with the list, in the Repo's directory.
const carriedFile = "artifactfs.carried"

// readCarried reads the list. It returns an empty list if the file is missing or damaged.
func readCarried(repo *session.Repo) (carried, error) {
	text, err := os.ReadFile(filepath.Join(repo.Dir(), carriedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return carried{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read pushed refs: %w", err)
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

// write stores the list. The parameter before is the stored list: if it has the same names, write does nothing.
func (c carried) write(repo *session.Repo, before carried) error {
	if maps.EqualFunc(c, before, func(_, old object.ID) bool { return !old.IsZero() }) {
		return nil
	}
	var refs []packedrefs.Ref
	for name, id := range c {
		refs = append(refs, packedrefs.Ref{Name: name, ID: id})
	}
	if err := disk.WriteFile(filepath.Join(repo.Dir(), carriedFile), packedrefs.Encode(nil, refs), 0o644); err != nil {
		return fmt.Errorf("write pushed refs: %w", err)
	}
	return nil
}
