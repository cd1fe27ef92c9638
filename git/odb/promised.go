package odb

import (
	"errors"
	"io/fs"
	"os"

	"github.com/artifactfs/artifactfs/git/object"
)

// Promised reports whether a pack that has the mark of a promisor remote contains the object. The remote can then
// supply the object again.
func (s *Store) Promised(id object.ID) bool {
	found, gone := s.promised(id)
	if !found && gone && s.Refresh() == nil {
		found, _ = s.promised(id)
	}
	return found
}

// promised searches the packs of the current view. The result gone is true if one of the packs could not be opened
// because another process has removed it.
func (s *Store) promised(id object.ID) (found, gone bool) {
	v := s.acquire()
	defer s.release(v)
	for _, from := range v.packs {
		p, ok := from.(*pack)
		if !ok {
			continue
		}
		if err := p.open(); err != nil {
			gone = gone || errors.Is(err, fs.ErrNotExist)
			continue
		}
		if _, ok := p.find(id); !ok {
			continue
		}
		// Look up the mark at each call, because git may create or remove the mark while the pack is open.
		if _, err := os.Lstat(p.path + ".promisor"); err == nil {
			return true, gone
		}
	}
	return false, gone
}
