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
	"time"
	"unsafe"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/disk/mapped"
	"github.com/artifactfs/artifactfs/object"
)

// table hands out nodes. It is two files: records of 64 bytes, whose index is the node, and the bytes of names.
// Record 0 is the header, record 1 the root. Both files are in the byte order of the host and are read only on it.
//
// A directory's children are added as one block: names, records, and last, by one atomic store into the
// directory's own record, where the block is. A process killed before that store leaves bytes that nothing
// refers to and that the successor overwrites; no node of an unpublished block was ever told to anybody.
//
// Power loss may take any page that was not synced. The table is synced before a log that names its nodes is
// (table.sync), and says itself how far it is synced: behind that, blocks that did not reach the disk are forgotten
// together with what is below them (check.go). Their numbers are not used again, so that the records have gaps.
//
// Besides the base tree's root there may be roots of other trees (roots.go), whose nodes are handed out like the base's.
type table struct {
	fs             disk.FS
	records, names *mapped.File
	kernel         *kernelState
	unlock         func() // releases the lock that is held as long as the table is open

	nodes, dirs atomic.Int64  // see Counts
	next        atomic.Uint64 // the first free record

	append   sync.Mutex // held to add a block: memory copies and growth of the files, never while asking a Source
	nextName uint64     // guarded by append: the first free byte of names
	roots    []Node     // guarded by append: the further roots, the latest first

	syncing sync.Mutex // held to sync: nothing but disk is waited for under it, and append is taken for a moment
	synced  uint64     // guarded by syncing: next, when all before it was synced
}

// record is what is known of one node. All but state is fixed once the record is published.
type record struct {
	id      [32]byte
	state   atomic.Uint64 // files and links: size in bytes plus one; directories: first child << 32 | children; 0: unknown
	name    uint64        // offset in names << 8 | length
	parent  uint32
	crc     uint32 // crc32c of the name and of the fields above but state, and kind and idLen
	kind    kind   // 0: no node
	idLen   uint8
	touched uint8 // changed to make the page dirty again (touch); means nothing
	_       [1]byte
	lookups atomic.Uint32 // how often the kernel was told of it; it means something to who takes its mount over
}

// header is record 0.
type header struct {
	magic   [8]byte
	version uint32   // in host byte order: a table from a host of the other order is refused by it
	size    uint32   // of a record
	boot    [16]byte // which run of the host's kernel wrote to it last
	synced  uint64   // records that are on disk, at least
	// The latest of the further roots, as the table has it and as it had it when it was synced; 0: there is none.
	root, rootSynced uint32
	failed           uint32 // 1: the last sync failed, and the kernel may have given up any page
	_                [12]byte
}

var tableHeader = header{magic: [8]byte{'A', 'F', 'S', 'n', 'o', 'd', 'e', 's'}, version: versionRoots, size: recordSize}

const (
	versionOneTree = 2 // there are no further roots
	versionRoots   = 3
)

const (
	chunkBits      = 20 // by how much the table's files grow, in bytes as a power of two
	smallChunkBits = 16 // by how much the files beside it do
	chunkSize      = 1 << chunkBits
)

const (
	recordSize = 64
	maxNode    = 1<<32 - 1 // nodes are kept in 32 bits; a tree of four thousand million paths is out of reach
	maxName    = object.MaxNameLen
)

// The layout is the file format.
var (
	_ [recordSize]byte = [unsafe.Sizeof(record{})]byte{}
	_ [recordSize]byte = [unsafe.Sizeof(header{})]byte{}
)

type kind uint8

const (
	kindFile kind = iota + 1
	kindExec
	kindSymlink
	kindDir
	kindGitlink
)

func (k kind) isDir() bool { return k == kindDir || k == kindGitlink }

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

// mode is what git calls it.
func (k kind) mode() object.Mode {
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
	panic(fmt.Sprintf("kind %d", k)) // check refuses a table with any other
}

// block is where a directory's children are.
type block struct {
	first Node
	count int
}

func (r *record) block() (block, bool) {
	s := r.state.Load()
	return block{Node(s >> 32), int(s & maxNode)}, s != 0
}

func (r *record) size() (int64, bool) {
	s := r.state.Load()
	return int64(s - 1), s != 0
}

func (r *record) setSize(n int64) { r.state.Store(uint64(n) + 1) }

// objectID is the zero ID for the root of an empty working tree.
func (r *record) objectID() object.ID {
	id, _ := object.FromBytes(r.id[:r.idLen])
	return id
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (r *record) sum(name string) uint32 {
	var b [32 + 8 + 4 + 2]byte
	n := copy(b[:], r.id[:])
	binary.NativeEndian.PutUint64(b[n:], r.name)
	binary.NativeEndian.PutUint32(b[n+8:], r.parent)
	b[n+12], b[n+13] = byte(r.kind), r.idLen
	return crc32.Update(crc32.Update(0, castagnoli, b[:]), castagnoli, unsafe.Slice(unsafe.StringData(name), len(name)))
}

// openTable opens or starts the table of a base tree. A table that it did not write, or not for this tree, is
// ErrTable.
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

// lock keeps a second process from handing out the same nodes; the kernel drops it when the threads of this one have
// ended. For those of the dead process a takeover waits, but not for one that waits for an answer of its own mount, and
// so for us (fuse.WithoutDevice): it has closed this file. What it keeps is the process's memory, and with that every
// file that is mapped there. So the lock is that of a file of its own.
func lock(path string, takeOver bool) (unlock func(), err error) {
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		unlock, err := disk.TryLock(path)
		if err == nil || !takeOver || !errors.Is(err, disk.ErrLocked) || time.Since(start) > lockWait {
			return unlock, err
		}
	}
}

const lockWait = 5 * time.Second

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

// fresh reports whether start never got to its end.
func (t *table) fresh() bool { return t.records.Len() == 0 || t.header().magic == [8]byte{} }

// start writes the root, then the header, and of that the magic last: a table is either started or fresh.
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

func (t *table) header() *header { return (*header)(unsafe.Pointer(t.rec(0))) }

// rec returns a record that is known to lie in the file.
func (t *table) rec(n Node) *record {
	return (*record)(unsafe.Pointer(&t.records.At(uint64(n)*recordSize, recordSize)[0]))
}

// record returns the record of a node that was handed out.
func (t *table) record(n Node) (*record, bool) {
	if n < Root || uint64(n) >= t.next.Load() {
		return nil, false
	}
	r := t.rec(n)
	return r, r.kind != 0
}

// name returns a record's name; it lies in the mapping and is valid inside the gate only.
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

// search finds a name in a block.
func (t *table) search(b block, name string) (Node, bool) {
	i, ok := sort.Find(b.count, func(i int) int {
		return strings.Compare(name, t.name(t.rec(b.first+Node(i))))
	})
	if !ok {
		return 0, false
	}
	return b.first + Node(i), true
}

// add publishes the children of a directory, which are in byte order of their names. If somebody else was first,
// theirs stand.
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
			t.nextName = nextName // or every attempt on a full disk would leave names that nothing refers to
			return block{}, err
		}
		r := t.rec(b.first + Node(i))
		*r = record{name: at<<8 | uint64(len(e.Name)), parent: uint32(dir)}
		r.kind, _ = kindOf(e.Mode)
		r.idLen = uint8(copy(r.id[:], e.ID.Bytes()))
		r.crc = r.sum(e.Name)
	}
	t.next.Store(uint64(b.first) + uint64(b.count))
	parent.state.Store(uint64(b.first)<<32 | uint64(b.count)) // from here on the block exists
	t.nodes.Add(int64(b.count))
	t.dirs.Add(1)
	return b, nil
}

// grow makes room for the nodes before next.
func (t *table) grow(next Node) error {
	if err := t.kernel.grow(next); err != nil {
		return err
	}
	return t.records.Grow(int64(next) * recordSize)
}

// addName appends a name and gives its offset. A name never straddles two chunks.
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
