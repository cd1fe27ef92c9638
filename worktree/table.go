package worktree

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/disk/mapped"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/overlay"
)

// Counts is how much of the base tree the table contains. Paths below a directory that was never read are not counted.
type Counts struct {
	Nodes int64 // paths that have a node, including the root
	Dirs  int64 // directories whose children have nodes
}

// Node is the number of a file, directory or symbolic link of the mount; it is also its inode number. Zero is no node.
type Node = overlay.Node

// Root is the node of the mount's root directory, in every mount.
const Root Node = 1

// ErrTable is returned for a file that is not an inode table, a damaged one, or one of another base tree.
var ErrTable = errors.New("bad inode table")

// table allocates the nodes of the base tree. It consists of two files: records of 64 bytes, whose index is the node, and the
// bytes of the names. Record 0 is the header, record 1 the root. Both files are in the byte order of the host and are read
// only on that host.
//
// The children of a directory are added as one block: first the names, then the records, and last, by one atomic store into
// the directory's own record, the position of the block. A process that is killed before that store leaves bytes that nothing
// refers to and that the successor overwrites. No node of such an unpublished block was ever sent to the kernel.
//
// A power loss may destroy any page that was not synced. The table is synced before a log that refers to its nodes is
// (table.sync), and its header records how many records were synced. Behind these, blocks that did not reach the disk are
// dropped together with everything below them (check.go). Their numbers are not used again, so the records have gaps.
//
// Beside the root of the base tree there may be roots of other trees (roots.go), whose nodes are allocated in the same way.
type table struct {
	fs             disk.FS
	records, names *mapped.File
	kernel         *kernelState
	unlock         func() // releases the lock file that is held as long as the table is open

	nodes, dirs atomic.Int64  // see Counts
	next        atomic.Uint64 // index of the first free record

	append   sync.Mutex // held while a block is added (memory copies, growth of the files), never during a call of a Source
	nextName uint64     // offset of the first free byte of names; guarded by append
	roots    []Node     // further roots, the latest first; guarded by append

	syncing sync.Mutex // held during sync, which waits only for the disk and takes append for a moment
	synced  uint64     // value of next up to which all records were synced; guarded by syncing
}

// record describes one node, in the format of the file. All fields except state, touched and lookups are constant once the
// record is published.
type record struct {
	id      [32]byte
	state   atomic.Uint64 // file, link: size in bytes + 1; directory: first child << 32 | number of children; 0: unknown
	name    uint64        // offset in names << 8 | length; of a further root: the previous root << 8
	parent  uint32        // node of the directory; the record's own node if it is a root
	crc     uint32        // crc32c of the name and of id, name, parent, kind and idLen
	kind    kind          // 0: the record is not a node
	idLen   uint8
	touched uint8 // counter that touch increments only to make the page dirty
	_       [1]byte
	lookups atomic.Uint32 // the kernel's lookup count, which a takeover continues
}

// header is record 0, in the format of the file.
type header struct {
	magic   [8]byte
	version uint32   // in host byte order: a table of a host with the other byte order has no known version
	size    uint32   // size of a record, in bytes
	boot    [16]byte // boot ID of the host when the table was last opened
	synced  uint64   // lower bound of the number of records that are on disk
	// root is the latest of the further roots, rootSynced its value at the last sync; 0: no further root.
	root, rootSynced uint32
	failed           uint32 // 1: the last sync failed, and the kernel may have marked unwritten pages as clean
	_                [12]byte
}

// tableHeader contains the constant fields of a header that this version writes.
var tableHeader = header{magic: [8]byte{'A', 'F', 'S', 'n', 'o', 'd', 'e', 's'}, version: versionRoots, size: recordSize}

const (
	versionOneTree = 2 // format without further roots, which can still be read
	versionRoots   = 3 // format with further roots
)

const (
	chunkBits      = 20             // binary logarithm of the number of bytes by which the files of the table grow
	smallChunkBits = 16             // the same for the smaller files beside the table
	chunkSize      = 1 << chunkBits // in bytes; no name straddles two chunks
)

const (
	recordSize = 64        // in bytes
	maxNode    = 1<<32 - 1 // highest node: nodes are stored in 32 bits
	maxName    = object.MaxNameLen
)

// The sizes are part of the file format.
var (
	_ [recordSize]byte = [unsafe.Sizeof(record{})]byte{}
	_ [recordSize]byte = [unsafe.Sizeof(header{})]byte{}
)

// kind is the type of a node, as git's tree entries distinguish it. The values are part of the file format.
type kind uint8

const (
	kindFile kind = iota + 1
	kindExec
	kindSymlink
	kindDir
	kindGitlink // submodule, which the mount shows as an empty directory
)

// isDir reports whether the mount shows the node as a directory.
func (k kind) isDir() bool { return k == kindDir || k == kindGitlink }

// kindOf returns the kind of a tree entry by its git mode.
func kindOf(m object.Mode) (kind, bool) {
	switch m {
	case object.ModeFile:
		return kindFile, true
	case object.ModeExec:
		return kindExec, true
	case object.ModeSymlink:
		return kindSymlink, true
	case object.ModeDir:
		return kindDir, true
	case object.ModeGitlink:
		return kindGitlink, true
	}
	return 0, false
}

// GitMode returns the git mode of a kind.
func (k kind) GitMode() object.Mode {
	switch k {
	case kindFile:
		return object.ModeFile
	case kindExec:
		return object.ModeExec
	case kindSymlink:
		return object.ModeSymlink
	case kindDir:
		return object.ModeDir
	case kindGitlink:
		return object.ModeGitlink
	}
	panic(fmt.Sprintf("kind %d", k)) // unreachable: check refuses a table with any other kind
}

// statMode returns the st_mode of a node of this kind. Permissions are those of a checkout under umask 022.
func (k kind) statMode() uint32 {
	switch k {
	case kindFile:
		return syscall.S_IFREG | 0o644
	case kindExec:
		return syscall.S_IFREG | 0o755
	case kindSymlink:
		return syscall.S_IFLNK | 0o777
	case kindDir, kindGitlink: // a submodule that is not checked out is an empty directory
		return syscall.S_IFDIR | 0o755
	}
	panic(fmt.Sprintf("kind %d", k)) // unreachable: check refuses a table with any other kind
}

// block is the position of a directory's children in the table: count consecutive nodes from first on.
type block struct {
	first Node
	count int
}

// Kind returns the kind of the node.
func (r *record) Kind() kind { return r.kind }

// dir returns the directory that contains the node in its tree; for a root, the root itself.
func (r *record) dir() Node { return Node(r.parent) }

// block returns the block of a directory, and false if its tree was not read yet.
func (r *record) block() (block, bool) {
	s := r.state.Load()
	return block{Node(s >> 32), int(s & maxNode)}, s != 0
}

// size returns the length of a file's contents in bytes, and false if it is not known.
func (r *record) size() (int64, bool) {
	s := r.state.Load()
	return int64(s - 1), s != 0
}

// setSize records the length of a file's contents, in bytes. Concurrent callers may store it.
func (r *record) setSize(n int64) { r.state.Store(uint64(n) + 1) }

// remember increments the kernel's lookup count of the node.
func (r *record) remember() { r.lookups.Add(1) }

// forget decrements the lookup count by k, but not below zero. It reports whether the count is zero now.
func (r *record) forget(k uint64) (last bool) {
	for {
		have := r.lookups.Load()
		left := have - uint32(min(k, uint64(have)))
		if r.lookups.CompareAndSwap(have, left) {
			return left == 0
		}
	}
}

// known reports whether the kernel holds a reference to the node.
func (r *record) known() bool { return r.lookups.Load() > 0 }

// objectID returns the object ID of a node: the zero ID for the root of an empty base tree.
func (r *record) objectID() object.ID {
	id, _ := object.FromBytes(r.id[:r.idLen])
	return id
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sum returns the checksum of a record with this name (record.crc).
func (r *record) sum(name string) uint32 {
	var b [32 + 8 + 4 + 2]byte
	n := copy(b[:], r.id[:])
	binary.NativeEndian.PutUint64(b[n:], r.name)
	binary.NativeEndian.PutUint32(b[n+8:], r.parent)
	b[n+12], b[n+13] = byte(r.kind), r.idLen
	return crc32.Update(crc32.Update(0, castagnoli, b[:]), castagnoli, unsafe.Slice(unsafe.StringData(name), len(name)))
}

// openTable opens the table of a base tree, or creates it if it does not exist. It returns ErrTable for a file that is not
// a valid table or is a table of another tree. takeOver means that the kernel still has the mount of the previous process.
func openTable(on disk.FS, path string, root object.ID, takeOver bool) (*table, error) {
	boot, err := disk.BootUUID(on)
	if err != nil {
		return nil, err
	}
	t := &table{fs: on}
	if t.records, err = mapped.Open(on, path, chunkBits); err != nil {
		return nil, err
	}
	if t.unlock, err = lock(path, takeOver); err != nil {
		return nil, errors.Join(err, t.records.Close())
	}
	if err := t.open(path, root, boot, takeOver); err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

// lock takes the lock file of a table, so that no second process allocates the same nodes. The kernel releases the lock
// when all threads of the process have ended. A takeover waits up to lockWait for the threads of the dead process. One of
// these threads may be blocked until the mount, which this process serves, answers it (fuse.WithoutDevice). Such a thread
// has closed the lock file, but keeps the process's memory and all files mapped into it. For that reason the lock is on a
// separate file, which is never mapped.
func lock(path string, takeOver bool) (unlock func(), err error) {
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		unlock, err := disk.TryLock(path)
		if err == nil || !takeOver || !errors.Is(err, disk.ErrLocked) || time.Since(start) > lockWait {
			return unlock, err
		}
	}
}

// lockWait is the longest time that a takeover waits for the lock of the dead process.
const lockWait = 5 * time.Second

// open opens the remaining files, and continues the table or creates a new one.
func (t *table) open(path string, root object.ID, boot [16]byte, takeOver bool) (err error) {
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

// fresh reports whether the table was never completely created.
func (t *table) fresh() bool { return t.records.Len() == 0 || t.header().magic == [8]byte{} }

// start creates the table: the root, then the header with its magic last. So a table is complete or has no magic (fresh).
func (t *table) start(root object.ID, boot [16]byte) error {
	if err := t.records.Grow(chunkSize); err != nil {
		return err
	}
	if err := t.names.Grow(chunkSize); err != nil {
		return err
	}
	r := t.rec(Root)
	*r = record{}
	r.parent, r.kind, r.idLen = uint32(Root), kindDir, uint8(copy(r.id[:], root.Bytes()))
	r.crc = r.sum("")
	h := t.header()
	h.version, h.size, h.boot = tableHeader.version, tableHeader.size, boot
	h.magic = tableHeader.magic
	t.nodes.Store(1)
	t.next.Store(uint64(Root) + 1)
	return nil
}

// close closes all files and releases the lock. It must work after a failed open as well.
func (t *table) close() error {
	errs := []error{t.records.Close()}
	if t.names != nil {
		errs = append(errs, t.names.Close())
	}
	if t.kernel != nil {
		errs = append(errs, t.kernel.close())
	}
	t.unlock()
	return errors.Join(errs...)
}

// counts returns how much of the base tree the table contains.
func (t *table) counts() Counts { return Counts{t.nodes.Load(), t.dirs.Load()} }

// header returns record 0 as a header.
func (t *table) header() *header { return (*header)(unsafe.Pointer(t.rec(0))) }

// rec returns the record of a node that is known to lie in the file.
func (t *table) rec(n Node) *record {
	return (*record)(unsafe.Pointer(&t.records.At(uint64(n)*recordSize, recordSize)[0]))
}

// record returns the record of a node, and false if the node is not in the table.
func (t *table) record(n Node) (*record, bool) {
	if n < Root || uint64(n) >= t.next.Load() {
		return nil, false
	}
	r := t.rec(n)
	return r, r.kind != 0
}

// name returns the name of a record. The string is memory of the mapping and is valid only inside the gate.
func (t *table) name(r *record) string {
	n := r.name & maxName
	if n == 0 {
		return ""
	}
	return unsafe.String(&t.names.At(r.name>>8, n)[0], int(n))
}

// path returns the path of a published node, relative to the root of its tree.
func (t *table) path(n Node) string {
	size := 0
	for at := n; !t.isRoot(at); at = Node(t.rec(at).parent) {
		size += int(t.rec(at).name&maxName) + 1
	}
	if size == 0 {
		return ""
	}
	b := make([]byte, size-1)
	end := len(b)
	for at := n; !t.isRoot(at); at = Node(t.rec(at).parent) {
		name := t.name(t.rec(at))
		end -= len(name)
		copy(b[end:], name)
		if end > 0 {
			end--
			b[end] = '/'
		}
	}
	return string(b)
}

// search looks up a name in a block, by binary search.
func (t *table) search(b block, name string) (Node, bool) {
	i, ok := sort.Find(b.count, func(i int) int {
		return strings.Compare(name, t.name(t.rec(b.first+Node(i))))
	})
	if !ok {
		return 0, false
	}
	return b.first + Node(i), true
}

// add publishes the children of a directory. entries must be in byte order of their names. If the directory has a block
// already, because another goroutine was faster, that block is returned.
func (t *table) add(dir Node, entries []object.TreeEntry) (block, error) {
	if err := checkEntries(entries); err != nil {
		return block{}, err
	}
	t.append.Lock()
	defer t.append.Unlock()
	parent := t.rec(dir)
	if b, ok := parent.block(); ok {
		return b, nil
	}
	t.kernel.beginAdd()
	defer t.kernel.endAdd(t)
	b, nextName := block{Node(t.next.Load()), len(entries)}, t.nextName
	if uint64(b.first)+uint64(b.count) > maxNode {
		return block{}, fmt.Errorf("add %d nodes to %d: table is full", b.count, b.first)
	}
	if err := t.grow(b.first + Node(b.count)); err != nil {
		return block{}, err
	}
	for i, e := range entries {
		at, err := t.addName(e.Name)
		if err != nil {
			t.nextName = nextName // otherwise every attempt on a full disk would leave unused names
			return block{}, err
		}
		r := t.rec(b.first + Node(i))
		*r = record{name: at<<8 | uint64(len(e.Name)), parent: uint32(dir)}
		r.kind, _ = kindOf(e.Mode)
		r.idLen = uint8(copy(r.id[:], e.ID.Bytes()))
		r.crc = r.sum(e.Name)
	}
	t.next.Store(uint64(b.first) + uint64(b.count))
	parent.state.Store(uint64(b.first)<<32 | uint64(b.count)) // publishes the block
	t.nodes.Add(int64(b.count))
	t.dirs.Add(1)
	return b, nil
}

// grow makes the files large enough for all nodes before next.
func (t *table) grow(next Node) error {
	if err := t.kernel.grow(next); err != nil {
		return err
	}
	return t.records.Grow(int64(next) * recordSize)
}

// addName appends a name and returns its offset. A name never straddles two chunks. t.append is held.
func (t *table) addName(name string) (uint64, error) {
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
