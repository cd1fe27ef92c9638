package writeback

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/packedrefs"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
)

// carried are the session's refs that the git directory had at the last pass. A ref on the list that is missing from the
// git directory was removed by the user; a ref of the Repo that never was on the list may have another origin.
//
// They are stored in a file of the Repo, in the format of packed-refs.
type carried map[string]object.ID

// carriedFile is the name of that file in the Repo's directory.
const carriedFile = "artifactfs.carried"

// readCarried reads the list. A missing or damaged file is an empty list.
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
		// The list only shows which refs were removed. An empty list removes none.
		return carried{}, nil
	}
	c := carried{}
	for _, r := range refs {
		// Only branches, tags and notes are copied, so any other name is damage.
		if isUsers(r.Name) {
			c[r.Name] = r.ID
		}
	}
	return c, nil
}

// write stores the list, unless it has the same names as before, the stored list.
func (c carried) write(repo *session.Repo, before carried) error {
	if len(c) == len(before) {
		same := true
		for name := range c {
			same = same && !before[name].IsZero()
		}
		if same {
			return nil
		}
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
