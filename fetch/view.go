package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"github.com/artifactfs/artifactfs/convert"
	"github.com/artifactfs/artifactfs/filter"
	"github.com/artifactfs/artifactfs/internal/metrics"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
	"github.com/artifactfs/artifactfs/prioritize"
)

// Content is a blob's verified content. It stays readable until released, whatever is evicted meanwhile.
type Content interface {
	io.ReaderAt
	Size() int64
	Release()
}

// View reads the blobs of one tree. It belongs to one mount.
//
// A mount may come to show another tree than the one it began with. What is read together with what, and what is
// hydrated, then goes by the tree that is shown; a file that was there before, and is the same, keeps the contents that
// it had, and so the attributes of the tree that it came from.
type View struct {
	*mounted
	store *Store
	root  object.ID // whose attributes count
	told  checkout
	rules rules // guarded by mounted.mu
}

// checkout is what filters are told of it: nothing of a tree that the mount came to show later.
type checkout struct {
	ref    string
	commit object.ID
}

// mounted is what the views of one mount share.
type mounted struct {
	programs *filter.Programs // nil: contents of drivers cannot be read
	ahead    readahead
	smudging smudging                  // guarded by mu
	tree     atomic.Pointer[object.ID] // that is shown

	gone chan struct{} // closed with the views

	mu       sync.Mutex
	closed   bool
	crawling bool         // a walk through the whole tree is under way
	sizing   *sizeRequest // nil while there is none: one at a time, each asks for thousands
	views    map[object.ID]*View
}

// View makes the view of a snapshot's tree, for a user with these git settings, whose filters programs runs. Reads are
// expected at once, so what nobody waits for stays back a little.
func (s *Store) View(snap *Snapshot, settings convert.Settings, programs *filter.Programs) *View {
	s.blobPipe.readerWaits()
	v := &View{
		store: s, root: snap.Tree, told: checkout{snap.Ref, snap.Commit}, rules: rules{settings: settings},
		mounted: &mounted{programs: programs, gone: make(chan struct{})},
	}
	v.views = map[object.ID]*View{v.root: v}
	v.tree.Store(&v.root)
	return v
}

// Of gives the view for files that came with another tree.
func (v *View) Of(tree object.ID) *View {
	if tree == v.root {
		return v
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	of, ok := v.views[tree]
	if !ok {
		other := *v
		of, other.root, other.rules.files = &other, tree, nil
		v.views[tree] = of
	}
	return of
}

// Show says which tree the mount shows from now on.
func (v *View) Show(tree object.ID) { v.tree.Store(&tree) }

// shown is the tree that the mount shows.
func (v *View) shown() object.ID { return *v.tree.Load() }

// Close lets go whoever waits for an object of this view; they get context.Canceled.
func (v *View) Close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.closed {
		v.closed = true
		close(v.gone)
	}
}

// untilClosed is ctx that also ends with the view.
func (v *View) untilClosed(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-v.gone:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// Tree gives the entries of a tree, waiting while it streams in. The zero id is the empty tree.
func (v *View) Tree(ctx context.Context, id object.ID) ([]object.TreeEntry, error) {
	if id.IsZero() {
		return nil, nil
	}
	if entries, ok := v.store.memory.Tree(id); ok {
		return entries, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, v.store.blobPipe.deadline, ErrDeadline)
	defer cancel()
	closing, cancel := v.untilClosed(ctx)
	defer cancel()
	entries, err := v.store.Tree(closing, id)
	if err != nil && errors.Is(context.Cause(ctx), ErrDeadline) && !errors.Is(err, ErrDeadline) {
		err = fmt.Errorf("read tree %s: %w", id, ErrDeadline)
		v.store.blobPipe.failed(err, func() { v.store.fetchTreeLater(id) })
	}
	return entries, err
}

// Blob is a blob at a path of the view's tree.
type Blob struct {
	ID   object.ID
	Path string
	Link bool // a symlink's target, which checkout never converts
}

// Looked notes that a reader came upon a file: whether what was brought ahead is looked at tells who crawls.
func (v *View) Looked(b Blob) { v.ahead.looked(b.ID) }

// KnownSize gives the size of a file's content, as checkout would write it, if this host knows it; it never waits.
func (v *View) KnownSize(b Blob) (int64, bool) {
	r, ok := v.knownRule(b.ID, b.Path)
	switch {
	case b.Link:
		return v.store.knownSize(b.ID)
	case !ok:
		return 0, false
	case r.IsZero():
		return v.store.knownSize(b.ID)
	}
	return v.store.blobs.Size(convertedID(b.ID, r, b.Path))
}

// Size gives the exact size of a file's content and waits for it: from what is here, from the remote's
// object-info where it offers that, else by fetching the content.
func (v *View) Size(ctx context.Context, b Blob) (int64, error) {
	if n, ok := v.KnownSize(b); ok {
		return n, nil
	}
	asStored, err := v.asStored(ctx, b)
	if err != nil {
		return 0, err
	}
	if asStored {
		if n, ok := v.store.knownSize(b.ID); ok {
			return n, nil
		}
		if n, ok := v.store.lentSize(b.ID); ok {
			return n, nil
		}
		if !v.store.elsewhere(b.ID) {
			if n, ok, err := v.askSizes(ctx, b.ID, b.Path); ok || err != nil {
				return n, err
			}
		}
	}
	c, err := v.Open(ctx, b)
	if err != nil {
		return 0, err
	}
	defer c.Release()
	return c.Size(), nil
}

func (v *View) asStored(ctx context.Context, b Blob) (bool, error) {
	if b.Link {
		return true, nil
	}
	r, err := v.rule(ctx, b.ID, b.Path)
	return r.IsZero(), err
}

// Open gives a file's content as checkout would write it, fetching it if it is not here.
func (v *View) Open(ctx context.Context, b Blob) (Content, error) {
	v.ahead.looked(b.ID)
	return v.open(ctx, b, func() company { return v.neighbours(ctx, b.ID, b.Path) })
}

// OpenAlone is Open for who is no reader of the tree: nothing is brought along, and nothing is learned of what is read next.
func (v *View) OpenAlone(ctx context.Context, b Blob) (Content, error) {
	return v.open(ctx, b, func() company { return company{patience: hedgeAfter} })
}

func (v *View) open(ctx context.Context, b Blob, along func() company) (Content, error) {
	if b.Link {
		return v.raw(ctx, b.ID, b.Path, along)
	}
	r, err := v.rule(ctx, b.ID, b.Path)
	if err != nil {
		return nil, err
	}
	if r.IsZero() {
		return v.raw(ctx, b.ID, b.Path, along)
	}
	return v.converted(ctx, b, r)
}

// raw gives a blob's content as it is stored. If it has to be fetched, what along names travels in the same request.
func (v *View) raw(ctx context.Context, id object.ID, path string, along func() company) (Content, error) {
	if c, ok := v.store.content(id); ok {
		return c, nil
	}
	ok, err := v.store.materialize(id)
	if err != nil {
		return nil, err
	}
	if !ok {
		ctx, cancel := v.untilClosed(ctx)
		defer cancel()
		data, err := v.store.blobPipe.wait(ctx, prioritize.Want{ID: id, Path: path}, along())
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		if data != nil {
			return memoryContent(data), nil
		}
	}
	if c, here := v.store.content(id); here {
		if !ok { // a large one, which went through the disk
			metrics.Charge(ctx, metrics.Fetched, 0, c.Size())
		}
		return c, nil
	}
	if _, err := v.store.materialize(id); err != nil { // a pack for git brought it
		return nil, err
	}
	if c, ok := v.store.content(id); ok {
		return c, nil
	}
	return nil, fmt.Errorf("read %s: blob %s was evicted as it arrived: the cache is too small", path, id)
}

// crawl asks for everything behind path, then for what comes before it: somebody reads the whole tree.
func (v *View) crawl(path string) {
	v.store.blobPipe.startCrawl()
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.crawling {
		return
	}
	v.crawling = v.store.background(func(ctx context.Context) {
		defer func() {
			v.mu.Lock()
			defer v.mu.Unlock()
			v.crawling = false
		}()
		add := func(f file) bool {
			if f.path != path && v.missing(f.id) {
				v.store.blobPipe.ask([]prioritize.Want{{ID: f.id, Class: prioritize.Readahead, Path: f.path}})
			}
			return v.store.blobPipe.roomFor(ctx, crawlAhead)
		}
		v.store.walkFrom(ctx, v.shown(), path, add)
		v.store.walkTree(ctx, v.shown(), "", add)
	})
}

// content gives a blob's content from the cache.
func (s *Store) content(id object.ID) (Content, bool) {
	if c, ok := s.blobs.Get(id); ok {
		return c, true
	}
	if data, ok := s.memory.Content(id); ok {
		return memoryContent(data), true
	}
	return nil, false
}

// cached says whether a content can be read at once; it looks into memory only.
func (s *Store) cached(id object.ID) bool {
	if _, ok := s.blobs.Size(id); ok {
		return true
	}
	_, ok := s.memory.Content(id)
	return ok
}

// contentSize is the size of a blob whose content is on this host.
func (s *Store) contentSize(id object.ID) (int64, bool) {
	if n, ok := s.blobs.Size(id); ok {
		return n, true
	}
	if t, n, err := s.objects.Size(id); err == nil && t == object.Blob {
		return n, true
	}
	return 0, false
}

func (s *Store) knownSize(id object.ID) (int64, bool) {
	if n, ok := s.sizes.Get(id); ok {
		return n, true
	}
	return s.contentSize(id)
}

// materialize copies a blob that lies in a local pack into the cache, where it can be read at any offset.
func (s *Store) materialize(id object.ID) (bool, error) {
	from, t, size, err := s.find(id)
	if errors.Is(err, odb.ErrNotFound) {
		return false, nil
	}
	if err != nil || t != object.Blob {
		return false, fmt.Errorf("read blob %s from local pack: it is a %s: %w", id, t, err)
	}
	if size <= spoolOver {
		_, data, err := from.Get(id, spoolOver)
		if err == nil {
			err = s.keep(odb.Object{ID: id, Type: t, Size: size, Data: data})
		}
		return true, err
	}
	f, err := s.blobs.Spool(size)
	if err != nil {
		return true, err
	}
	if err := copyVerified(from, id, size, f); err != nil {
		f.Close()
		os.Remove(f.Name())
		return true, fmt.Errorf("read blob %s from local pack: %w", id, err)
	}
	return true, s.blobs.PutFile(id, f, size)
}

func copyVerified(from objects, id object.ID, size int64, f *os.File) error {
	h := object.NewHasher(id.Format(), object.Blob, size)
	if err := from.WriteTo(id, io.MultiWriter(f, h)); err != nil {
		return err
	}
	sum, err := h.Sum()
	if err == nil && sum != id {
		err = fmt.Errorf("content hashes to %s", sum)
	}
	return err
}

// memoryContent is a small content served from memory.
type memoryContent []byte

func (c memoryContent) ReadAt(p []byte, off int64) (int, error) {
	if off >= int64(len(c)) {
		return 0, io.EOF
	}
	n := copy(p, c[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (c memoryContent) Size() int64 { return int64(len(c)) }
func (c memoryContent) Release()    {}

var _ Content = memoryContent(nil)
