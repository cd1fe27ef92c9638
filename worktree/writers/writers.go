// Package writers maintains the set of files that were written recently. The set is stored in a mapped file, so that it
// survives the process, and a takeover continues it.
package writers

import (
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/disk/mapped"
	"github.com/artifactfs/artifactfs/worktree/overlay"
)

// Node is the number of a file of the mount.
type Node = overlay.Node

// Set contains the files to which programs may be writing. Package worktree adds a file when the kernel reports a
// write, and lists the files for the change journal and before a checkpoint. The zero Set is empty; Open must be called
// before Add. mu protects all fields. A goroutine that holds mu acquires no other lock.
type Set struct {
	mu    sync.Mutex
	since map[Node]writer
	file  *mapped.File // slots of eight bytes, each with the node of a file or 0; nil if Open was not called
	free  []uint64     // slots that contain no file
	used  uint64       // number of slots in the file
}

// writer is the state of a file that was written recently.
type writer struct {
	at   time.Time // time of the last call of Add for the file
	slot uint64    // index of the slot that contains the file, or noSlot
}

const (
	// noSlot is the slot of a file that could not be stored in the mapped file because the disk is full. A takeover
	// forgets the file.
	noSlot    = 1<<64 - 1
	slotBytes = 8
	// chunkBits determines by how much the mapped file grows: by 1 << chunkBits bytes.
	chunkBits = 16
)

const (
	// maxFiles is the maximum number of files in the set. If programs write to more files at the same time, stat(2) may
	// return an old time for some of them.
	maxFiles = 1 << 18
	// settling is an upper bound, with a large margin, for the time from Add until stat(2) shows the write.
	settling = 2 * time.Second
)

// Open opens the set in the file at path. If continued is true, the set contains the files of the previous process;
// otherwise the set is empty.
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
	now := time.Now() // later than the last write to any file in the set, so that no file is removed too early
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

// Close closes the mapped file, which still contains the set for a takeover.
func (w *Set) Close() error {
	if w.file == nil {
		return nil
	}
	return w.file.Close()
}

// word returns the contents of a slot, in the mapped file.
func (w *Set) word(slot uint64) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&w.file.At(slot*slotBytes, slotBytes)[0]))
}

// slot returns an unused slot, or noSlot if the disk is full. The caller holds w.mu.
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

// drop removes file n from the set. The caller holds w.mu.
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

// Add adds file n to the set, or updates its time. If the set is full, an arbitrary file is removed.
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

// Forget removes file n from the set.
func (w *Set) Forget(n Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drop(n)
}

// Settle removes those files from the set to which no program has begun to write within the time settling. Before the
// call, the caller must make the kernel drop its cached attributes of these files, so that the kernel reports the next
// write.
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

// List returns the files in the set, in no particular order.
func (w *Set) List() []Node {
	w.mu.Lock()
	defer w.mu.Unlock()
	nodes := make([]Node, 0, len(w.since))
	for n := range w.since {
		nodes = append(nodes, n)
	}
	return nodes
}
