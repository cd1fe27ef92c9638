// Package namedset answers which blobs the trees on this host name, for each objects directory (type Dir) and for
// several directories (type Union).
//
// The caller makes git believe that a named blob exists. If the set contained a blob that no tree names, git would not
// write this blob, and its contents would be lost. If the set lacked a blob that a tree names, git would report the
// blob as missing. So the set must be exact whenever git can read a tree. Names are added at these times:
//
//   - A pack from a remote (Add). Its names are complete before the pack has its final name, and the watchers have
//     returned by then. This
//     holds for the commit that a mount starts with, for history, for switch and follow, and for checkpoints and
//     sessions that are
//     fetched from a session remote, whose blobs may exist only there. While a pack is being received, git cannot read
//     its trees, and its
//     names are not in the set. The caller waits for the pack before it believes that a blob of such a tree is not
//     named. Packs of a remote
//     without filters contain the blobs too, so nothing depends on their names.
//   - A pack that git writes into the directory of a store or a session, or that another process or an older version
//     has left there. It
//     has no file of names. A look-up that would fail reads such packs first, so its answer is right from the time at
//     which the pack is
//     visible. A program that remembers negative answers learns of the pack by the next look-up of any unknown blob, or
//     by Sync, which the
//     store calls after each fetch by git.
//   - The git directory of a mount needs no set. git writes trees there only together with their blobs, or for blobs
//     that it has found
//     in the store or in the session, for example as named blobs. A fetch by git in a mount receives complete packs:
//     the server omits
//     only objects that belong to commits that git has, and the trees of these commits are in the store or in the git
//     directory. Bases
//     that complete a thin pack are objects that git could read.
//   - Checkpoints that this host writes are packs of the session. Their blobs are in the same pack, in an earlier one
//     or in the store.
//     Their names are found like those of packs that git writes.
//   - Join merges the files of the packs that it joins. A name does not leave the set while an old pack is replaced.
package namedset

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/odb/named"
	"github.com/artifactfs/artifactfs/internal/disk"
)

// Dir is the set of the blobs that the trees in the packs of one objects directory name. It consists of one file for
// each pack (named.Path). A pack without a file, for example one that git has written, is read once, when the directory
// is next compared with the set. Trees in loose objects do not count.
//
// A pack that Ingest stores is added to the set before git can see the pack. In the same process, blobs leave the set
// only if their pack was removed and the packs that were there at that time do not name them. Dir is safe for
// concurrent use.
type Dir struct {
	objects string // the objects directory
	format  object.Format
	// state of the directory of the packs when it was last compared with the set; nil before
	scanned atomic.Pointer[odb.Scan]
	view    atomic.Pointer[[]packNames] // the packs of the set; the slice is replaced, never modified
	// scanning has room for one token. A goroutine holds the token while it compares the directory with the set.
	scanning chan struct{}

	mu        sync.Mutex // protects the fields below, and is held while view is replaced; not held during disk operations
	watchers  map[*watcher]bool
	closed    bool
	announces sync.WaitGroup // goroutines that call watchers
}

// packNames is the part of a Dir that belongs to one pack.
type packNames struct {
	path string // path of the pack without suffix
	set  *named.Set
	// early is true while the directory may not contain the pack yet: Ingest adds the names before the pack has its
	// final name.
	early bool
}

// watcher is a function that Watch has registered.
type watcher struct{ grown func() }

// Open returns the set for the objects directory dir, which need not exist. Open reads no files; the first look-up or
// Sync does.
func Open(dir string, f object.Format) *Dir {
	n := &Dir{objects: dir, format: f, scanning: make(chan struct{}, 1), watchers: map[*watcher]bool{}}
	n.view.Store(&[]packNames{})
	return n
}

// Close waits for calls of watchers that are in progress in the background. Afterwards no watcher is called.
func (n *Dir) Close() error {
	n.mu.Lock()
	n.closed = true
	n.watchers = nil
	n.mu.Unlock()
	n.announces.Wait()
	return nil
}

// sets returns the sets of all packs.
func (n *Dir) sets() []*named.Set {
	view := *n.view.Load()
	sets := make([]*named.Set, len(view))
	for i, p := range view {
		sets[i] = p.set
	}
	return sets
}

// has reports whether the set contains id at present.
func (n *Dir) has(id object.ID) bool {
	for _, p := range *n.view.Load() {
		if p.set.Has(id) {
			return true
		}
	}
	return false
}

// change replaces the view by the slice that the function in the parameter change returns.
func (n *Dir) change(change func(view []packNames) []packNames) {
	n.mu.Lock()
	defer n.mu.Unlock()
	next := change(slices.Clone(*n.view.Load()))
	n.view.Store(&next)
}

// Add begins to write the file of names of a pack that will be renamed to path, which has no suffix. Add is a value for
// odb.IngestOptions.Names. The returned function announce adds the names to the set and calls the watchers. If the pack
// cannot be renamed afterwards, the names stay in the set until Close, which is harmless because the remote has these
// blobs. The function wait waits for the write of the file.
func (n *Dir) Add(path string, c *named.Collector) (announce func() error, wait func()) {
	var set *named.Set
	var err error
	var writing sync.WaitGroup
	writing.Go(func() { set, err = n.keep(path, c.Encode()) })
	return func() error {
		if writing.Wait(); err != nil {
			return fmt.Errorf("write named blobs: %w", err)
		}
		if n.insert(packNames{path, set, true}) {
			n.announce()
		}
		return nil
	}, writing.Wait
}

// keep writes the file of names for the pack at path and returns its set. If the file cannot be written, for example
// because the disk is full, keep returns a set in memory.
func (n *Dir) keep(path string, data []byte) (*named.Set, error) {
	file := named.Path(path)
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
func (n *Dir) insert(p packNames) (grown bool) {
	grown = !p.set.Within(n.sets())
	n.change(func(view []packNames) []packNames {
		if i := slices.IndexFunc(view, func(q packNames) bool { return q.path == p.path }); i >= 0 {
			view[i].set = p.set
			return view
		}
		return append(view, p)
	})
	return grown
}

// announce calls the watchers.
func (n *Dir) announce() {
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

// announceLater calls the watchers in another goroutine, because the caller may hold up a request for which a watcher
// waits.
func (n *Dir) announceLater() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.closed {
		n.announces.Go(n.announce)
	}
}

// current reports whether the directory is unchanged since it was last compared with the set.
func (n *Dir) current() bool {
	c := n.scanned.Load()
	if c == nil {
		return false
	}
	st, err := os.Stat(n.packs())
	if errors.Is(err, fs.ErrNotExist) {
		return c.Modified.IsZero()
	}
	return err == nil && st.ModTime().Equal(c.Modified) && c.Settled()
}

// packs returns the path of the directory of the packs.
func (n *Dir) packs() string { return filepath.Join(n.objects, "pack") }

// sync compares the directory with the set and updates the set. It reports whether the set has grown. If ctx ends
// first, sync returns the error of ctx.
func (n *Dir) sync(ctx context.Context) (grown bool, err error) {
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
		return false, nil // Another goroutine has compared the directory with the set in the meantime.
	}
	now := time.Now()
	before, err := os.Stat(n.packs())
	if errors.Is(err, fs.ErrNotExist) {
		n.scanned.Store(&odb.Scan{At: now})
		return false, nil
	}
	var paths map[string]bool
	if err == nil {
		paths, err = odb.ListPacks(n.packs())
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
			// Another process has removed the pack. The mtime of the directory has changed, so the next look-up
			// compares again.
			continue
		}
		if err != nil {
			return grown, fmt.Errorf("list named blobs of %s: %w", filepath.Base(path), err)
		}
		if n.insert(packNames{path: path, set: set}) {
			grown = true
		}
	}
	n.drop(paths, odb.Scan{Modified: before.ModTime(), At: now})
	return grown, nil
}

// drop removes from the set the packs that are not in paths. The map paths contains the packs of the directory as it
// was listed at the time of c. A directory that changes while it is listed may seem to lack both an old pack and the
// pack that replaces it. In this case, drop leaves the old packs for the next comparison.
func (n *Dir) drop(paths map[string]bool, c odb.Scan) {
	after, err := os.Stat(n.packs())
	stable := err == nil && after.ModTime().Equal(c.Modified) && c.Settled()
	n.change(func(view []packNames) []packNames {
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

// orphanAge is the age from which a file of names without a pack is useless. Such a file is normally written less than
// a second before its pack.
const orphanAge = time.Hour

// sweep removes old files of names whose packs were removed, and files that killed processes have left. It ignores
// errors.
func (n *Dir) sweep(paths map[string]bool, now time.Time) {
	dir := filepath.Dir(named.Path(filepath.Join(n.packs(), "pack")))
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	_ = disk.SweepTemp(dir)
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !strings.HasPrefix(e.Name(), "pack-") || paths[filepath.Join(n.packs(), e.Name())] {
			continue
		}
		if now.Sub(info.ModTime()) > orphanAge {
			os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

// load returns the ids of the blobs that the trees of a pack name: from the file of the pack or, if that is missing or
// damaged, by reading the pack.
func (n *Dir) load(ctx context.Context, path string) (*named.Set, error) {
	set, err := named.Open(named.Path(path), n.format)
	if err == nil || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, named.ErrDamaged) {
		return set, err
	}
	c := named.NewCollector(n.format)
	if err := odb.CollectNames(ctx, path, n.format, c); err != nil {
		return nil, err
	}
	return n.keep(path, c.Encode())
}

// Dirs contains one Dir for each objects directory that In was called for. The zero value is empty.
type Dirs struct {
	mu  sync.Mutex
	all map[string]*Dir // key: path of the objects directory
}

// In returns the Dir of the objects directory dir, whose object format is f.
func (d *Dirs) In(dir string, f object.Format) *Dir {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.all[dir]
	if n == nil {
		if d.all == nil {
			d.all = map[string]*Dir{}
		}
		n = Open(dir, f)
		d.all[dir] = n
	}
	return n
}

// Close closes every Dir that In has returned.
func (d *Dirs) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for _, n := range d.all {
		errs = append(errs, n.Close())
	}
	return errors.Join(errs...)
}
