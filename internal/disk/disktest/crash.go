package disktest

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/artifactfs/artifactfs/internal/disk"
)

const page = 4096

// CrashFS is a directory of the host that records what was synced, so that Crash can write what a power cut would leave:
// of a file, the synced bytes and any of the pages written since; of the names, those that SyncDir covered and any of the
// changes made since, a rename whole or not at all. It loses more than journaling file systems do.
//
// Syncs are not passed on to the host: the cut is a simulated one. Under Faulty a sync that fails gives up the pages that
// it should have written, as Linux does: later syncs do not write them before they are stored to again with other
// bytes, or by WriteAt.
type CrashFS struct {
	root string

	mu      sync.Mutex
	top     *node
	changes []change // of names, which no SyncDir has covered, in order
}

// node is a file or a directory, under whatever name, also after it was removed.
type node struct {
	file         *os.File // of a file: held open, so that a removed one can still come back
	synced       []byte
	givenUp      map[int64][]byte // pages that a failed sync gave up, by offset: not written again before they change
	names, saved map[string]*node // of a directory: now, and as of its last SyncDir
}

// location is a name in a directory.
type location struct {
	dir  *node
	name string
}

// change is a change of names: a node got the name to, lost the name from, or both.
type change struct {
	what     *node
	from, to location
}

var _ disk.FS = (*CrashFS)(nil)

// NewCrashFS returns a CrashFS of the directory root, whose present contents count as synced. Every path that is passed to
// its methods must be below root; others panic.
func NewCrashFS(root string) (*CrashFS, error) {
	c := &CrashFS{root: filepath.Clean(root)}
	var err error
	if c.top, err = load(c.root); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func load(dir string) (*node, error) {
	n := &node{names: map[string]*node{}}
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		var child *node
		path := filepath.Join(dir, e.Name())
		if e.IsDir() {
			child, err = load(path)
		} else if child, err = hold(path); err == nil {
			child.synced, err = child.contents()
		}
		if err != nil {
			return n, err
		}
		n.names[e.Name()] = child
	}
	n.saved = maps.Clone(n.names)
	return n, err
}

func hold(path string) (*node, error) {
	f, err := os.Open(path)
	return &node{file: f}, err
}

func (n *node) contents() ([]byte, error) {
	return io.ReadAll(io.NewSectionReader(n.file, 0, 1<<62))
}

// Close closes the descriptors of the CrashFS. The directory stays.
func (c *CrashFS) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := map[*node]bool{nil: true}
	var visit func(n *node)
	visit = func(n *node) {
		if seen[n] {
			return
		}
		seen[n] = true
		if n.file != nil {
			n.file.Close()
		}
		for _, child := range n.names {
			visit(child)
		}
		for _, child := range n.saved {
			visit(child)
		}
	}
	visit(c.top)
	for _, ch := range c.changes {
		visit(ch.what)
	}
	return nil
}

func (c *CrashFS) at(path string) location {
	rel, err := filepath.Rel(c.root, path)
	if err != nil || strings.HasPrefix(rel, "..") {
		panic("disktest: " + path + " is not in " + c.root)
	}
	p := location{c.top, rel}
	for {
		first, rest, more := strings.Cut(p.name, "/")
		if !more || p.dir == nil {
			return p
		}
		p = location{p.dir.names[first], rest}
	}
}

func (p location) node() *node {
	if p.dir == nil || p.name == "." {
		return p.dir
	}
	return p.dir.names[p.name]
}

// record records a change that was made on the host.
func (c *CrashFS) record(what *node, from, to location) {
	if from.dir != nil {
		delete(from.dir.names, from.name)
	}
	if to.dir != nil {
		to.dir.names[to.name] = what
	}
	c.changes = append(c.changes, change{what, from, to})
}

// OpenFile is as in disk.FS.
func (c *CrashFS) OpenFile(path string, flag int, perm os.FileMode) (disk.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, err := disk.OS.OpenFile(path, flag, perm)
	if err != nil {
		return nil, err
	}
	p := c.at(path)
	n := p.node()
	if n == nil {
		if n, err = hold(path); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		c.record(n, location{}, p)
	}
	return crashFile{f, c, n}, nil
}

// Mkdir is as in disk.FS.
func (c *CrashFS) Mkdir(path string, perm os.FileMode) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := disk.OS.Mkdir(path, perm)
	if err == nil {
		c.record(&node{names: map[string]*node{}, saved: map[string]*node{}}, location{}, c.at(path))
	}
	return err
}

// ReadDir is as in disk.FS.
func (c *CrashFS) ReadDir(path string) ([]os.DirEntry, error) { return disk.OS.ReadDir(path) }

// Stat is as in disk.FS.
func (c *CrashFS) Stat(path string) (os.FileInfo, error) { return disk.OS.Stat(path) }

// Rename is as in disk.FS.
func (c *CrashFS) Rename(old, new string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := disk.OS.Rename(old, new)
	if err == nil {
		from := c.at(old)
		c.record(from.node(), from, c.at(new))
	}
	return err
}

// Remove is as in disk.FS.
func (c *CrashFS) Remove(path string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := disk.OS.Remove(path)
	if err == nil {
		p := c.at(path)
		c.record(p.node(), p, location{})
	}
	return err
}

// BootID is as in disk.FS.
func (c *CrashFS) BootID() (string, error) { return disk.OS.BootID() }

// SyncDir is as in disk.FS. A rename out of the directory or into it is then on disk on both sides.
func (c *CrashFS) SyncDir(path string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.at(path).node()
	if d == nil {
		return &os.PathError{Op: "sync", Path: path, Err: os.ErrNotExist}
	}
	var rest []change
	for _, ch := range c.changes {
		if ch.from.dir != d && ch.to.dir != d {
			rest = append(rest, ch)
			continue
		}
		if ch.from.dir != d && ch.from.dir != nil { // moved here from elsewhere: so it has left there
			if ch.from.dir.saved[ch.from.name] == ch.what {
				delete(ch.from.dir.saved, ch.from.name)
			}
			rest = slices.DeleteFunc(rest, func(before change) bool { return before.to == ch.from })
		}
		if ch.to.dir != d && ch.to.dir != nil {
			ch.to.dir.saved[ch.to.name] = ch.what
		}
	}
	c.changes = rest
	d.saved = maps.Clone(d.names)
	return nil
}

// Crash writes to dst, which must not exist, what a power cut at this moment may leave. Equal seeds and histories leave
// the same.
func (c *CrashFS) Crash(dst string, seed uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	rnd := rand.New(rand.NewPCG(seed, 0))
	left := map[*node]map[string]*node{} // directories as they are after the cut
	names := func(d *node) map[string]*node {
		if left[d] == nil {
			left[d] = maps.Clone(d.saved)
		}
		return left[d]
	}
	odds := rnd.Float64() // sometimes nearly all of it is lost, sometimes nearly nothing
	for _, ch := range c.changes {
		if rnd.Float64() < odds {
			continue
		}
		if from := ch.from; from.dir != nil && names(from.dir)[from.name] == ch.what {
			delete(names(from.dir), from.name)
		}
		if ch.to.dir != nil {
			names(ch.to.dir)[ch.to.name] = ch.what
		}
	}
	var write func(n *node, path string) error
	write = func(n *node, path string) error {
		if n.file != nil {
			b, err := n.cut(rnd, odds)
			if err != nil {
				return err
			}
			return os.WriteFile(path, b, 0o600)
		}
		if err := os.Mkdir(path, 0o700); err != nil {
			return err
		}
		for _, name := range slices.Sorted(maps.Keys(names(n))) {
			if err := write(names(n)[name], filepath.Join(path, name)); err != nil {
				return err
			}
		}
		return nil
	}
	return write(c.top, dst)
}

// cut returns what a power cut leaves of a file.
func (n *node) cut(rnd *rand.Rand, odds float64) ([]byte, error) {
	now, err := n.contents()
	if err != nil {
		return nil, err
	}
	size := len(now)
	if size != len(n.synced) && rnd.Float64() < odds {
		size = len(n.synced)
	}
	left := make([]byte, size)
	copy(left, n.synced)
	for off := 0; off < size; off += page {
		if end := min(off+page, size); rnd.Float64() >= odds {
			clear(left[off:end])
			copy(left[off:end], now[min(off, len(now)):])
		}
	}
	return left, nil
}

type crashFile struct {
	disk.File
	fs *CrashFS
	n  *node
}

func (f crashFile) Sync() (err error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	now, err := f.n.contents()
	if err != nil {
		return err
	}
	for off, was := range f.n.givenUp {
		if bytes.Equal(was, pageOf(now, off)) {
			copy(pageOf(now, off), make([]byte, page))
			copy(pageOf(now, off), pageOf(f.n.synced, off))
			continue
		}
		delete(f.n.givenUp, off)
	}
	f.n.synced = now
	return nil
}

func (f crashFile) WriteAt(p []byte, off int64) (int, error) {
	f.fs.mu.Lock()
	for at := off / page * page; at < off+int64(len(p)); at += page {
		delete(f.n.givenUp, at)
	}
	f.fs.mu.Unlock()
	return f.File.WriteAt(p, off)
}

// giveUp is what a sync that fails does to the pages that it could not write: they count as clean from now on.
func (f crashFile) giveUp() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	now, err := f.n.contents()
	f.n.givenUp = map[int64][]byte{}
	for off := int64(0); off < int64(len(now)); off += page {
		if was := pageOf(now, off); !bytes.Equal(was, pageOf(f.n.synced, off)) {
			f.n.givenUp[off] = was
		}
	}
	return err
}

// pageOf returns the page at an offset, as far as b has it.
func pageOf(b []byte, off int64) []byte {
	return b[min(off, int64(len(b))):min(off+page, int64(len(b)))]
}

func (f crashFile) DataSync() error { return f.Sync() }
