package bare

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/object"
)

// boundaryFile returns the path of the file that lists the commits whose parents are not in the repository. Before history is
// fetched, git's `shallow` file has the same contents, so that git's own commands work in the repository. After history was
// fetched, `shallow` is removed for good, because each later fetch sends the commits on this host as haves and so also fetches the
// commits between them and the new ones.
func (r *Repo) boundaryFile() string { return filepath.Join(r.dir, "boundary") }

// shallowFile returns the path of the file in which git looks for commits without parents.
func (r *Repo) shallowFile() string { return filepath.Join(r.Path(), "shallow") }

// Boundary returns the commits whose parents are not in the repository. git calls such commits shallow.
func (r *Repo) Boundary() []object.ID { return readIDs(r.boundaryFile()) }

// readIDs returns the ids in a file with one id per line. Lines that are not ids are skipped, and a
// missing file has none.
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

// idLines returns ids with one per line, as readIDs and git's shallow file expect.
func idLines(ids []object.ID) []byte {
	var text strings.Builder
	for _, id := range ids {
		text.WriteString(id.String())
		text.WriteByte('\n')
	}
	return []byte(text.String())
}

// AddBoundary adds to the boundary the commits whose parents a fetch has left out. It leaves out those for which hasParents returns
// true, because all of their parents are in the repository.
func (r *Repo) AddBoundary(ids []object.ID, hasParents func(object.ID) bool) error {
	// Several processes may acquire commits of the same remote, so a lock makes reading, changing
	// and writing the file one step.
	unlock, err := disk.Lock(r.boundaryFile() + ".lock")
	if err != nil {
		return fmt.Errorf("record boundary: %w", err)
	}
	defer unlock()
	ids = append(r.Boundary(), ids...)
	slices.SortFunc(ids, object.ID.Compare)
	ids = slices.DeleteFunc(slices.Compact(ids), hasParents)
	// The boundary is written before git's shallow file. If the process crashes between the two, the next
	// change writes both.
	if err := disk.WriteFile(r.boundaryFile(), idLines(ids), 0o600); err != nil {
		return fmt.Errorf("record boundary: %w", err)
	}
	if r.Complete() || len(ids) == 0 {
		err = os.Remove(r.shallowFile())
	} else {
		err = disk.WriteFile(r.shallowFile(), idLines(ids), 0o644)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("record boundary: %w", err)
	}
	return nil
}

// TrimBoundary removes from the boundary the commits for which hasParents returns true, because all of their parents have been
// fetched since.
func (r *Repo) TrimBoundary(hasParents func(object.ID) bool) error {
	return r.AddBoundary(nil, hasParents)
}

// AddShallow adds the commits that git has recorded as shallow to the boundary, as AddBoundary does.
func (r *Repo) AddShallow(hasParents func(object.ID) bool) error {
	return r.AddBoundary(readIDs(r.shallowFile()), hasParents)
}
