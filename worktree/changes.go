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
	"github.com/artifactfs/artifactfs/worktree/journal"
)

// Changes is what may differ from what was known at a token.
type Changes struct {
	// Token is to be asked with from now on.
	Token string
	// All says that anything may differ: the token is of another history, or too old.
	All bool
	// Paths are relative to the root. They are to be taken as git takes those of a file system monitor: one that ends in
	// a slash means everything below it, others the path alone and what its directory has. Git's untracked cache takes
	// the former for the directory's name only; therefore "DIR/*" is added for each directory that is there.
	Paths []string
	// Open are files among them that programs may still be writing to in the kernel's cache. Before anybody looks at the
	// paths the kernel must be made to forget their attributes (fuse.Server.Refresh): a write that comes after the next
	// stat is then told to Written again. One that comes before is seen by that stat, because the kernel itself keeps
	// size and mtime of what it has cached.
	Open []Node
}

// Changes tells what may differ since a token: contents, types, modes, mtimes and names; not owners, access times and
// extended attributes. What programs write through a shared mapping is told when the kernel writes it back: after
// msync(2), close(2), or half a minute.
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

// since asks the journal. What was noted before may have to be noted again after it.
func (t *Tree) since(token string) (next string, paths []string, known bool) {
	t.looked.Store(0)
	return t.journal.Since(token)
}

// StartToken is the token of the beginning of the work, when nothing differed from the base tree.
func (t *Tree) StartToken() string { return t.journal.Start() }

// withDirs adds what makes git's untracked cache forget each directory that is below those that changed as a whole.
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

// known finds the directory at a path, as far as it has been looked into.
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

func (m merged) knownBlock(dir Node) (block, bool) {
	r, ok := m.tree.table.record(dir)
	if !ok || r.kind != kindDir {
		return block{}, false
	}
	return r.block()
}

func (m merged) addDirs(dir Node, path string, to []string) []string {
	to = append(to, path+"/*")
	b, _ := m.knownBlock(dir)
	for n := b.first; n < b.first+Node(b.count); n++ {
		if r := m.tree.table.rec(n); r.kind.isDir() {
			name := m.tree.table.name(r)
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

// writing knows the files that programs may be writing to without our being told. The kernel tells that somebody writes
// (Written) once, and again after it has been given the file's attributes anew.
type writing struct {
	mu    sync.Mutex
	since map[Node]writer
	file  *mapped.File // a slot of eight bytes for each, which holds its node or 0; nil: nothing is kept
	free  []uint64     // slots below used
	used  uint64
}

type writer struct {
	at   time.Time // of the last Written
	slot uint64
}

// noSlot is that of a file that is not kept, because the disk is full: what is still written to it after a takeover may
// be told late.
const (
	noSlot    = 1<<64 - 1
	slotBytes = 8
)

const (
	// maxWriting bounds the files that are remembered. Beyond it, what a program writes to a file that it has had open for
	// long may be told late: when the kernel writes it back.
	maxWriting = 1 << 18
	// settling is how long it may take from Written until the write is seen by who looks, many times over: the kernel
	// asks, and then sets mtime, before it copies a byte.
	settling = 2 * time.Second
)

// Written notes that a program begins to write to a file in the kernel's cache.
func (t *Tree) Written(n Node) {
	if t.journal == nil || !t.gate.enter() {
		return
	}
	defer t.gate.leave()
	t.journal.MakeRoom()
	t.writing.add(n) // first: a question between the two finds it here
	var f journal.Flight
	t.note(&f, n)
	t.journal.Land(&f)
	t.notice()
}

// OnRecord says, where that costs nothing, whether the next answer of Changes will name a node anyway.
func (t *Tree) OnRecord(n Node) bool {
	var f journal.Flight
	defer t.journal.Land(&f)
	return t.journal.Covers(&f, uint64(n))
}

// Refreshed notes that the kernel has forgotten the attributes of nodes that Changes called open.
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

// open goes on with the files that a process before knew, or begins with none.
func (w *writing) open(on disk.FS, path string, continued bool) (err error) {
	w.since = make(map[Node]writer)
	if !continued {
		w.file, err = mapped.Create(on, path, smallChunkBits)
		return err
	}
	if w.file, err = mapped.Open(on, path, smallChunkBits); err != nil {
		return err
	}
	if err := w.file.Load(true); err != nil {
		return err
	}
	now := time.Now() // later than it was, so that nothing is taken for over too early
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

func (w *writing) close() error {
	if w.file == nil {
		return nil
	}
	return w.file.Close()
}

func (w *writing) word(slot uint64) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&w.file.At(slot*slotBytes, slotBytes)[0]))
}

// slot returns a slot that is free. w.mu is held.
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

// drop forgets a file. w.mu is held.
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

func (w *writing) forget(n Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drop(n)
}

func (w *writing) list() []Node {
	w.mu.Lock()
	defer w.mu.Unlock()
	nodes := make([]Node, 0, len(w.since))
	for n := range w.since {
		nodes = append(nodes, n)
	}
	return nodes
}
