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

// carried are the refs that the git directory had when it was looked at last, as far as they are the session's. One of
// them that is there no longer was removed by the user; one that was never there may have come from elsewhere.
//
// They are kept in a file of the Repo, in the format of packed-refs: where that is lost, so are they.
type carried map[string]object.ID

const carriedFile = "artifactfs.carried"

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
		// It tells no more than which refs were removed. Without it none was.
		return carried{}, nil
	}
	c := carried{}
	for _, r := range refs {
		if isUsers(r.Name) {
			c[r.Name] = r.ID
		}
	}
	return c, nil
}

// write keeps the list, if it names others than the one before, which is there.
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
