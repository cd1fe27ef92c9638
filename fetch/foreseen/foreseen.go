// Package foreseen prefetches the files of a read profile. It looks the paths up in a tree, queues the wants in the
// order of the profile, and finds the neighbours of a file for which a reader waits while the prefetch runs. The caller
// supplies trees and the queue (Source).
package foreseen

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/artifactfs/artifactfs/fetch/pipeline"
	"github.com/artifactfs/artifactfs/fetch/readprofile"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/prioritize"
)

const (
	// queueAhead is the maximum number of wants of a profile that are queued together.
	queueAhead = 2 * pipeline.MaxPrefetchBatch
	// alongside is the maximum number of wants that the request of a reader contains besides its own.
	alongside = 512
	// maxPassed is the maximum number of files of a profile that After examines to find the wants for a reader's
	// request.
	maxPassed = 4096
	// lacksTime is the maximum time for which Lacks waits for trees, and lacksPaths the number of paths that it examines.
	lacksTime  = 5 * time.Millisecond
	lacksPaths = 64
)

// File is a file of the tree.
type File struct {
	ID   object.ID
	Path string
}

// Source is the part of a mount's view that a Prefetcher uses. Its functions may be called from any goroutine.
type Source struct {
	Pipe *pipeline.Pipeline
	Tree func() object.ID // returns the tree that the mount shows
	// Entries returns the entries of a tree. It waits for a missing tree.
	Entries func(ctx context.Context, tree object.ID) ([]object.TreeEntry, error)
	// Walk calls visit for the files of the shown tree, in the order of the tree, until visit returns false. WalkFrom does
	// the same for the files that follow path.
	Walk     func(ctx context.Context, visit func(File) bool) error
	WalkFrom func(ctx context.Context, path string, visit func(File) bool) error
	Missing  func(id object.ID) bool // reports whether a blob is not on this host
	// AwaitRoom waits until at most room wants are queued in the background.
	AwaitRoom func(ctx context.Context, room int) error
	// AwaitDone waits until no want of a prefetch is pending.
	AwaitDone func(ctx context.Context) error
	BytesIn   func() int64 // number of bytes of contents that have arrived so far
}

// Prefetcher prefetches the files of read profiles in one mount. The methods may be called from any goroutine.
type Prefetcher struct {
	source  Source
	current atomic.Pointer[list] // the files of the profile that is being prefetched; nil if none is
}

// New returns a Prefetcher.
func New(s Source) *Prefetcher { return &Prefetcher{source: s} }

// list contains the files of a read profile, as far as they were found in the tree. A reader that has to wait for one
// of them will probably read the following ones next, so these are its neighbours, and not the files of its directory.
type list struct {
	whole bool // whether the whole tree will be read

	mu    sync.Mutex
	files []File         // in the order of the profile; elements are only appended
	at    map[string]int // index in files by path
}

// add appends files.
func (l *list) add(files []File) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, next := range files {
		l.at[next.Path] = len(l.files)
		l.files = append(l.files, next)
	}
}

// after returns the files that follow path, and false if path is not one of the files.
func (l *list) after(path string) ([]File, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i, ok := l.at[path]
	if !ok {
		return nil, false
	}
	return l.files[i+1 : len(l.files) : len(l.files)], true
}

// CountFiles returns the number of files of the shown tree, but at most limit. It waits for missing trees.
func (p *Prefetcher) CountFiles(ctx context.Context, limit int) (n int, err error) {
	err = p.source.Walk(ctx, func(File) bool {
		n++
		return n < limit
	})
	return n, err
}

// Run prefetches the files of a read profile that the shown tree has, in the order of the profile, and returns when all
// of them are on this host or the pipeline has given them up. It stops early when budget bytes have arrived (0 means no
// limit) or ctx ends. It returns the part of the budget that is left, which is not positive if the budget is spent.
// While Run runs, a reader that waits for a file of the profile requests the following files of the profile with it
// (see After).
func (p *Prefetcher) Run(ctx context.Context, profile readprofile.Profile, budget int64) (left int64, err error) {
	if profile.IsZero() || p.source.Tree().IsZero() {
		return budget, nil
	}
	start := p.source.BytesIn()
	spent := func() bool { return budget > 0 && p.source.BytesIn()-start >= budget }
	files := &list{whole: profile.Whole, at: map[string]int{}}
	p.current.Store(files)
	defer p.current.CompareAndSwap(files, nil)
	q := queue{source: p.source, list: files, spent: spent, size: pipeline.FirstPrefetchBatch}
	find := p.finder()
	for _, path := range profile.Paths {
		found, ok, err := find.file(ctx, path.Name)
		if err != nil {
			return budget, err
		}
		if ok && !q.add(ctx, found) {
			break
		}
	}
	if profile.Whole {
		if err := p.source.Walk(ctx, func(next File) bool { return q.add(ctx, next) }); err != nil {
			return budget, err
		}
	}
	if q.flush(ctx); q.err == nil {
		q.err = p.source.AwaitDone(ctx)
	}
	if budget == 0 {
		return 0, q.err
	}
	return budget - (p.source.BytesIn() - start), q.err
}

// Lacks reports whether contents of the first paths of a read profile, or trees that contain them, are missing. It
// waits for at most lacksTime.
func (p *Prefetcher) Lacks(ctx context.Context, profile readprofile.Profile) bool {
	ctx, cancel := context.WithTimeout(ctx, lacksTime)
	defer cancel()
	find := p.finder()
	for _, path := range profile.Paths[:min(len(profile.Paths), lacksPaths)] {
		f, ok, err := find.file(ctx, path.Name)
		if err != nil || ok && p.source.Missing(f.ID) {
			return true
		}
	}
	return false
}

// queue queues the wants of a profile in parts. The first part is small, so that its request is sent before the rest of
// the profile was looked up.
type queue struct {
	source Source
	list   *list
	spent  func() bool
	size   int    // size of the next part
	part   []File // files whose contents are missing, and that are not queued yet
	err    error
}

// add queues the want for a file if its contents are missing. It returns false if no more wants are to be queued.
func (q *queue) add(ctx context.Context, f File) bool {
	if !q.source.Missing(f.ID) {
		return true
	}
	if q.part = append(q.part, f); len(q.part) < q.size {
		return true
	}
	return q.flush(ctx)
}

// flush queues the wants of the part that was collected, and waits until the queue has room for the next part. It
// returns false if no more wants are to be queued.
func (q *queue) flush(ctx context.Context) bool {
	if q.err != nil || q.spent() {
		return false
	}
	wants := make([]prioritize.Want, len(q.part))
	for i, f := range q.part {
		wants[i] = prioritize.Want{ID: f.ID, Class: prioritize.Profile, Path: f.Path}
	}
	if !q.list.whole {
		q.list.add(q.part)
	}
	q.source.Pipe.Queue(wants)
	q.part, q.size = nil, min(4*q.size, queueAhead)
	q.err = q.source.AwaitRoom(ctx, queueAhead)
	return q.err == nil && !q.spent()
}

// After returns the neighbours of a file for which a reader waits, if the read profile that is being prefetched
// contains the file: the missing files that follow in the profile. The reader waits for requests that are in flight as
// long as a crawler does, because the contents arrive in about the order in which they are read. The result ok is false
// if the profile does not contain the file.
func (p *Prefetcher) After(ctx context.Context, id object.ID, path string) (c pipeline.Neighbours, ok bool) {
	l := p.current.Load()
	if l == nil {
		return c, false
	}
	next, ok := l.after(path)
	if !ok && !l.whole {
		return c, false
	}
	c.Patience = pipeline.HedgeCrawl
	if p.source.Pipe.IsInFlight(id) {
		return c, true
	}
	add := func(f File) bool {
		if p.source.Missing(f.ID) && !p.source.Pipe.IsInFlight(f.ID) {
			c.Wants = append(c.Wants, prioritize.Want{ID: f.ID, Class: prioritize.Sibling, Path: f.Path})
		}
		return len(c.Wants) < alongside
	}
	if !ok {
		_ = p.source.WalkFrom(ctx, path, add) // an error is ignored: the reader then requests fewer neighbours
		return c, true
	}
	for _, f := range next[:min(len(next), maxPassed)] {
		if !add(f) {
			break
		}
	}
	return c, true
}

// finder finds the files of many paths in one tree. It reads each directory once.
type finder struct {
	source Source
	root   object.ID
	// entries by name, for each directory read so far; the key is its path
	dirs map[string]map[string]object.TreeEntry
}

// finder returns a finder for the shown tree.
func (p *Prefetcher) finder() *finder {
	return &finder{p.source, p.source.Tree(), map[string]map[string]object.TreeEntry{}}
}

// file returns the regular file or symlink at path, and false if the tree has none there. It waits for missing trees.
func (f *finder) file(ctx context.Context, path string) (File, bool, error) {
	tree := f.root
	for begin := 0; ; {
		entries, err := f.entries(ctx, path[:max(begin-1, 0)], tree)
		if err != nil {
			return File{}, false, err
		}
		name, _, deeper := strings.Cut(path[begin:], "/")
		e, ok := entries[name]
		switch {
		case !ok || deeper && e.Mode != object.ModeDir:
			return File{}, false, nil
		case !deeper:
			return File{e.ID, path}, e.Mode.IsBlob(), nil
		}
		begin, tree = begin+len(name)+1, e.ID
	}
}

// entries returns the entries of a directory by name. The parameter tree is its tree.
func (f *finder) entries(ctx context.Context, dir string, tree object.ID) (map[string]object.TreeEntry, error) {
	if found, ok := f.dirs[dir]; ok {
		return found, nil
	}
	entries, err := f.source.Entries(ctx, tree)
	if err != nil {
		return nil, err
	}
	found := make(map[string]object.TreeEntry, len(entries))
	for _, e := range entries {
		found[e.Name] = e
	}
	f.dirs[dir] = found
	return found, nil
}
