// Package inode implements the inode table of a mount: it allocates the nodes of the base tree, and stores for each of
// them the object, the name, the size and the kernel's lookup count.
//
// # Files
//
// The table consists of two files: records of 64 bytes, whose index is the node, and the bytes of the names. Record 0
// is the header, record 1 the root of the base tree. Both files are mapped into memory. They use the byte order of the
// host, because the files of a mount are read on this host only. A third file stores the state that becomes invalid
// when the kernel no longer has the mount (kernelstate.go).
//
// The children of a directory are added as one block. Add first writes the names, then the records. Finally, one atomic
// store of the block's position into the directory's record publishes the block. If a process is killed before this
// store, the file contains bytes to which no record refers, and the next process overwrites these bytes. A node is sent
// to the kernel only after its block is published.
//
// A power loss may destroy any page that was not synced. The owner of the table calls Sync before it syncs a log that
// refers to the nodes, and the header records how many records were synced. After a power loss, blocks that follow the
// synced records and that are not completely on disk are dropped, together with everything below them (check.go). If a
// valid block follows a dropped block, the records of the dropped block stay unused, so the table may have gaps.
//
// # Further roots
//
// Beside the root of the base tree there may be roots of other trees (roots.go). Their nodes are allocated in the same
// way.
//
// # Locks
//
// Readers acquire no lock, because a published record does not change, except for atomic counters. Lock order:
//
//	Table.syncing -> Table.append
package inode

import (
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/disk/mapped"
	"github.com/artifactfs/artifactfs/worktree/overlay"
)

// Counts states how much of the base tree the table contains. Paths below a directory whose tree was never read have no
// nodes, and are not counted.
type Counts struct {
	Nodes int64 // number of paths that have a node, including the root
	Dirs  int64 // number of directories whose children have nodes
}

// Node is the number of a file, directory or symbolic link of the mount; it is also its inode number. Zero stands for
// no node.
type Node = overlay.Node

// Root is the node of the mount's root directory, in every mount.
const Root Node = 1

// ErrTable means that a file is not an inode table, is damaged, or belongs to another base tree.
var ErrTable = errors.New("invalid inode table")

// Table is an open inode table. Its methods may be called from any goroutine, except Close, after which only Shown may
// be called.
type Table struct {
	fs             disk.FS
	records, names *mapped.File
	kernel         *kernelState
	unlock         func() // releases the lock file, which is locked as long as the table is open

	nodes, dirs atomic.Int64  // see Counts
	next        atomic.Uint64 // index of the first free record

	append   sync.Mutex // held while a block is added, which copies memory and may extend the files
	nextName uint64     // offset of the first free byte of names; protected by append
	roots    []Node     // further roots, the latest first; protected by append

	syncing sync.Mutex // held during Sync, which waits for the disk and also holds append for a moment
	synced  uint64     // all records before this index are on disk; protected by syncing
}

// header is record 0, in the format of the file.
type header struct {
	magic [8]byte
	// version of the format in host byte order; on a host with the other byte order, the value is not a known version
	version uint32
	size    uint32   // size of a record, in bytes
	boot    [16]byte // boot ID that the host had when the table was last opened
	synced  uint64   // lower bound of the number of records that are on disk
	// root is the further root that was added last, or 0 if the table has no further root. rootSynced is the value of root
	// at the time of the last sync.
	root, rootSynced uint32
	// failed is 1 if the last sync has failed, after which the kernel may have marked unwritten pages as clean.
	failed uint32
	_      [12]byte
}

// tableHeader contains those fields of the header that are the same in every table of this version.
var tableHeader = header{magic: [8]byte{'A', 'F', 'S', 'n', 'o', 'd', 'e', 's'}, version: 3, size: recordSize}

const (
	chunkBits      = 20             // the files of the table grow by 1 << chunkBits bytes
	smallChunkBits = 16             // the smaller files next to the table grow by 1 << smallChunkBits bytes
	chunkSize      = 1 << chunkBits // in bytes; a name does not extend over the end of a chunk
)

const (
	recordSize = 64        // in bytes
	maxNode    = 1<<32 - 1 // highest number of a node, because nodes are stored in 32 bits
	maxName    = object.MaxNameLen
)

// These assertions fail to compile if a size changes, because the sizes are part of the file format.
var (
	_ [recordSize]byte = [unsafe.Sizeof(Record{})]byte{}
	_ [recordSize]byte = [unsafe.Sizeof(header{})]byte{}
)

// Open opens the table of the base tree root, or creates it if it does not exist. It returns ErrTable if the file is
// not a valid table, or is the table of another tree. takeOver is true if the kernel still has the mount of the
// previous process.
func Open(on disk.FS, path string, root object.ID, takeOver bool) (*Table, error) {
	boot, err := disk.BootUUID(on)
	if err != nil {
		return nil, err
	}
	t := &Table{fs: on}
	if t.records, err = mapped.Open(on, path, chunkBits); err != nil {
		return nil, err
	}
	if t.unlock, err = lock(path, takeOver); err != nil {
		return nil, errors.Join(err, t.records.Close())
	}
	if err := t.open(path, root, boot, takeOver); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// lock acquires the lock file of a table, so that no other process allocates the same nodes. The kernel releases the
// lock when all threads of a process have ended. A takeover waits for the threads of the dead process, for at most
// lockWait. One of these threads may be blocked in a request to the mount itself, which is answered only when the new
// process serves the mount (see fuse.WithoutDevice). Such a thread has closed the lock file, but keeps the memory of
// the dead process with the files that are mapped into it. Therefore the lock is on a separate file that is never
// mapped.
func lock(path string, takeOver bool) (unlock func(), err error) {
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		unlock, err := disk.TryLock(path)
		if err == nil || !takeOver || !errors.Is(err, disk.ErrLocked) || time.Since(start) > lockWait {
			return unlock, err
		}
	}
}

// lockWait is the maximum time for which a takeover waits for the lock of the dead process.
const lockWait = 5 * time.Second

// open opens the other files, and continues the existing table or creates a new table.
func (t *Table) open(path string, root object.ID, boot [16]byte, takeOver bool) (err error) {
	if t.names, err = mapped.Open(t.fs, path+".names", chunkBits); err != nil {
		return err
	}
	if t.kernel, err = openKernelState(t.fs, path+".kept", boot, takeOver); err != nil {
		return err
	}
	for _, r := range []*mapped.File{t.records, t.names} {
		if err := r.Load(t.kernel.continued); err != nil {
			return err
		}
	}
	if t.fresh() {
		err = t.start(root, boot)
	} else {
		err = t.resume(root, boot)
	}
	if err != nil {
		return err
	}
	return t.kernel.start(t, boot)
}

// fresh reports whether the creation of the table was not completed, because the file is empty or has no magic number.
func (t *Table) fresh() bool { return t.records.Len() == 0 || t.header().magic == [8]byte{} }

// start creates the table. It writes the record of the root first and the magic number of the header last, so that a
// table with the magic number is complete.
func (t *Table) start(root object.ID, boot [16]byte) error {
	if err := t.records.Grow(chunkSize); err != nil {
		return err
	}
	if err := t.names.Grow(chunkSize); err != nil {
		return err
	}
	r := t.At(Root)
	*r = Record{}
	r.parent, r.kind, r.idLen = uint32(Root), KindDir, uint8(copy(r.id[:], root.Bytes()))
	r.crc = r.sum("")
	h := t.header()
	h.version, h.size, h.boot = tableHeader.version, tableHeader.size, boot
	h.magic = tableHeader.magic
	t.nodes.Store(1)
	t.next.Store(uint64(Root) + 1)
	return nil
}

// Close closes all files and releases the lock. It may also be called after open has failed.
func (t *Table) Close() error {
	errs := []error{t.records.Close()}
	if t.names != nil {
		errs = append(errs, t.names.Close())
	}
	if t.kernel != nil {
		errs = append(errs, t.kernel.Close())
	}
	t.unlock()
	return errors.Join(errs...)
}

// Counts returns how much of the base tree the table contains.
func (t *Table) Counts() Counts { return Counts{t.nodes.Load(), t.dirs.Load()} }

// header returns record 0 as a header.
func (t *Table) header() *header { return (*header)(unsafe.Pointer(t.At(0))) }

// At returns the record of a node, which must be within the file.
func (t *Table) At(n Node) *Record {
	return (*Record)(unsafe.Pointer(&t.records.At(uint64(n)*recordSize, recordSize)[0]))
}

// Record returns the record of a node. It returns false if the table does not contain the node.
func (t *Table) Record(n Node) (*Record, bool) {
	if n < Root || uint64(n) >= t.next.Load() {
		return nil, false
	}
	r := t.At(n)
	return r, r.kind != 0
}

// ForgetSizes removes the sizes of all files from the table, also after a power loss. It is called before any other
// goroutine uses the table.
func (t *Table) ForgetSizes() error {
	forgot := false
	for n := Root; uint64(n) < t.next.Load(); n++ {
		if r := t.At(n); r.kind != 0 && !r.kind.IsDir() && r.state.Load() != 0 {
			r.state.Store(0)
			forgot = true
		}
	}
	if !forgot {
		return nil
	}
	if err := t.records.Sync(); err != nil {
		return fmt.Errorf("forget sizes: %w", err)
	}
	return nil
}

// Name returns the name of a record. The string points into the mapped file, and may be used until Close.
func (t *Table) Name(r *Record) string {
	n := r.name & maxName
	if n == 0 {
		return ""
	}
	return unsafe.String(&t.names.At(r.name>>8, n)[0], int(n))
}

// Path returns the path of a published node, relative to the root of its tree.
func (t *Table) Path(n Node) string {
	size := 0
	for at := n; !t.isRoot(at); at = Node(t.At(at).parent) {
		size += int(t.At(at).name&maxName) + 1
	}
	if size == 0 {
		return ""
	}
	b := make([]byte, size-1)
	end := len(b)
	for at := n; !t.isRoot(at); at = Node(t.At(at).parent) {
		name := t.Name(t.At(at))
		end -= len(name)
		copy(b[end:], name)
		if end > 0 {
			end--
			b[end] = '/'
		}
	}
	return string(b)
}

// Search returns the node in block b that has the given name, by binary search. It returns false if no node in b has
// this name.
func (t *Table) Search(b Block, name string) (Node, bool) {
	i, ok := sort.Find(b.Count, func(i int) int {
		return strings.Compare(name, t.Name(t.At(b.First+Node(i))))
	})
	if !ok {
		return 0, false
	}
	return b.First + Node(i), true
}

// Add publishes the children of a directory as a block. entries must be in byte order of their names. If another
// goroutine has added the block already, Add returns that block.
func (t *Table) Add(dir Node, entries []object.TreeEntry) (Block, error) {
	if err := checkEntries(entries); err != nil {
		return Block{}, err
	}
	t.append.Lock()
	defer t.append.Unlock()
	parent := t.At(dir)
	if b, ok := parent.Block(); ok {
		return b, nil
	}
	t.kernel.beginAdd()
	defer t.kernel.endAdd(t)
	b, nextName := Block{Node(t.next.Load()), len(entries)}, t.nextName
	if uint64(b.First)+uint64(b.Count) > maxNode {
		return Block{}, fmt.Errorf("add %d nodes to directory %d: table is full", b.Count, b.First)
	}
	if err := t.grow(b.First + Node(b.Count)); err != nil {
		return Block{}, err
	}
	for i, e := range entries {
		at, err := t.addName(e.Name)
		if err != nil {
			// give back the space of the names, which otherwise would stay unused after each attempt on a full disk
			t.nextName = nextName
			return Block{}, err
		}
		r := t.At(b.First + Node(i))
		*r = Record{name: at<<8 | uint64(len(e.Name)), parent: uint32(dir)}
		r.kind, _ = KindOf(e.Mode)
		r.idLen = uint8(copy(r.id[:], e.ID.Bytes()))
		r.crc = r.sum(e.Name)
	}
	t.next.Store(uint64(b.First) + uint64(b.Count))
	// this store publishes the block, so that other goroutines can find it
	parent.state.Store(uint64(b.First)<<32 | uint64(b.Count))
	t.nodes.Add(int64(b.Count))
	t.dirs.Add(1)
	return b, nil
}

// grow makes the files large enough for all nodes whose number is less than next.
func (t *Table) grow(next Node) error {
	return t.records.Grow(int64(next) * recordSize)
}

// addName appends a name to the file of names and returns its offset. A name does not extend over the end of a chunk.
// The caller holds t.append.
func (t *Table) addName(name string) (uint64, error) {
	at := t.nextName
	if at%chunkSize+uint64(len(name)) > chunkSize {
		at += chunkSize - at%chunkSize
	}
	if err := t.names.Grow(int64(at) + int64(len(name))); err != nil {
		return 0, err
	}
	copy(t.names.At(at, uint64(len(name))), name)
	t.nextName = at + uint64(len(name))
	return at, nil
}
