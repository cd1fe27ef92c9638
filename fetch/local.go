package fetch

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
	"github.com/artifactfs/artifactfs/prioritize"
)

// objects is where verified objects are read from.
type objects interface {
	Get(id object.ID, limit int64) (object.Type, []byte, error)
	Size(id object.ID) (object.Type, int64, error)
	WriteTo(id object.ID, w io.Writer) error
}

var (
	_ objects = (*odb.Store)(nil)
	_ objects = (*odb.Loose)(nil)
)

// Local is what the git directory of one mount has: commits, trees and blobs that were made there, or that git fetched
// by itself. As long as it is lent, the Store reads them as if they were its own, for all of its mounts. They do not
// count as the Store's, though: what it says of its history, and what it provides git with, goes without them.
type Local struct {
	store *Store
	dir   string // objects

	mu       sync.Mutex
	closed   bool
	packs    *odb.Store // nil until there are any
	loose    *odb.Loose
	second   SessionRemote      // that has what the store's does not have; nil: none
	expected map[object.ID]bool // blobs that it is asked for before the store's remote
}

// Lend makes the Store read the `objects` directory dir too, which need not exist yet, until the Local is closed.
func (s *Store) Lend(dir string) *Local {
	l := &Local{store: s, dir: dir}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lent = append(s.lent, l)
	return l
}

// Objects returns where the objects of the Local and the packs of its store are.
func (l *Local) Objects() []string { return append([]string{l.dir}, l.store.Objects()...) }

// Close takes the objects back. Whoever is reading them goes on.
func (l *Local) Close() error {
	l.store.mu.Lock()
	kept := l.store.lent[:0:0]
	for _, other := range l.store.lent {
		if other != l {
			kept = append(kept, other)
		}
	}
	l.store.lent = kept
	l.store.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.packs == nil {
		return nil
	}
	return l.packs.Close()
}

// open gives what is there to read. The format of objects is that of the store, which may not know it yet; git makes
// the directory of packs first of all.
func (l *Local) open() (packs *odb.Store, loose *odb.Loose, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.packs != nil || l.closed {
		return l.packs, l.loose, l.packs != nil
	}
	l.store.mu.Lock()
	own := l.store.objects
	l.store.mu.Unlock()
	if _, err := os.Stat(filepath.Join(l.dir, "pack")); err != nil || own == nil {
		return nil, nil, false
	}
	p, err := odb.Open(l.dir, own.Format())
	if err != nil {
		return nil, nil, false
	}
	l.packs, l.loose = p, odb.NewLoose(l.dir, own.Format())
	return l.packs, l.loose, true
}

// Join joins packs of promised objects that git has fetched, as odb.Store.Join does.
func (l *Local) Join(ctx context.Context, o odb.JoinOptions) (odb.JoinResult, error) {
	packs, _, ok := l.open()
	if !ok {
		return odb.JoinResult{}, nil
	}
	return packs.Join(ctx, o)
}

// Join joins packs of the store. Who is provided with many more meanwhile waits for it a little.
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

const (
	crowded  = 40 // packs in the store; a join takes about a second, in which a script asks for some twenty objects
	roomTime = 2 * time.Second
	roomLook = 10 * time.Millisecond
)

// awaitRoom waits while packs are being joined and there are too many, so that who asks for one object after the
// other does not leave packs faster than they are joined. It waits for a bounded time only: git looks through many, too.
func (s *Store) awaitRoom(ctx context.Context) {
	for end := time.Now().Add(roomTime); s.joining.Load() > 0 && time.Now().Before(end); {
		files, err := os.ReadDir(filepath.Join(s.GitDir(), "objects", "pack"))
		packs := 0
		for _, f := range files {
			if filepath.Ext(f.Name()) == ".pack" {
				packs++
			}
		}
		if err != nil || packs < crowded {
			return
		}
		select {
		case <-time.After(roomLook):
		case <-ctx.Done():
			return
		}
	}
}

// Busy says whether somebody is waiting for the remote, so that work in the background stays back.
func (s *Store) Busy() bool { return s.blobPipe.busy() }

// What cannot be read from what is lent, for whatever reason, counts as missing there: the remote may have it, too.

// find gives where an object can be read, with its type and its size in bytes.
func (s *Store) find(id object.ID) (from objects, t object.Type, size int64, err error) {
	if t, size, err = s.objects.Size(id); !errors.Is(err, odb.ErrNotFound) {
		return s.objects, t, size, err
	}
	for _, from := range s.locals() {
		if t, size, err := from.Size(id); err == nil {
			return from, t, size, nil
		}
	}
	return nil, 0, 0, err
}

// get gives an object's content, as odb.Store.Get does, from wherever it is on this host.
func (s *Store) get(id object.ID, limit int64) (object.Type, []byte, error) {
	t, content, err := s.objects.Get(id, limit)
	if !errors.Is(err, odb.ErrNotFound) {
		return t, content, err
	}
	for _, from := range s.locals() {
		if t, content, err := from.Get(id, limit); err == nil {
			return t, content, nil
		}
	}
	return 0, nil, err
}

// locals lists what is lent.
func (s *Store) locals() []objects {
	s.mu.Lock()
	lent := s.lent
	s.mu.Unlock()
	var all []objects
	for _, l := range lent {
		if packs, loose, ok := l.open(); ok {
			all = append(all, packs, loose)
		}
	}
	return all
}

// lentSize is the size of a blob that only a mount's git directory has.
func (s *Store) lentSize(id object.ID) (int64, bool) {
	for _, from := range s.locals() {
		if t, n, err := from.Size(id); err == nil && t == object.Blob {
			return n, true
		}
	}
	return 0, false
}

// withoutLocal gives the wants that the remote has to be asked for. Others land at once.
func (s *Store) withoutLocal(wants []prioritize.Want, arrived func(object.ID, []byte)) []object.ID {
	ids := make([]object.ID, 0, len(wants))
	locals := s.locals()
	for _, w := range wants {
		if lentBy(locals, w.ID) {
			if ok, err := s.materialize(w.ID); ok && err == nil {
				arrived(w.ID, nil)
				continue
			}
		}
		ids = append(ids, w.ID)
	}
	return ids
}

func lentBy(locals []objects, id object.ID) bool {
	for _, from := range locals {
		if t, _, err := from.Size(id); err == nil && t == object.Blob {
			return true
		}
	}
	return false
}
