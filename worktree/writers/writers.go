// Package writers keeps the set of files that programs may be writing to in the kernel's cache.
//
// With a write-back cache the kernel reports the first write to a file. It reports a later write only if the file's attributes
// were sent to the kernel in between. The set is stored in a mapped file, so that it survives the process: the next process
// continues with it when it takes the mount over.
package writers

import (
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/disk/mapped"
	"github.com/artifactfs/artifactfs/overlay"
)

// Node is the number of a file.
type Node = overlay.Node

// Set is the set of files that programs may be writing to. Package worktree adds a file when the kernel reports a write, and
// lists the files for the change journal and before a checkpoint. The zero Set is empty; Add requires
// Open. mu guards all fields and is a leaf of the lock order.
type Set struct {
	mu    sync.Mutex
	since map[Node]writer
	file  *mapped.File // slots of eight bytes, each with the node of a file or 0; nil: the Set was not opened
	free  []uint64     // unused slots below used
	used  uint64       // number of slots in the file
}

// writer is a file that programs may be writing to.
type writer struct {
	at   time.Time // time of the last Add
	slot uint64    // index of its slot, or noSlot
}

const (
	// noSlot is the slot of a file that could not be stored because the disk is full. After a takeover, a write to it may
	// be reported late.
	noSlot    = 1<<64 - 1
	slotBytes = 8
	// chunkBits is the binary logarithm of the number of bytes by which the file grows.
	chunkBits = 16
)

const (
	// maxFiles is the maximum number of files in the set. If there are more, a write to a file that a program has had open
	// for long may be reported late: when the kernel writes the data back.
	maxFiles = 1 << 18
	// settling is an upper bound for the time from Add until a stat shows the write, with a large margin: the kernel first
	// reports the write, then sets the mtime, and only then copies the data.
	settling = 2 * time.Second
)

// Open continues with the set of the previous process, or creates an empty one.
func (w *Set) Open(on disk.FS, path string, continued bool) (err error) {
	w.since = make(map[Node]writer)
	if !continued {
		w.file, err = mapped.Create(on, path, chunkBits)
		return err
	}
	if w.file, err = mapped.Open(on, path, chunkBits); err != nil {
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

// Close closes the file. The set stays in the file for a takeover.
func (w *Set) Close() error {
	if w.file == nil {
		return nil
	}
	return w.file.Close()
}

// word returns the content of a slot, in the mapping.
func (w *Set) word(slot uint64) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&w.file.At(slot*slotBytes, slotBytes)[0]))
}

// slot returns a free slot, or noSlot if the disk is full. The caller holds w.mu.
func (w *Set) slot() uint64 {
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

// drop removes a file from the set. The caller holds w.mu.
func (w *Set) drop(n Node) {
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

// Add adds a file to the set, or updates its time. If the set is full, an arbitrary file is dropped.
func (w *Set) Add(n Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if before, ok := w.since[n]; ok {
		w.since[n] = writer{time.Now(), before.slot}
		return
	}
	if len(w.since) >= maxFiles {
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

// Forget removes a file from the set.
func (w *Set) Forget(n Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drop(n)
}

// Settle removes those of the nodes from the set to which no program began to write within settling. The caller has made the
// kernel drop the attributes of these files, so that the kernel reports the next write.
func (w *Set) Settle(nodes []Node) {
	old := time.Now().Add(-settling)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range nodes {
		if writer, ok := w.since[n]; ok && writer.at.Before(old) {
			w.drop(n)
		}
	}
}

// List returns the files of the set, in no particular order.
func (w *Set) List() []Node {
	w.mu.Lock()
	defer w.mu.Unlock()
	nodes := make([]Node, 0, len(w.since))
	for n := range w.since {
		nodes = append(nodes, n)
	}
	return nodes
}
