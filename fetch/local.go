package fetch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
)

// Local is the object directory of one mount's git directory: commits, trees and blobs that were
// created there, or that git fetched on its own. While it is open, the Store reads them for all of
// its mounts. They are not in the Store, though: its history, and the packs that it provides to
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
	s.mu.Lock()
	defer s.mu.Unlock()
	s.locals = append(s.locals, l)
	return l
}

// Objects returns the object directories of the Local and of its store.
func (l *Local) Objects() []string { return append([]string{l.dir}, l.store.Objects()...) }

// Close detaches the directory from the Store. Reads in progress continue.
func (l *Local) Close() error {
	l.store.mu.Lock()
	// The slice is copied, since readers use it without the lock.
	kept := l.store.locals[:0:0]
	for _, other := range l.store.locals {
		if other != l {
			kept = append(kept, other)
		}
	}
	l.store.locals = kept
	l.store.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.own == nil {
		return nil
	}
	return l.own.Packs.Close()
}

// open returns the directory, if it exists. The store may not know its object format yet; git
// creates the directory of packs first of all.
func (l *Local) open() (own *odb.Dir, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.own != nil || l.closed {
		return l.own, l.own != nil
	}
	l.store.mu.Lock()
	shared := l.store.objects
	l.store.mu.Unlock()
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

// Join joins packs of the store. Meanwhile Provide waits a little if there are too many packs.
func (s *Store) Join(ctx context.Context, o odb.JoinOptions) (odb.JoinResult, error) {
	s.mu.Lock()
	own := s.objects
	s.mu.Unlock()
	if own == nil {
		return odb.JoinResult{}, nil
	}
	s.joining.Add(1)
	defer s.joining.Add(-1)
	return own.Join(ctx, o)
}

// Bounds of awaitRoom: it waits while the store has at least manyPacks packs, for at most roomTime,
// and looks every roomLook.
const (
	manyPacks = 40 // packs in the store; a join takes about a second, in which a script wants some twenty objects
	roomTime  = 2 * time.Second
	roomLook  = 10 * time.Millisecond
)

// awaitRoom waits while packs are being joined and there are too many, so that a script that wants
// one object after the other does not create packs faster than they are joined. It waits for
// roomTime at most: git works with many packs too.
func (s *Store) awaitRoom(ctx context.Context) {
	for end := time.Now().Add(roomTime); s.joining.Load() > 0 && time.Now().Before(end); {
		files, err := os.ReadDir(filepath.Join(s.GitDir(), "objects", "pack"))
		packs := 0
		for _, f := range files {
			if filepath.Ext(f.Name()) == ".pack" {
				packs++
			}
		}
		if err != nil || packs < manyPacks {
			return
		}
		select {
		case <-time.After(roomLook):
		case <-ctx.Done():
			return
		}
	}
}

// Busy reports whether readers wait for the remote, so that work in the background should hold
// back.
func (s *Store) Busy() bool { return s.blobPipe.Busy() }

// find returns a source of an object, with its type and its size in bytes. An object that cannot be
// read from a Local counts as missing in it, since the remote may have the object too.
func (s *Store) find(id object.ID) (from odb.Source, t object.Type, size int64, err error) {
	if t, size, err = s.objects.Size(id); !errors.Is(err, odb.ErrNotFound) {
		return s.objects, t, size, err
	}
	for _, from := range s.localSources() {
		if t, size, err := from.Size(id); err == nil {
			return from, t, size, nil
		}
	}
	return nil, 0, 0, err
}

// get returns an object's contents, as odb.Store.Get does, from any source on this host.
func (s *Store) get(id object.ID, limit int64) (object.Type, []byte, error) {
	t, content, err := s.objects.Get(id, limit)
	if !errors.Is(err, odb.ErrNotFound) {
		return t, content, err
	}
	for _, from := range s.localSources() {
		if t, content, err := from.Get(id, limit); err == nil {
			return t, content, nil
		}
	}
	return 0, nil, err
}

// localSources returns the sources of all open Locals.
func (s *Store) localSources() []odb.Source {
	s.mu.Lock()
	lent := s.locals
	s.mu.Unlock()
	var all []odb.Source
	for _, l := range lent {
		if own, ok := l.open(); ok {
			all = append(all, own)
		}
	}
	return all
}

// localSize returns the size, in bytes, of a blob that only a Local has.
func (s *Store) localSize(id object.ID) (int64, bool) {
	for _, from := range s.localSources() {
		if t, n, err := from.Size(id); err == nil && t == object.Blob {
			return n, true
		}
	}
	return 0, false
}
