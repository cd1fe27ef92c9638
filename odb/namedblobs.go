package odb

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb/named"
)

// Named is the set of the blobs that the trees in the packs of one objects directory name. It consists of one file for each pack, in the
// directory info/artifactfs-named: git reports files that it does not know in the directory of the packs as garbage. A pack without a
// file, for example one that git has written, is read once, when the directory is next compared with the set. Trees in loose objects do
// not count.
//
// A pack that Ingest stores is added to the set before git can see the pack. In the same process, blobs leave the set only if their
// pack was removed and the packs that were there at that time do not name them. Named is safe for concurrent use.
type Named struct {
	objects string // the objects directory
	format  object.Format
	scanned atomic.Pointer[scan]        // state of the directory of the packs when it was last compared with the set; nil before
	view    atomic.Pointer[[]namedPack] // the packs of the set; the slice is replaced, never modified
	// scanning has room for one token, which the goroutine holds that compares the directory with the set.
	scanning chan struct{}

	mu        sync.Mutex // protects the fields below, and is held while view is replaced; not held during disk operations
	watchers  map[*watcher]bool
	closed    bool
	announces sync.WaitGroup // goroutines that call watchers
}

// namedPack is the part of a Named that belongs to one pack.
type namedPack struct {
	path string // path of the pack without suffix
	set  *named.Set
	// early is true until the directory was found to contain the pack: Ingest adds the set before the pack has its name.
	early bool
}

// watcher is a function that Watch has registered.
type watcher struct{ grown func() }

// OpenNamed returns the set for the objects directory dir, which need not exist. It reads nothing: see Sync.
func OpenNamed(dir string, f object.Format) *Named {
	n := &Named{objects: dir, format: f, scanning: make(chan struct{}, 1), watchers: map[*watcher]bool{}}
	n.view.Store(&[]namedPack{})
	return n
}

// Close waits for calls of watchers that are in progress in the background. Afterwards no watcher is called.
func (n *Named) Close() error {
	n.mu.Lock()
	n.closed = true
	n.watchers = nil
	n.mu.Unlock()
	n.announces.Wait()
	return nil
}

// namesPath returns the path of the file for the pack at path, which has no suffix.
func namesPath(path string) string {
	return filepath.Join(filepath.Dir(filepath.Dir(path)), "info", "artifactfs-named", filepath.Base(path))
}

// sets returns the sets of all packs.
func (n *Named) sets() []*named.Set {
	view := *n.view.Load()
	sets := make([]*named.Set, len(view))
	for i, p := range view {
		sets[i] = p.set
	}
	return sets
}

// has reports whether the set contains id at present.
func (n *Named) has(id object.ID) bool {
	for _, p := range *n.view.Load() {
		if p.set.Has(id) {
			return true
		}
	}
	return false
}

// change replaces the view by the slice that the function in the parameter change returns.
func (n *Named) change(change func(view []namedPack) []namedPack) {
	n.mu.Lock()
	defer n.mu.Unlock()
	next := change(slices.Clone(*n.view.Load()))
	n.view.Store(&next)
}

// addition is a pack that Ingest is about to make visible. Its file is written in another goroutine.
type addition struct {
	to      *Named
	path    string // path that the pack will have, without suffix
	writing sync.WaitGroup
	set     *named.Set // valid after writing, like err
	err     error
}

// prepare begins to write the file of a pack that will be renamed to path. The caller must call the method wait of the result.
func (n *Named) prepare(path string, c *named.Collector) *addition {
	a := &addition{to: n, path: path}
	a.writing.Go(func() { a.set, a.err = n.keep(path, c.Encode()) })
	return a
}

// wait waits until the file was written.
func (a *addition) wait() { a.writing.Wait() }

// announce adds the names of the pack to the set, and then calls the watchers.
func (a *addition) announce() error {
	if a.wait(); a.err != nil {
		return fmt.Errorf("write named blobs: %w", a.err)
	}
	if a.to.insert(namedPack{a.path, a.set, true}) {
		a.to.announce()
	}
	return nil
}

// keep writes the file for the pack at path and returns its set. If the disk is full, the set is in memory.
func (n *Named) keep(path string, data []byte) (*named.Set, error) {
	file := namesPath(path)
	err := os.MkdirAll(filepath.Dir(file), 0o755)
	if err == nil {
		// The file is not synced: a file that a power failure has damaged is written again.
		err = disk.WriteFileUnsynced(file, data, 0o444)
	}
	if err == nil {
		if set, err := named.Open(file, n.format); err == nil {
			return set, nil
		}
	}
	return named.Parse(data, n.format)
}

// insert adds a pack to the view, and reports whether the set has grown.
func (n *Named) insert(p namedPack) (grown bool) {
	grown = !p.set.Within(n.sets())
	n.change(func(view []namedPack) []namedPack {
		if i := slices.IndexFunc(view, func(q namedPack) bool { return q.path == p.path }); i >= 0 {
			view[i].set = p.set
			return view
		}
		return append(view, p)
	})
	return grown
}

// announce calls the watchers.
func (n *Named) announce() {
	n.mu.Lock()
	var all []*watcher
	for w := range n.watchers {
		all = append(all, w)
	}
	n.mu.Unlock()
	for _, w := range all {
		w.grown()
	}
}

// announceLater calls the watchers in another goroutine, because the caller may hold up a request for which a watcher waits.
func (n *Named) announceLater() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.closed {
		n.announces.Go(n.announce)
	}
}

// current reports whether the directory is unchanged since it was last compared with the set.
func (n *Named) current() bool {
	c := n.scanned.Load()
	if c == nil {
		return false
	}
	st, err := os.Stat(n.packs())
	if errors.Is(err, fs.ErrNotExist) {
		return c.modified.IsZero()
	}
	return err == nil && st.ModTime().Equal(c.modified) && c.settled()
}

// packs returns the path of the directory of the packs.
func (n *Named) packs() string { return filepath.Join(n.objects, "pack") }

// sync compares the directory with the set, and reports whether the set has grown. It returns the error of ctx if ctx ends before.
func (n *Named) sync(ctx context.Context) (grown bool, err error) {
	if n.current() {
		return false, nil
	}
	select {
	case n.scanning <- struct{}{}:
		defer func() { <-n.scanning }()
	case <-ctx.Done():
		return false, ctx.Err()
	}
	if n.current() {
		return false, nil // another goroutine has compared them meanwhile
	}
	now := time.Now()
	before, err := os.Stat(n.packs())
	if errors.Is(err, fs.ErrNotExist) {
		n.scanned.Store(&scan{at: now})
		return false, nil
	}
	var paths map[string]bool
	if err == nil {
		paths, err = listPacks(n.packs())
	}
	if err != nil {
		return false, fmt.Errorf("list named blobs: %w", err)
	}
	known := map[string]bool{}
	for _, p := range *n.view.Load() {
		known[p.path] = true
	}
	for path := range paths {
		if known[path] {
			continue
		}
		set, err := n.load(ctx, path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // another process has removed the pack, so the directory has another mtime now
		}
		if err != nil {
			return grown, fmt.Errorf("list named blobs of %s: %w", filepath.Base(path), err)
		}
		if n.insert(namedPack{path: path, set: set}) {
			grown = true
		}
	}
	n.drop(paths, scan{before.ModTime(), now})
	return grown, nil
}

// drop removes the packs that are not in paths, which lists the directory as it was at the time of c. While the directory changes, a
// list may lack both an old pack and the pack that replaces it, so drop then leaves the old packs for the next comparison.
func (n *Named) drop(paths map[string]bool, c scan) {
	after, err := os.Stat(n.packs())
	stable := err == nil && after.ModTime().Equal(c.modified) && c.settled()
	n.change(func(view []namedPack) []namedPack {
		kept := view[:0]
		for _, p := range view {
			p.early = p.early && !paths[p.path]
			if paths[p.path] || p.early || !stable {
				kept = append(kept, p)
			}
		}
		return kept
	})
	n.scanned.Store(&c)
	if stable {
		n.sweep(paths, time.Now())
	}
}

// sweep removes old files whose pack was removed, and files that killed processes have left behind. Errors are ignored.
func (n *Named) sweep(paths map[string]bool, now time.Time) {
	dir := filepath.Dir(namesPath(filepath.Join(n.packs(), "pack")))
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	_ = disk.SweepTemp(dir)
	for _, e := range entries {
		info, err := e.Info()
		// The file of a pack precedes the pack by less than a second.
		if err == nil && strings.HasPrefix(e.Name(), "pack-") && !paths[filepath.Join(n.packs(), e.Name())] && now.Sub(info.ModTime()) > orphanAge {
			os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

// joinNames writes the file for the pack that will be at path and contains the objects of packs. It does nothing if one of the packs has
// no valid file: the new pack is then read when the file is needed.
func joinNames(packs []candidate, path string, f object.Format) error {
	sets := make([]*named.Set, len(packs))
	for i, c := range packs {
		var err error
		if sets[i], err = named.Open(namesPath(c.path), f); err != nil {
			return nil
		}
	}
	return disk.WriteFileUnsynced(namesPath(path), named.Merge(f, sets), 0o444)
}

// load returns the set of a pack: from its file or, if the file is missing or damaged, by reading the pack.
func (n *Named) load(ctx context.Context, path string) (*named.Set, error) {
	set, err := named.Open(namesPath(path), n.format)
	if err == nil || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, named.ErrDamaged) {
		return set, err
	}
	c := named.NewCollector(n.format)
	if err := collectNames(ctx, path, n.format, c); err != nil {
		return nil, err
	}
	return n.keep(path, c.Encode())
}

// ErrPrefixCollision means that two named blobs have the same first named.PrefixBits bits.
var ErrPrefixCollision = errors.New("two named blobs begin with the same bits")

// NamedBlobs is the union of the sets of several directories.
type NamedBlobs []*Named

// Sync compares the directories with the sets, and adds the packs that other processes have created. It reads packs that have no file
// yet, which takes about as long as receiving them. It calls the watchers before it returns, if a set has grown.
func (b NamedBlobs) Sync(ctx context.Context) error {
	for _, n := range b {
		grown, err := n.sync(ctx)
		if grown {
			n.announce()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Has reports whether a tree names the blob id. It returns false only after it has compared the directories with the sets, as Sync does,
// which costs one stat(2) for each directory if nothing has changed. If it cannot do that, it returns an error, for example the error of
// ctx, and the answer is not known.
func (b NamedBlobs) Has(ctx context.Context, id object.ID) (bool, error) {
	return b.find(ctx, func(n *Named) bool { return n.has(id) })
}

// find reports whether the function found returns true for one of the sets, before or after the directories were compared with them.
func (b NamedBlobs) find(ctx context.Context, found func(*Named) bool) (bool, error) {
	if slices.ContainsFunc(b, found) {
		return true, nil
	}
	changed := false
	for _, n := range b {
		before := n.view.Load()
		grown, err := n.sync(ctx)
		if grown {
			n.announceLater()
		}
		if err != nil {
			return false, err
		}
		changed = changed || n.view.Load() != before
	}
	return changed && slices.ContainsFunc(b, found), nil
}

// Prefixed returns the named blob whose id has this prefix (see named.Prefix). It returns false if there is none, in the same way as
// Has, and ErrPrefixCollision if there are two.
func (b NamedBlobs) Prefixed(ctx context.Context, prefix uint64) (id object.ID, ok bool, err error) {
	var ids []object.ID
	ok, err = b.find(ctx, func(n *Named) bool {
		for _, s := range n.sets() {
			ids = s.AppendPrefixed(ids, prefix)
		}
		return len(ids) > 0
	})
	if !ok {
		return id, false, err
	}
	// The function find stops at the first directory with such a blob.
	for _, n := range b {
		for _, s := range n.sets() {
			ids = s.AppendPrefixed(ids, prefix)
		}
	}
	if len(ids) > 1 {
		return id, false, fmt.Errorf("%w: %s and %s", ErrPrefixCollision, ids[0], ids[1])
	}
	return ids[0], true, nil
}

// From returns the named blobs whose ids have the first byte first, in the order of their ids, beginning with the first one after the
// parameter after; the zero id stands for the start. It does not compare the directories with the sets. Blobs that are added meanwhile
// do not occur.
func (b NamedBlobs) From(first byte, after object.ID) iter.Seq[object.ID] {
	return named.From(b.sets(), first, after)
}

// Count returns the number of named blobs. It reads all ids, which takes some milliseconds for 100,000 blobs.
func (b NamedBlobs) Count() int { return named.Count(b.sets()) }

// sets returns the sets of all packs of all directories.
func (b NamedBlobs) sets() (all []*named.Set) {
	for _, n := range b {
		all = append(all, n.sets()...)
	}
	return all
}

// Watch makes the function grown be called whenever one of the sets has grown, until the function stop is called. The set already
// contains the new blobs. For a pack that Ingest stores, grown returns before git can see the pack. So grown must not wait for a request
// that itself waits for Ingest. For a pack that another process has stored, grown is called as soon as Sync, Has or Prefixed finds the
// pack; Has and Prefixed do not wait for grown.
func (b NamedBlobs) Watch(grown func()) (stop func()) {
	w := &watcher{grown}
	for _, n := range b {
		n.mu.Lock()
		if !n.closed {
			n.watchers[w] = true
		}
		n.mu.Unlock()
	}
	return func() {
		for _, n := range b {
			n.mu.Lock()
			delete(n.watchers, w)
			n.mu.Unlock()
		}
	}
}
