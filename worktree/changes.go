package worktree

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/disk/mapped"
	"github.com/artifactfs/artifactfs/overlay"
	"github.com/artifactfs/artifactfs/worktree/inode"
	"github.com/artifactfs/artifactfs/worktree/journal"
)

// Changes is the set of paths that may have changed since a journal position.
type Changes struct {
	// Token is the journal position to pass to the next call.
	Token string
	// All reports that every path may have changed: the position is of another epoch, or too old.
	All bool
	// Paths are relative to the root, in the form that git expects from a file system monitor: a path that ends in a slash
	// stands for everything below it, any other for itself and the listing of its directory. Git's untracked cache takes a
	// path with a slash for the name of the directory only; therefore "DIR/*" is added for each directory that exists
	// below.
	Paths []string
	// Open are those of the changed files that programs may still be writing to in the kernel's cache. Before a program looks
	// at the paths, the kernel must drop its cached attributes of these files (fuse.Server.Refresh). The first write after the
	// next stat then calls Written again. A write before that stat is visible in it, because the kernel itself keeps size and
	// mtime of a file that it has cached.
	Open []Node
}

// Changes returns the paths whose contents, type, mode, mtime or name may have changed since a journal position. Changes of
// owners, access times and extended attributes are not recorded. A write through a shared mapping is reported when the kernel
// writes it back: after msync(2), close(2), or half a minute.
func (t *Tree) Changes(token string) (Changes, error) {
	if !t.gate.enter() {
		return Changes{}, ErrClosed
	}
	defer t.gate.leave()
	c := Changes{Open: t.writing.list()}
	t.noteAll(c.Open)
	var known bool
	c.Token, c.Paths, known = t.since(token)
	c.All = !known
	t.view(func(m merged) { c.Paths = m.withDirs(c.Paths) })
	return c, nil
}

// since queries the journal, and resets the count of names that noteNames may search for one position.
func (t *Tree) since(token string) (next string, paths []string, known bool) {
	t.looked.Store(0)
	return t.journal.Since(token)
}

// StartToken returns the journal position at which nothing differed from the base tree.
func (t *Tree) StartToken() string { return t.journal.Start() }

// withDirs adds "DIR/*" for each directory below the paths that end in a slash, so that git's untracked cache drops its entry.
func (m merged) withDirs(paths []string) []string {
	for _, path := range paths[:len(paths):len(paths)] {
		dir, ok := strings.CutSuffix(path, "/")
		if !ok {
			continue
		}
		if n, ok := m.known(dir); ok {
			paths = m.addDirs(n, dir, paths)
		}
	}
	return paths
}

// known returns the directory at a path. It does not wait for trees, and returns false if one on the path was not read yet.
func (m merged) known(path string) (Node, bool) {
	n := Root
	for name := range strings.SplitSeq(path, "/") {
		b, _ := m.knownBlock(n)
		var ok bool
		if n, ok = m.entry(n, b, name); !ok {
			return 0, false
		}
	}
	in, ok := m.inode(n)
	return n, ok && isDir(&in)
}

// knownBlock returns the block of a directory if it was read.
func (m merged) knownBlock(dir Node) (inode.Block, bool) {
	r, ok := m.tree.Table.Record(dir)
	if !ok || r.Kind() != inode.KindDir {
		return inode.Block{}, false
	}
	return r.Block()
}

// addDirs appends "DIR/*" for the directory at path and for each directory below it that was read.
func (m merged) addDirs(dir Node, path string, to []string) []string {
	to = append(to, path+"/*")
	b, _ := m.knownBlock(dir)
	for n := b.First; n < b.First+Node(b.Count); n++ {
		if r := m.tree.Table.At(n); r.Kind().IsDir() {
			name := m.tree.Table.Name(r)
			if _, p := m.Entry(dir, name); p == overlay.Unknown {
				to = m.addDirs(n, path+"/"+name, to)
			}
		}
	}
	m.ReadDir(dir, 0, func(_ uint64, name string, n Node, p overlay.Presence) bool {
		if in, ok := m.inode(n); p == overlay.Present && ok && isDir(&in) {
			to = m.addDirs(n, path+"/"+name, to)
		}
		return true
	})
	return to
}

// writing is the set of files that programs may be writing to in the kernel's cache, so that the Tree is not called. The
// kernel reports the first write to a file (Written). It reports a later write only if the file's attributes were sent to the
// kernel in between.
type writing struct {
	// mu guards all fields. It is a leaf in the lock order.
	mu    sync.Mutex
	since map[Node]writer
	file  *mapped.File // slots of eight bytes, each with the node of a file or 0; nil: the Tree has no journal
	free  []uint64     // unused slots below used
	used  uint64       // number of slots in the file
}

// writer is a file that programs may be writing to.
type writer struct {
	at   time.Time // time of the last Written
	slot uint64    // index of its slot, or noSlot
}

const (
	// noSlot is the slot of a file that could not be stored because the disk is full. After a takeover, a write to it may
	// be reported late.
	noSlot    = 1<<64 - 1
	slotBytes = 8
	// writersChunkBits is the binary logarithm of the number of bytes by which the file grows.
	writersChunkBits = 16
)

const (
	// maxWriting is the maximum number of files in the set. If there are more, a write to a file that a program has had open
	// for long may be reported late: when the kernel writes the data back.
	maxWriting = 1 << 18
	// settling is an upper bound for the time from Written until a stat shows the write, with a large margin: the kernel first
	// causes the call of Written, then sets the mtime, and only then copies the data.
	settling = 2 * time.Second
)

// Written records that a program begins to write to a file in the kernel's cache.
func (t *Tree) Written(n Node) {
	if t.journal == nil || !t.gate.enter() {
		return
	}
	defer t.gate.leave()
	t.journal.MakeRoom()
	t.writing.add(n) // before the record, so that a query between the two steps finds the file
	var f journal.Flight
	t.note(&f, n)
	t.journal.Land(&f)
	t.notice()
}

// OnRecord reports whether the next result of Changes will contain the node anyway. It checks only the node's own record,
// which is cheap. It may return false although the record of a directory covers the node.
func (t *Tree) OnRecord(n Node) bool {
	var f journal.Flight
	defer t.journal.Land(&f)
	return t.journal.Covers(&f, uint64(n))
}

// Refreshed records that the kernel has dropped the attributes of nodes that Changes returned as Open. Files without a
// recent Written leave the set.
func (t *Tree) Refreshed(nodes []Node) {
	w, old := &t.writing, time.Now().Add(-settling)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range nodes {
		if writer, ok := w.since[n]; ok && writer.at.Before(old) {
			w.drop(n)
		}
	}
}

// open continues with the set of the previous process, or creates an empty one.
func (w *writing) open(on disk.FS, path string, continued bool) (err error) {
	w.since = make(map[Node]writer)
	if !continued {
		w.file, err = mapped.Create(on, path, writersChunkBits)
		return err
	}
	if w.file, err = mapped.Open(on, path, writersChunkBits); err != nil {
		return err
	}
	if err := w.file.Load(true); err != nil {
		return err
	}
	now := time.Now() // later than the true time, so that no file leaves the set too early
	w.used = uint64(w.file.Len()) / slotBytes
	for slot := range w.used {
		n := Node(w.word(slot).Load())
		if _, twice := w.since[n]; n == 0 || twice {
			w.word(slot).Store(0)
			w.free = append(w.free, slot)
			continue
		}
		w.since[n] = writer{now, slot}
	}
	return nil
}

// close closes the file; the set stays in it for a takeover.
func (w *writing) close() error {
	if w.file == nil {
		return nil
	}
	return w.file.Close()
}

// word returns the content of a slot, in the mapping.
func (w *writing) word(slot uint64) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&w.file.At(slot*slotBytes, slotBytes)[0]))
}

// slot returns a free slot, or noSlot if the disk is full. w.mu is held.
func (w *writing) slot() uint64 {
	if k := len(w.free); k > 0 {
		slot := w.free[k-1]
		w.free = w.free[:k-1]
		return slot
	}
	if w.file.Grow(int64(w.used+1)*slotBytes) != nil {
		return noSlot
	}
	w.used++
	return w.used - 1
}

// drop removes a file from the set. w.mu is held.
func (w *writing) drop(n Node) {
	writer, ok := w.since[n]
	if !ok {
		return
	}
	delete(w.since, n)
	if writer.slot != noSlot {
		w.word(writer.slot).Store(0)
		w.free = append(w.free, writer.slot)
	}
}

// add adds a file to the set, or updates its time. If the set is full, an arbitrary file is dropped.
func (w *writing) add(n Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if before, ok := w.since[n]; ok {
		w.since[n] = writer{time.Now(), before.slot}
		return
	}
	if len(w.since) >= maxWriting {
		for other := range w.since {
			w.drop(other)
			break
		}
	}
	slot := w.slot()
	if slot != noSlot {
		w.word(slot).Store(uint64(n))
	}
	w.since[n] = writer{time.Now(), slot}
}

// forget removes a file from the set.
func (w *writing) forget(n Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drop(n)
}

// list returns the files of the set, in no particular order.
func (w *writing) list() []Node {
	w.mu.Lock()
	defer w.mu.Unlock()
	nodes := make([]Node, 0, len(w.since))
	for n := range w.since {
		nodes = append(nodes, n)
	}
	return nodes
}
