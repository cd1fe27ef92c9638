package session

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
)

// place is a git objects directory that a Repo reads: its own one, that of the store, or that of the mount's git
// directory. The directory need not exist yet. The packs are opened when they are needed for the first time. A place is
// safe for concurrent use.
type place struct {
	dir    string // path of the objects directory
	format object.Format
	loose  *odb.Loose // loose objects in the directory

	mu     sync.Mutex // protects store and closed
	store  *odb.Store // packs of the directory; nil before they are opened
	closed bool       // close was called
}

// newPlace returns a place for the git objects directory dir, which need not exist.
func newPlace(dir string, f object.Format) *place {
	return &place{dir: dir, format: f, loose: odb.NewLoose(dir, f)}
}

// packs opens the packs of the place, if they are not open, and returns them. It returns odb.ErrNotFound if there is no
// directory for packs, and fs.ErrClosed after close.
func (p *place) packs() (*odb.Store, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, fs.ErrClosed
	}
	if p.store != nil {
		return p.store, nil
	}
	if _, err := os.Stat(filepath.Join(p.dir, "pack")); err != nil {
		return nil, fmt.Errorf("%w: %w", odb.ErrNotFound, err)
	}
	s, err := odb.Open(p.dir, p.format)
	p.store = s
	return s, err
}

// close closes the packs. Later calls of packs return fs.ErrClosed.
func (p *place) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.store == nil {
		return nil
	}
	return p.store.Close()
}

// holds reports whether the place has the object id, and whether it is a loose object.
func (p *place) holds(id object.ID) (held, loose bool) {
	if s, err := p.packs(); err == nil && s.Has(id) {
		return true, false
	}
	name := id.String()
	if _, err := os.Lstat(filepath.Join(p.dir, name[:2], name[2:])); err == nil {
		return true, true
	}
	// git may have packed the object after the packs were searched
	if s, err := p.packs(); err == nil && s.Refresh() == nil && s.Has(id) {
		return true, false
	}
	return false, false
}
