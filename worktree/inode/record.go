package inode

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/artifactfs/artifactfs/git/object"
)

// Record describes one node, in the format of the file. All fields except state, touched and lookups do not change
// after the record is published.
type Record struct {
	id [32]byte
	// state is the size in bytes plus 1 for a file or symbolic link. For a directory, it is the number of the first child
	// << 32 | the number of children. It is 0 if the size or the children are not known.
	state atomic.Uint64
	// name is the offset in the file of names << 8 | the length of the name. For a further root, the field is the number
	// of the previous further root << 8.
	name    uint64
	parent  uint32 // node of the directory that contains this node; for a root, the root itself
	crc     uint32 // crc32c of the name and of the fields id, name, parent, kind and idLen
	kind    Kind   // type of the node; 0 if the record does not describe a node
	idLen   uint8
	touched uint8 // the method touch changes this byte to make the page dirty
	_       [1]byte
	lookups atomic.Uint32 // the kernel's lookup count of the node, which a takeover continues
}

// Kind is the type of a node, as in the tree entries of git. The values are part of the file format.
type Kind uint8

const (
	KindFile Kind = iota + 1
	KindExec
	KindSymlink
	KindDir
	KindGitlink // a submodule, which the mount shows as an empty directory
)

// IsDir reports whether the mount shows the node as a directory.
func (k Kind) IsDir() bool { return k == KindDir || k == KindGitlink }

// KindOf returns the kind of a tree entry with the git mode m. It returns false if m is not a mode that git uses.
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
	panic(fmt.Sprintf("kind %d", k)) // unreachable, because check refuses a table with any other kind
}

// StatMode returns the st_mode of an unchanged node of this kind. The permissions are those of a checkout with the
// umask 0.
func (k Kind) StatMode() uint32 {
	switch k {
	case KindFile:
		return syscall.S_IFREG | 0o666
	case KindExec:
		return syscall.S_IFREG | 0o777
	case KindSymlink:
		return syscall.S_IFLNK | 0o777
	case KindDir, KindGitlink: // git also shows a submodule that is not checked out as an empty directory
		return syscall.S_IFDIR | 0o777
	}
	panic(fmt.Sprintf("kind %d", k)) // unreachable, because check refuses a table with any other kind
}

// Block contains the nodes of a directory's children. The numbers of these nodes are the Count consecutive numbers that
// begin with First.
type Block struct {
	First Node
	Count int
}

// Kind returns the kind of the node.
func (r *Record) Kind() Kind { return r.kind }

// Dir returns the directory that contains the node in its tree. For a root, it returns the root itself.
func (r *Record) Dir() Node { return Node(r.parent) }

// Block returns the block of a directory. It returns false if the directory's tree was not read yet.
func (r *Record) Block() (Block, bool) {
	s := r.state.Load()
	return Block{Node(s >> 32), int(s & maxNode)}, s != 0
}

// Size returns the length of a file's contents in bytes. It returns false if the length is not known.
func (r *Record) Size() (int64, bool) {
	s := r.state.Load()
	return int64(s - 1), s != 0
}

// SetSize records the length of a file's contents, in bytes. It may be called from any goroutine.
func (r *Record) SetSize(n int64) { r.state.Store(uint64(n) + 1) }

// Remember increments the kernel's lookup count of the node.
func (r *Record) Remember() { r.lookups.Add(1) }

// Forget subtracts k from the lookup count, but does not set it below zero. It returns true if the count is zero
// afterwards.
func (r *Record) Forget(k uint64) (last bool) {
	for {
		have := r.lookups.Load()
		left := have - uint32(min(k, uint64(have)))
		if r.lookups.CompareAndSwap(have, left) {
			return left == 0
		}
	}
}

// Lookups returns the number of references that the kernel holds to the node.
func (r *Record) Lookups() uint64 { return uint64(r.lookups.Load()) }

// Known reports whether the kernel holds a reference to the node.
func (r *Record) Known() bool { return r.lookups.Load() > 0 }

// ObjectID returns the object ID of a node. For the root of an empty base tree, it returns the zero ID.
func (r *Record) ObjectID() object.ID {
	id, _ := object.FromBytes(r.id[:r.idLen])
	return id
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sum returns the checksum for the field crc. name is the name of the node.
func (r *Record) sum(name string) uint32 {
	var b [32 + 8 + 4 + 2]byte
	n := copy(b[:], r.id[:])
	binary.NativeEndian.PutUint64(b[n:], r.name)
	binary.NativeEndian.PutUint32(b[n+8:], r.parent)
	b[n+12], b[n+13] = byte(r.kind), r.idLen
	return crc32.Update(crc32.Update(0, castagnoli, b[:]), castagnoli, unsafe.Slice(unsafe.StringData(name), len(name)))
}
