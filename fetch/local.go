package fetch

import (
	"context"
	"os"
	"path/filepath"
	"sync"

	"github.com/artifactfs/artifactfs/git/guard"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/odb/namedset"
)

// Local is the object directory of one mount's git directory. It contains commits, trees and blobs that were created
// there, or that git fetched there without the Store. While the Local is open, the Store reads these objects for all of
// its mounts. These objects do not become a part of the Store: the Store's history, and the packs that the Store
// provides to git, do not include them.
type Local struct {
	store *Store
	dir   string // path of the git directory's `objects` directory

	mu     sync.Mutex
	closed bool
	// packs and loose objects of the directory dir; nil until dir contains a directory of packs
	own *odb.Dir
	// supplies objects of the session that the store's remote lacks; nil if the mount has no session remote
	sessionRemote SessionRemote
	expected      map[object.ID]bool // blobs that are requested from sessionRemote first
}

// OpenLocal adds the `objects` directory dir to the directories in which the Store searches for objects, until the
// Local is closed. dir need not exist yet.
func (s *Store) OpenLocal(dir string) *Local {
	l := &Local{store: s, dir: dir}
	s.storage.attach(l)
	return l
}

// Objects returns the paths of the object directories of the Local and of its Store.
func (l *Local) Objects() []string { return append([]string{l.dir}, l.store.Objects()...) }

// NamedBlobs returns the set of the blobs that the trees in the packs of the Local and of its Store name. It must not
// be called before a commit was acquired.
func (l *Local) NamedBlobs() namedset.Union {
	return append(namedset.Union{l.store.storage.named.In(l.dir, l.store.Format())}, l.store.NamedBlobs()...)
}

// Close ends the use of the directory by the Store. Reads in progress continue.
func (l *Local) Close() error {
	l.store.storage.detach(l)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.own == nil {
		return nil
	}
	return l.own.Packs.Close()
}

// open returns the objects of the directory. The first call opens the directory. It returns false if the directory
// contains no directory of packs, if the Local is closed, or if the Store does not know its object format yet.
func (l *Local) open() (own *odb.Dir, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.own != nil || l.closed {
		return l.own, l.own != nil
	}
	shared := l.store.storage.packs()
	if _, err := os.Stat(filepath.Join(l.dir, "pack")); err != nil || shared == nil {
		return nil, false
	}
	packs, err := odb.OpenForeign(l.dir, shared.Format(), guard.Exists(filepath.Dir(l.dir)))
	if err != nil {
		return nil, false
	}
	l.own = odb.OpenDir(l.dir, packs)
	return l.own, true
}

// Join joins the packs that git has fetched into the Local, as odb.Store.Join does.
func (l *Local) Join(ctx context.Context, o odb.JoinOptions) (odb.JoinResult, error) {
	if own, ok := l.open(); ok {
		return own.Packs.Join(ctx, o)
	}
	return odb.JoinResult{}, nil
}
