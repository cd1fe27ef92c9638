package fetch

import (
	"context"
	"strings"
	"sync"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch/pipeline"
	"github.com/artifactfs/artifactfs/fetch/readprofile"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/prioritize"
)

// maxPassed is the maximum number of files of a profile that are examined to find the wants that a reader's request contains.
const maxPassed = 4096

// foreseen contains the files of a read profile, as far as they were found in the tree. A reader that has to wait for one of them will
// probably read the following ones next, so these are its neighbours, and not the files of its directory.
type foreseen struct {
	whole bool // the whole tree will be read

	mu    sync.Mutex
	files []file         // in the order of the profile; elements are only appended
	at    map[string]int // index in files by path
}

// add appends files.
func (f *foreseen) add(files []file) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, next := range files {
		f.at[next.path] = len(f.files)
		f.files = append(f.files, next)
	}
}

// after returns the files that follow path, and false if path is not one of the files.
func (f *foreseen) after(path string) ([]file, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i, ok := f.at[path]
	if !ok {
		return nil, false
	}
	return f.files[i+1 : len(f.files) : len(f.files)], true
}

// Record makes the view record in r which files programs read. If r is nil, the view records nothing.
func (v *RawView) Record(r *readprofile.Recorder) { v.reads.Store(r) }

// CountFiles returns the number of files of the shown tree, but at most limit. It waits for missing trees.
func (v *RawView) CountFiles(ctx context.Context, limit int) (n int, err error) {
	_, err = v.store.trees.walk(ctx, v.Shown(), "", func(file) bool {
		n++
		return n < limit
	})
	return n, err
}

// PrefetchProfile prefetches the files of a read profile that the shown tree has, in the order of the profile, and returns when all of
// them are on this host or the pipeline has given them up. It stops early when budget bytes have arrived (0 means no limit) or ctx ends.
// It returns the part of the budget that is left, which is not positive if the budget is spent. While it runs, a reader that waits for a file of the
// profile requests the following files of the profile with it.
func (v *RawView) PrefetchProfile(ctx context.Context, p readprofile.Profile, budget int64) (left int64, err error) {
	if p.IsZero() || v.Shown().IsZero() {
		return budget, nil
	}
	start := v.store.fetcher.bytesIn.Load()
	spent := func() bool { return budget > 0 && v.store.fetcher.bytesIn.Load()-start >= budget }
	f := &foreseen{whole: p.Whole, at: map[string]int{}}
	v.foreseen.Store(f)
	defer v.foreseen.CompareAndSwap(f, nil)
	q := profileQueue{view: v, foreseen: f, spent: spent, size: pipeline.FirstPrefetchBatch}
	finder := pathFinder{trees: v.store.trees, root: v.Shown(), dirs: map[string]map[string]object.TreeEntry{}}
	for _, path := range p.Paths {
		found, ok, err := finder.find(ctx, path.Name)
		if err != nil {
			return budget, err
		}
		if ok && !q.add(ctx, found) {
			break
		}
	}
	if p.Whole {
		if _, err := v.store.trees.walk(ctx, v.Shown(), "", func(next file) bool { return q.add(ctx, next) }); err != nil {
			return budget, err
		}
	}
	q.flush(ctx)
	if q.err == nil {
		q.err = v.awaitPrefetched(ctx)
	}
	v.store.log.Debug("prefetched read profile", zap.Int("paths", len(p.Paths)), zap.Bool("whole", p.Whole), zap.Int("missing", q.queued))
	if budget == 0 {
		return 0, q.err
	}
	return budget - (v.store.fetcher.bytesIn.Load() - start), q.err
}

// Lacks reports whether contents of the first paths of a read profile are missing. It returns false for a profile of the whole tree that
// begins with no paths, and does not wait for trees for longer than neighbourTime.
func (v *RawView) Lacks(ctx context.Context, p readprofile.Profile) bool {
	ctx, cancel := context.WithTimeout(ctx, neighbourTime)
	defer cancel()
	finder := pathFinder{trees: v.store.trees, root: v.Shown(), dirs: map[string]map[string]object.TreeEntry{}}
	for _, path := range p.Paths[:min(len(p.Paths), 64)] {
		f, ok, err := finder.find(ctx, path.Name)
		if err != nil || ok && v.missing(f.id) {
			return true
		}
	}
	return false
}

// profileQueue queues the wants of a profile in parts. The first part is small, so that its request is sent before the rest of the
// profile was looked up. The queue holds at most queueAhead wants.
type profileQueue struct {
	view     *RawView
	foreseen *foreseen
	spent    func() bool
	size     int    // size of the next part
	part     []file // files whose contents are missing, and that are not queued yet
	queued   int    // number of wants queued so far
	err      error
}

// add queues the want for a file if its contents are missing. It returns false if no more wants are to be queued.
func (q *profileQueue) add(ctx context.Context, f file) bool {
	if !q.view.missing(f.id) {
		return true
	}
	if q.part = append(q.part, f); len(q.part) < q.size {
		return true
	}
	return q.flush(ctx)
}

// flush queues the wants of the part that was collected, and waits until the queue has room for the next part. It returns false if no
// more wants are to be queued.
func (q *profileQueue) flush(ctx context.Context) bool {
	if q.err != nil || q.spent() {
		return false
	}
	wants := make([]prioritize.Want, len(q.part))
	for i, f := range q.part {
		wants[i] = prioritize.Want{ID: f.id, Class: prioritize.Profile, Path: f.path}
	}
	if !q.foreseen.whole {
		q.foreseen.add(q.part)
	}
	q.view.store.fetcher.pipe.Queue(wants)
	q.queued += len(wants)
	q.part, q.size = nil, min(4*q.size, queueAhead)
	q.err = q.view.awaitQueue(ctx, queueAhead)
	return q.err == nil && !q.spent()
}

// foreseenAfter returns the neighbours of a file for which a reader waits, if the read profile that is being prefetched contains the
// file: the missing files that follow in the profile. The reader waits for requests that are in flight as long as a crawler does, because
// the contents arrive in about the order in which they are read. The result ok is false if the profile does not contain the file.
func (v *RawView) foreseenAfter(ctx context.Context, id object.ID, path string) (c pipeline.Neighbours, ok bool) {
	f := v.foreseen.Load()
	if f == nil {
		return c, false
	}
	next, ok := f.after(path)
	if !ok && !f.whole {
		return c, false
	}
	pipe := v.store.fetcher.pipe
	c.Patience = pipeline.HedgeCrawl
	if pipe.IsInFlight(id) {
		return c, true
	}
	add := func(f file) bool {
		if v.missing(f.id) && !pipe.IsInFlight(f.id) {
			c.Wants = append(c.Wants, prioritize.Want{ID: f.id, Class: prioritize.Sibling, Path: f.path})
		}
		return len(c.Wants) < alongside
	}
	if !ok {
		v.store.trees.walkFrom(ctx, v.Shown(), path, add)
		return c, true
	}
	for _, f := range next[:min(len(next), maxPassed)] {
		if !add(f) {
			break
		}
	}
	return c, true
}

// pathFinder finds the files of many paths in one tree. It reads each directory once.
type pathFinder struct {
	trees *trees
	root  object.ID
	dirs  map[string]map[string]object.TreeEntry // entries by name, of the directories read so far by path
}

// find returns the regular file or symlink at path, and false if the tree has none there. It waits for missing trees.
func (p *pathFinder) find(ctx context.Context, path string) (file, bool, error) {
	tree := p.root
	for begin := 0; ; {
		entries, err := p.entries(ctx, path[:max(begin-1, 0)], tree)
		if err != nil {
			return file{}, false, err
		}
		name, _, deeper := strings.Cut(path[begin:], "/")
		e, ok := entries[name]
		switch {
		case !ok || deeper && e.Mode != object.ModeDir:
			return file{}, false, nil
		case !deeper:
			return file{e.ID, path, e.Mode}, e.Mode.IsBlob(), nil
		}
		begin, tree = begin+len(name)+1, e.ID
	}
}

// entries returns the entries of a directory by name. The parameter tree is its tree.
func (p *pathFinder) entries(ctx context.Context, dir string, tree object.ID) (map[string]object.TreeEntry, error) {
	if found, ok := p.dirs[dir]; ok {
		return found, nil
	}
	list, err := p.trees.entries(ctx, tree)
	if err != nil {
		return nil, err
	}
	found := make(map[string]object.TreeEntry, len(list))
	for _, e := range list {
		found[e.Name] = e
	}
	p.dirs[dir] = found
	return found, nil
}
