// Package hoststore reads objects that another daemon has fetched: the stores and the cache of contents in the state
// directory of a host, which is mounted into a container or a virtual machine, usually read-only.
//
// Terms. The host is the daemon that owns the directory. A Host is that directory, and a Store contains the objects of
// one remote in it. The host may extend, join, evict and remove files at any time while they are read. A file that was
// opened can be read to its end. Everything that cannot be read counts as missing, so that the caller requests it from
// the remote.
//
// The package never writes below the directory and takes no lock there. The host is another trust domain, so every
// object is hashed before it is returned. Only two kinds of information are used without verification, as if a remote
// had sent them: sizes of missing blobs, and the refs of a history. No program is run on the directory, because a git
// directory can name programs.
//
// A nil Store has no objects. Lock order: Host.mu and Store.mu are never held together.
package hoststore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/cache"
	"github.com/artifactfs/artifactfs/fetch/bare"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
)

// retryAfter is the time after which the package tries again to open a part of the directory that could not be opened.
// The host may create a store later than its guest starts.
const retryAfter = time.Second

// Host is the state directory of a host. The methods may be called from any goroutine.
type Host struct {
	dir string

	mu     sync.Mutex
	blobs  *cache.Shared // nil until it was opened
	tried  time.Time     // when opening blobs was last tried
	failed error         // error of the last attempt to open blobs
	closed bool
}

// Open returns the host whose state directory is dir. Files are opened when they are first needed. The caller must call
// Close.
func Open(dir string) *Host { return &Host{dir: dir} }

// Close closes the cache of contents. The stores must be closed before.
func (h *Host) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	if h.blobs == nil {
		return nil
	}
	return h.blobs.Close()
}

// contents returns the cache of contents; nil if it cannot be read.
func (h *Host) contents() *cache.Shared {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.blobs == nil && !h.closed && time.Since(h.tried) >= retryAfter {
		h.blobs, h.failed = cache.OpenShared(filepath.Join(h.dir, "blobs"))
		h.tried = time.Now()
	}
	return h.blobs
}

// Store returns the store in the directory stores/NAME of the host, which need not exist. The caller must call Close.
func (h *Host) Store(name string) *Store {
	return &Store{host: h, dir: filepath.Join(h.dir, "stores", name)}
}

// Store is the store of one remote on the host, with the host's cache of contents. The methods may be called from any
// goroutine.
type Store struct {
	host *Host
	dir  string // the store's directory

	mu     sync.Mutex
	parts  *parts    // open files of the store; nil until the store was opened
	tried  time.Time // when opening the store was last tried
	failed error     // error of the last attempt; nil if the store does not exist
	closed bool
}

// parts are the open files of a store.
type parts struct {
	format  object.Format
	objects *odb.Store
	sizes   *cache.SharedSizes // nil if the store has no table of sizes
}

// Close closes the files of the store.
func (s *Store) Close() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.parts == nil {
		return
	}
	s.parts.objects.Close() // closing objects that were only read never fails
	if s.parts.sizes != nil {
		s.parts.sizes.Close() // an error is ignored, because the table was only read
	}
}

// open returns the open files of the store; nil if the store does not exist or cannot be read.
func (s *Store) open() *parts {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.parts != nil || s.closed || time.Since(s.tried) < retryAfter {
		return s.parts
	}
	s.tried, s.failed = time.Now(), nil
	f, ok := s.repo().Format()
	if !ok {
		if _, err := os.Stat(s.repo().Objects()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.failed = err
		}
		return nil
	}
	objects, err := odb.OpenPacks(filepath.Join(s.repo().Objects(), "pack"), f)
	if err != nil {
		s.failed = err
		return nil
	}
	s.parts = &parts{format: f, objects: objects}
	// Without the table, sizes come from contents or from the remote.
	if s.parts.sizes, err = cache.OpenSharedSizes(filepath.Join(s.dir, "sizes"), f); err != nil {
		s.failed = err
	}
	return s.parts
}

// repo returns the bare repository of the store, of which only files are read.
func (s *Store) repo() *bare.Repo { return bare.New(bare.Config{Dir: s.dir}) }

// Problem returns the reason why a part of the directory cannot be read, such as missing access rights. It returns nil
// if the directory can be read, even if one part of it does not exist. If neither part exists, the directory is
// probably the wrong one, and Problem returns an error.
func (s *Store) Problem() error {
	if s == nil {
		return nil
	}
	s.open()
	s.host.contents()
	s.mu.Lock()
	err := s.failed
	s.mu.Unlock()
	if err == nil {
		s.host.mu.Lock()
		err = s.host.failed
		s.host.mu.Unlock()
	}
	if err == nil && isMissing(filepath.Join(s.host.dir, "stores")) && isMissing(filepath.Join(s.host.dir, "blobs")) {
		err = errors.New("directory contains neither stores nor blobs")
	}
	if err != nil {
		return fmt.Errorf("read the host's directory %s: %w", s.host.dir, err)
	}
	return nil
}

// isMissing reports whether path does not exist.
func isMissing(path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// Content returns the contents of a blob from the host's cache, and false if the cache does not have contents with this
// hash. The caller must release them.
func (s *Store) Content(id object.ID) (*cache.Content, bool) {
	if s == nil {
		return nil, false
	}
	if blobs := s.host.contents(); blobs != nil {
		return blobs.Get(id)
	}
	return nil, false
}

// Cached reports whether the host's cache has the contents of a blob, which may still prove damaged when they are read.
func (s *Store) Cached(id object.ID) bool {
	if s == nil {
		return false
	}
	blobs := s.host.contents()
	if blobs == nil {
		return false
	}
	_, ok := blobs.Size(id)
	return ok
}

// ContentSize returns the size in bytes of a blob whose contents the host has, in its cache or in a pack.
func (s *Store) ContentSize(id object.ID) (int64, bool) {
	if s == nil {
		return 0, false
	}
	if blobs := s.host.contents(); blobs != nil {
		if n, ok := blobs.Size(id); ok {
			return n, true
		}
	}
	if p := s.open(); p != nil {
		if t, n, err := p.objects.Size(id); err == nil && t == object.Blob {
			return n, true
		}
	}
	return 0, false
}

// Size returns the size in bytes of a blob, whose contents the host may lack.
func (s *Store) Size(id object.ID) (int64, bool) {
	if p := s.open(); p != nil && p.sizes != nil {
		if n, ok := p.sizes.Get(id); ok {
			return n, true
		}
	}
	return s.ContentSize(id)
}

// Get returns the type and the verified contents of an object in the packs of the host. If the contents are larger than
// limit bytes, the error is odb.ErrTooLarge.
func (s *Store) Get(id object.ID, limit int64) (object.Type, []byte, error) {
	p := s.open()
	if p == nil {
		return 0, nil, odb.ErrNotFound
	}
	return p.objects.Get(id, limit)
}

// Source returns the packs of the host; nil if the host has no store of the remote.
func (s *Store) Source() odb.Source {
	if p := s.open(); p != nil {
		return p.objects
	}
	return nil
}
