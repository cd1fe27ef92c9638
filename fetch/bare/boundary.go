package bare

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// boundaryFile returns the path of the file that lists the commits whose parents are not in the repository. Before
// history is fetched, git's file `shallow` has the same contents, so that git's own commands work in the repository.
// After the history was fetched, `shallow` is removed and not written again, because each later fetch sends the commits
// on this host as haves, and therefore fetches all commits between these commits and the new commits.
func (r *Repo) boundaryFile() string { return filepath.Join(r.dir, "boundary") }

// shallowFile returns the path of git's file `shallow`, which lists the commits that git treats as commits without
// parents.
func (r *Repo) shallowFile() string { return filepath.Join(r.Path(), "shallow") }

// Boundary returns the commits whose parents are not in the repository. git calls such commits shallow.
func (r *Repo) Boundary() []object.ID { return readIDs(r.boundaryFile()) }

// readIDs returns the ids in a file that contains one id per line. It skips lines that are not ids. If the file cannot
// be read, it returns no ids.
func readIDs(path string) []object.ID {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	var ids []object.ID
	for _, line := range strings.Fields(string(content)) {
		if id, err := object.ParseID(line); err == nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// AddBoundary adds ids to the boundary file. ids are commits that a fetch has delivered without their parents.
// AddBoundary also removes the commits for which the function hasParents returns true, because all of their parents are
// in the repository.
func (r *Repo) AddBoundary(ids []object.ID, hasParents func(object.ID) bool) error {
	// Several processes may fetch commits of the same remote at the same time. The lock lets one process at a time read,
	// change and write the file.
	unlock, err := disk.Lock(r.boundaryFile() + ".lock")
	if err != nil {
		return fmt.Errorf("record boundary: %w", err)
	}
	defer unlock()
	ids = append(r.Boundary(), ids...)
	slices.SortFunc(ids, object.ID.Compare)
	ids = slices.DeleteFunc(slices.Compact(ids), hasParents)
	// The boundary file is written before git's file `shallow`. If the process crashes before it has written `shallow`,
	// the next change writes both files again.
	if err := disk.WriteFile(r.boundaryFile(), []byte(object.Lines(ids)), 0o600); err != nil {
		return fmt.Errorf("record boundary: %w", err)
	}
	if r.Complete() || len(ids) == 0 {
		err = os.Remove(r.shallowFile())
	} else {
		err = disk.WriteFile(r.shallowFile(), []byte(object.Lines(ids)), 0o644)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("record boundary: %w", err)
	}
	return nil
}

// TrimBoundary removes from the boundary file the commits for which the function hasParents returns true, because their
// parents have been fetched in the meantime.
func (r *Repo) TrimBoundary(hasParents func(object.ID) bool) error {
	return r.AddBoundary(nil, hasParents)
}

// AddShallow adds the commits in git's file `shallow` to the boundary file. It is called after a fetch by stock git.
// hasParents has the same meaning as in AddBoundary.
func (r *Repo) AddShallow(hasParents func(object.ID) bool) error {
	return r.AddBoundary(readIDs(r.shallowFile()), hasParents)
}
