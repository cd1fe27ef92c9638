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

// page is the size of a page in bytes. A simulated power cut keeps or loses a page as a whole.
const page = 4096

// CrashFS is a directory of the host that records what was synced, so that Crash can write the state that a power cut
// would leave. A power cut keeps the synced bytes of a file and a random selection of the pages that were written since
// the sync. It keeps the names in a directory that SyncDir has written and a random selection of the changes since
// then; a rename is kept or lost as a whole. CrashFS loses more than journaling file systems do.
//
// Syncs are not passed on to the host, because the power cut is only simulated. If Faulty makes a sync fail, the pages
// that it should have written are given up, as on Linux: later syncs do not write such a page until its bytes change or
// WriteAt writes to it.
type CrashFS struct {
	root string

	mu      sync.Mutex
	top     *node
	changes []change // changes of names that no SyncDir has covered yet, oldest first
}

// node is a file or directory. It is independent of its names, and stays in use after its last name was removed.
type node struct {
	// the open file, so that Crash can restore a file that was removed; nil for a directory
	file   *os.File
	synced []byte // contents of a file at its last sync
	// contents of pages that a failed sync has given up, by offset; a sync does not write such a page until its
	// contents change
	givenUp      map[int64][]byte
	names, saved map[string]*node // entries of a directory now, and at the last SyncDir; nil for a file
}

// location is an entry of a directory: the directory and a name in it.
type location struct {
	dir  *node
	name string
}

// change is a change of names: the node has received the name to, has lost the name from, or both.
type change struct {
	what     *node
	from, to location
}

var _ disk.FS = (*CrashFS)(nil)

// NewCrashFS returns a CrashFS for the directory root, whose current contents count as synced. Every path that is
// passed to its methods must be below root; the methods panic for any other path.
func NewCrashFS(root string) (*CrashFS, error) {
	c := &CrashFS{root: filepath.Clean(root)}
	var err error
	if c.top, err = load(c.root); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// load returns the node of a directory of the host, with the nodes of all files and directories below it, as if they
// had just been synced.
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

// hold opens a file of the host, and returns a new node for it. No content of the node is recorded as synced.
func hold(path string) (*node, error) {
	f, err := os.Open(path)
	return &node{file: f}, err
}

// contents returns the current contents of a file.
func (n *node) contents() ([]byte, error) {
	return io.ReadAll(io.NewSectionReader(n.file, 0, 1<<62))
}

// Close closes the descriptors of the CrashFS. It does not remove the directory.
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

// at returns the location of a path, which must be below root. The field dir of the result is nil if the parent
// directory does not exist.
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

// node returns the node at a location, or nil if there is none.
func (p location) node() *node {
	if p.dir == nil || p.name == "." {
		return p.dir
	}
	return p.dir.names[p.name]
}

// record appends a change of names, which was already made on the host, to c.changes.
func (c *CrashFS) record(what *node, from, to location) {
	if from.dir != nil {
		delete(from.dir.names, from.name)
	}
	if to.dir != nil {
		to.dir.names[to.name] = what
	}
	c.changes = append(c.changes, change{what, from, to})
}

// OpenFile implements disk.FS. It records the name of a new file.
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

// Mkdir implements disk.FS and records the new name.
func (c *CrashFS) Mkdir(path string, perm os.FileMode) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := disk.OS.Mkdir(path, perm)
	if err == nil {
		c.record(&node{names: map[string]*node{}, saved: map[string]*node{}}, location{}, c.at(path))
	}
	return err
}

// ReadDir implements disk.FS. It returns the entries on the host.
func (c *CrashFS) ReadDir(path string) ([]os.DirEntry, error) { return disk.OS.ReadDir(path) }

// Stat implements disk.FS. It returns the attributes on the host.
func (c *CrashFS) Stat(path string) (os.FileInfo, error) { return disk.OS.Stat(path) }

// Rename implements disk.FS and records the change of names.
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

// Link implements disk.FS and records the new name.
func (c *CrashFS) Link(old, new string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := disk.OS.Link(old, new)
	if err == nil {
		c.record(c.at(old).node(), location{}, c.at(new))
	}
	return err
}

// Remove implements disk.FS and records the change of names.
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

// BootID implements disk.FS. It returns the boot ID of the host.
func (c *CrashFS) BootID() (string, error) { return disk.OS.BootID() }

// SyncDir implements disk.FS. It records the current names of a directory as saved. A rename from or to another
// directory is then saved in both directories.
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
		// the entry was moved here from another directory, so its old name is removed from the saved names of that
		// directory
		if ch.from.dir != d && ch.from.dir != nil {
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

// Crash creates the directory dst, which must not exist, with a state that a power cut at this moment may leave. The
// result depends only on the seed and on the earlier operations.
func (c *CrashFS) Crash(dst string, seed uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	rnd := rand.New(rand.NewPCG(seed, 0))
	left := map[*node]map[string]*node{} // names of each directory after the power cut
	names := func(d *node) map[string]*node {
		if left[d] == nil {
			left[d] = maps.Clone(d.saved)
		}
		return left[d]
	}
	odds := rnd.Float64() // probability that a change is lost; sometimes it is nearly 1, sometimes nearly 0
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

// cut returns the contents of a file after a power cut. odds is the probability that a change is lost.
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

// crashFile is an open file of a CrashFS.
type crashFile struct {
	disk.File
	fs *CrashFS
	n  *node
}

// Sync records the contents of the file as synced, except for pages that were given up and have not changed since.
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

// WriteAt writes to the file. The pages that it changes do not count as given up any more.
func (f crashFile) WriteAt(p []byte, off int64) (int, error) {
	f.fs.mu.Lock()
	for at := off / page * page; at < off+int64(len(p)); at += page {
		delete(f.n.givenUp, at)
	}
	f.fs.mu.Unlock()
	return f.File.WriteAt(p, off)
}

// giveUp marks the pages that differ from the synced contents as given up. Later syncs then do not write these pages,
// as after a failed sync on Linux.
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

// pageOf returns the part of b that is in the page at offset off, which may be shorter than a page.
func pageOf(b []byte, off int64) []byte {
	return b[min(off, int64(len(b))):min(off+page, int64(len(b)))]
}

// DataSync records the contents of the file as synced, like Sync.
func (f crashFile) DataSync() error { return f.Sync() }
