package fetch

import (
	"context"
	"os"
	"path/filepath"
	"sync"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
)

// Local is the object directory of one mount's git directory: commits, trees and blobs that were
// created there, or that git fetched there without the Store. While the Local is open, the Store reads them for all of
// its mounts. They do not become a part of the Store: the Store's history, and the packs that it provides to
// git, do not include them.
type Local struct {
	store *Store
	dir   string // the `objects` directory

	mu            sync.Mutex
	closed        bool
	own           *odb.Dir           // nil until there is a directory of packs
	sessionRemote SessionRemote      // has what the store's remote does not have; nil: none
	expected      map[object.ID]bool // blobs that are requested from sessionRemote first
}

// OpenLocal makes the Store also read the `objects` directory dir, until the Local is closed. dir need not exist yet.
func (s *Store) OpenLocal(dir string) *Local {
	l := &Local{store: s, dir: dir}
	s.storage.attach(l)
	return l
}

// Objects returns the object directories of the Local and of its store.
func (l *Local) Objects() []string { return append([]string{l.dir}, l.store.Objects()...) }

// Close detaches the directory from the Store. Reads in progress continue.
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

// open opens the directory of packs unless it is open, and returns it. It returns false if the directory does not exist, if the Local
// is closed, or if the Store does not know its object format yet.
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
	packs, err := odb.Open(l.dir, shared.Format())
	if err != nil {
		return nil, false
	}
	l.own = odb.OpenDir(l.dir, packs)
	return l.own, true
}

// Join joins packs that git has fetched, as odb.Store.Join does.
func (l *Local) Join(ctx context.Context, o odb.JoinOptions) (odb.JoinResult, error) {
	own, ok := l.open()
	if !ok {
		return odb.JoinResult{}, nil
	}
	return own.Packs.Join(ctx, o)
}
