package inode

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/artifactfs/artifactfs/object"
)

// Record describes one node, in the format of the file. All fields except state, touched and lookups are constant once the
// record is published.
type Record struct {
	id      [32]byte
	state   atomic.Uint64 // file, link: size in bytes + 1; directory: first child << 32 | number of children; 0: unknown
	name    uint64        // offset in names << 8 | length; of a further root: the previous root << 8
	parent  uint32        // node of the directory; the record's own node if it is a root
	crc     uint32        // crc32c of the name and of id, name, parent, kind and idLen
	kind    Kind          // 0: the record is not a node
	idLen   uint8
	touched uint8 // counter that touch increments only to make the page dirty
	_       [1]byte
	lookups atomic.Uint32 // the kernel's lookup count, which a takeover continues
}

// Kind is the type of a node, as git's tree entries distinguish it. The values are part of the file format.
type Kind uint8

const (
	KindFile Kind = iota + 1
	KindExec
	KindSymlink
	KindDir
	KindGitlink // submodule, which the mount shows as an empty directory
)

// IsDir reports whether the mount shows the node as a directory.
func (k Kind) IsDir() bool { return k == KindDir || k == KindGitlink }

// KindOf returns the kind of a tree entry by its git mode.
func KindOf(m object.Mode) (Kind, bool) {
	switch m {
	case object.ModeFile:
		return KindFile, true
	case object.ModeExec:
		return KindExec, true
	case object.ModeSymlink:
		return KindSymlink, true
	case object.ModeDir:
		return KindDir, true
	case object.ModeGitlink:
		return KindGitlink, true
	}
	return 0, false
}

// GitMode returns the git mode of a kind.
func (k Kind) GitMode() object.Mode {
	switch k {
	case KindFile:
		return object.ModeFile
	case KindExec:
		return object.ModeExec
	case KindSymlink:
		return object.ModeSymlink
	case KindDir:
		return object.ModeDir
	case KindGitlink:
		return object.ModeGitlink
	}
	panic(fmt.Sprintf("kind %d", k)) // unreachable: check refuses a table with any other kind
}

// StatMode returns the st_mode of a node of this kind. Permissions are those of a checkout under umask 022.
func (k Kind) StatMode() uint32 {
	switch k {
	case KindFile:
		return syscall.S_IFREG | 0o644
	case KindExec:
		return syscall.S_IFREG | 0o755
	case KindSymlink:
		return syscall.S_IFLNK | 0o777
	case KindDir, KindGitlink: // a submodule that is not checked out is an empty directory
		return syscall.S_IFDIR | 0o755
	}
	panic(fmt.Sprintf("kind %d", k)) // unreachable: check refuses a table with any other kind
}

// Block is the position of a directory's children in the table: count consecutive nodes from first on.
type Block struct {
	First Node
	Count int
}

// Kind returns the kind of the node.
func (r *Record) Kind() Kind { return r.kind }

// Dir returns the directory that contains the node in its tree; for a root, the root itself.
func (r *Record) Dir() Node { return Node(r.parent) }

// Block returns the block of a directory, and false if its tree was not read yet.
func (r *Record) Block() (Block, bool) {
	s := r.state.Load()
	return Block{Node(s >> 32), int(s & maxNode)}, s != 0
}

// Size returns the length of a file's contents in bytes, and false if it is not known.
func (r *Record) Size() (int64, bool) {
	s := r.state.Load()
	return int64(s - 1), s != 0
}

// SetSize records the length of a file's contents, in bytes. It may be called concurrently.
func (r *Record) SetSize(n int64) { r.state.Store(uint64(n) + 1) }

// Remember increments the kernel's lookup count of the node.
func (r *Record) Remember() { r.lookups.Add(1) }

// Forget decrements the lookup count by k, but not below zero. It reports whether the count is zero now.
func (r *Record) Forget(k uint64) (last bool) {
	for {
		have := r.lookups.Load()
		left := have - uint32(min(k, uint64(have)))
		if r.lookups.CompareAndSwap(have, left) {
			return left == 0
		}
	}
}

// Known reports whether the kernel holds a reference to the node.
func (r *Record) Known() bool { return r.lookups.Load() > 0 }

// ObjectID returns the object ID of a node: the zero ID for the root of an empty base tree.
func (r *Record) ObjectID() object.ID {
	id, _ := object.FromBytes(r.id[:r.idLen])
	return id
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sum returns the checksum of the record for the field crc. name is the record's name.
func (r *Record) sum(name string) uint32 {
	var b [32 + 8 + 4 + 2]byte
	n := copy(b[:], r.id[:])
	binary.NativeEndian.PutUint64(b[n:], r.name)
	binary.NativeEndian.PutUint32(b[n+8:], r.parent)
	b[n+12], b[n+13] = byte(r.kind), r.idLen
	return crc32.Update(crc32.Update(0, castagnoli, b[:]), castagnoli, unsafe.Slice(unsafe.StringData(name), len(name)))
}
