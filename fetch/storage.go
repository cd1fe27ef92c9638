package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/artifactfs/artifactfs/cache"
	"github.com/artifactfs/artifactfs/fetch/bare"
	"github.com/artifactfs/artifactfs/fetch/hoststore"
	"github.com/artifactfs/artifactfs/fetch/notices"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/odb/namedset"
)

// storage finds the objects of a store that are on this host: in the packs of the store's repository, in the object
// directories of mounts (type Local), in the cache of contents on disk, in memory, and in the directory of another
// daemon (field host). It also has the table of sizes, which includes the sizes of missing blobs. A storage sends no
// requests. mu protects the fields below mu. The fields objects and sizes do not change after openObjects has set them,
// and are then read without mu.
type storage struct {
	dir     string // the store's directory
	repo    *bare.Repo
	blobs   *cache.Blobs
	memory  *cache.Memory
	notices *notices.List
	host    *hoststore.Store
	named   namedset.Dirs // the blobs that trees name, in the store and in the object directories of mounts
	joining atomic.Int32  // number of joins of packs in progress

	mu      sync.Mutex
	objects *odb.Store // nil until the object format is known
	sizes   *cache.Sizes
	// open Locals; attach and detach replace the slice by a new one, so readers can use the old slice without mu
	locals []*Local
}

// attach adds the directory of l to the directories in which reads search for objects, until detach is called.
func (s *storage) attach(l *Local) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.locals = append(s.locals, l)
}

// detach removes the directory of l from the directories in which reads search for objects. Reads in progress continue.
func (s *storage) detach(l *Local) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// The remaining Locals are copied to a new slice, because readers use the old slice without the lock.
	s.locals = slices.DeleteFunc(slices.Clone(s.locals), func(other *Local) bool { return other == l })
}

// packs returns the packs of the store's repository. It returns nil until the object format is known.
func (s *storage) packs() *odb.Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects
}

// close closes the packs and the table of sizes.
func (s *storage) close() error {
	if s.objects == nil {
		return nil
	}
	return errors.Join(s.named.Close(), s.sizes.Close(), s.objects.Close())
}

// prepare creates the store's repository if it does not exist, and opens its packs. f is the object format of the
// remote. partial is true if the remote can supply missing objects on demand.
func (s *storage) prepare(ctx context.Context, f object.Format, partial bool) error {
	if err := s.repo.Prepare(ctx, f, partial); err != nil {
		return err
	}
	return s.openObjects(f)
}

// openObjects opens the packs and the table of sizes, whose file formats depend on the object format. Later calls do
// nothing.
func (s *storage) openObjects(f object.Format) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects != nil {
		return nil
	}
	objects, err := odb.Open(s.repo.Objects(), f)
	if err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	sizes, err := cache.OpenSizes(filepath.Join(s.dir, "sizes"), f)
	if err != nil {
		objects.Close()
		return fmt.Errorf("open store: %w", err)
	}
	s.objects, s.sizes = objects, sizes
	return nil
}

// content returns a blob's contents from the cache on disk or from memory. It returns false if the contents are in
// neither of them.
func (s *storage) content(id object.ID) (Content, bool) {
	if c, ok := s.blobs.Get(id); ok {
		return c, true
	}
	if data, ok := s.memory.Content(id); ok {
		return inMemory(data), true
	}
	return nil, false
}

// stored returns a blob's contents as content does, and also looks for them in the host's cache.
func (s *storage) stored(id object.ID) (Content, bool) {
	if c, ok := s.content(id); ok {
		return c, true
	}
	if c, ok := s.host.Content(id); ok {
		return c, true
	}
	return nil, false
}

// cached reports whether the contents of a blob can be read at once, from one of the caches on disk or from memory. It
// uses the index of the caches and reads no file.
func (s *storage) cached(id object.ID) bool {
	if _, ok := s.blobs.Size(id); ok {
		return true
	}
	_, ok := s.memory.Content(id)
	return ok || s.host.Cached(id)
}

// contentSize returns the size, in bytes, of a blob whose contents are in the cache on disk, in a pack of the store or
// on the host.
func (s *storage) contentSize(id object.ID) (int64, bool) {
	if n, ok := s.blobs.Size(id); ok {
		return n, true
	}
	// Has is called first, because unlike Size it does not read the directory of packs again for each missing blob.
	if s.objects.Has(id) {
		if t, n, err := s.objects.Size(id); err == nil && t == object.Blob {
			return n, true
		}
	}
	return s.host.ContentSize(id)
}

// knownSize returns the size, in bytes, of a blob that may be missing. If the table of sizes lacks the blob, knownSize
// searches the contents on this host.
func (s *storage) knownSize(id object.ID) (int64, bool) {
	if n, ok := s.sizes.Get(id); ok {
		return n, true
	}
	if n, ok := s.contentSize(id); ok {
		return n, true
	}
	return s.host.Size(id)
}

// cachedSize returns the size, in bytes, of contents in the cache on disk, in memory or on the host.
func (s *storage) cachedSize(id object.ID) (int64, bool) {
	if n, ok := s.blobs.Size(id); ok {
		return n, true
	}
	if data, ok := s.memory.Content(id); ok {
		return int64(len(data)), true
	}
	return s.host.ContentSize(id)
}

// openCached returns a reader of contents in the cache on disk, in memory or on the host. It returns errEvicted if the
// contents are in none of them.
func (s *storage) openCached(id object.ID) (io.ReadCloser, error) {
	c, ok := s.stored(id)
	if !ok && s.copyFrom(s.host.Source(), id) == nil { // copy the blob to the cache if the host has it in a pack
		c, ok = s.content(id)
	}
	if !ok {
		return nil, errEvicted
	}
	return contentReader{io.NewSectionReader(c, 0, c.Size()), c}, nil
}

// errEvicted means that the cache evicted a blob between the look-up of its size and the reading of its contents.
var errEvicted = errors.New("contents were evicted from the cache while they were copied")

// keep stores contents in the cache on disk. If the disk cannot be written, it keeps small contents in memory, and
// returns an error for large ones.
func (s *storage) keep(o odb.Object) error {
	if o.File != nil {
		if err := s.blobs.PutFile(o.ID, o.File, o.Size); err != nil {
			return fmt.Errorf("keep blob %s: %w", o.ID, err)
		}
		return nil
	}
	// The disk may be full or read-only. In this case the contents are kept in memory, so that the readers which wait can
	// use them.
	if err := s.blobs.Put(o.ID, o.Data); err != nil {
		s.memory.PutContent(o.ID, o.Data)
		s.notices.Add(fmt.Sprintf("contents cannot be written to disk: %v", err))
	}
	return nil
}

// keepAll stores the contents of verified objects, as keep does, and returns those that are stored. If an object is not
// stored, the file with its contents is removed.
func (s *storage) keepAll(objects []odb.Object) (kept []odb.Object, err error) {
	small := make([]cache.Blob, 0, len(objects))
	for _, o := range objects {
		if o.File == nil {
			small = append(small, cache.Blob{ID: o.ID, Data: o.Data})
		}
	}
	together := s.blobs.PutAll(small) == nil
	for _, o := range objects {
		switch {
		case o.File == nil && together:
		case err != nil:
			o.Discard()
			continue
		default:
			if err = s.keep(o); err != nil {
				continue
			}
		}
		kept = append(kept, o)
	}
	return kept, err
}

// materialize copies a blob from a pack or loose object on this host into the cache, where it can be read at any
// offset. It returns false if no pack or loose object on this host contains the blob.
func (s *storage) materialize(id object.ID) (bool, error) {
	from, t, size, err := s.find(id)
	if errors.Is(err, odb.ErrNotFound) {
		// an error is treated as a missing object, because an object that is damaged on the host is requested from the
		// remote
		return s.copyFrom(s.host.Source(), id) == nil, nil
	}
	if err != nil || t != object.Blob {
		return false, fmt.Errorf("read blob %s from local pack: object is a %s: %w", id, t, err)
	}
	return true, s.copyBlob(from, id, size)
}

// copyFrom copies a blob from a source of the host into the cache. If host is nil, it returns an error.
func (s *storage) copyFrom(host odb.Source, id object.ID) error {
	if host == nil {
		return odb.ErrNotFound
	}
	t, size, err := host.Size(id)
	if err != nil || t != object.Blob {
		return errors.Join(err, odb.ErrNotFound)
	}
	return s.copyBlob(host, id, size)
}

// copyBlob copies a blob of size bytes into the cache.
func (s *storage) copyBlob(from odb.Source, id object.ID, size int64) error {
	// Small contents are unpacked in memory and written at once. Large contents are streamed to a file, so that the use of
	// memory is limited.
	if size <= spoolOver {
		_, data, err := from.Get(id, spoolOver)
		if err == nil {
			err = s.keep(odb.Object{ID: id, Type: object.Blob, Size: size, Data: data})
		}
		return err
	}
	f, err := s.blobs.Spool(size)
	if err != nil {
		return err
	}
	if err := copyVerified(from, id, size, f); err != nil {
		f.Close()
		os.Remove(f.Name())
		return fmt.Errorf("read blob %s from local pack: %w", id, err)
	}
	return s.blobs.PutFile(id, f, size)
}

// copyVerified copies a blob to f and verifies its hash, because the pack may have been damaged after it was written.
func copyVerified(from odb.Source, id object.ID, size int64, f *os.File) error {
	h := object.NewHasher(id.Format(), object.Blob, size)
	if err := from.WriteTo(id, io.MultiWriter(f, h)); err != nil {
		return err
	}
	sum, err := h.Sum()
	if err == nil && sum != id {
		err = fmt.Errorf("contents have the wrong hash %s", sum)
	}
	return err
}

// hasParents reports whether the store has a commit and all of its parents. Such a commit is not part of the boundary,
// which lists the commits whose parents are missing.
func (s *storage) hasParents(commit object.ID) bool {
	_, content, err := s.objects.Get(commit, object.MaxCommitSize)
	if err != nil {
		return false
	}
	info, err := object.ParseCommit(commit.Format(), content)
	if err != nil {
		return false
	}
	for _, p := range info.Parents {
		if !s.objects.Has(p) {
			return false
		}
	}
	return true
}
