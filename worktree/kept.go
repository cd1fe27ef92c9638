package worktree

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"sync/atomic"
	"unsafe"

	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/disk/mapped"
	"github.com/artifactfs/artifactfs/object"
)

// kept is what means something only as long as the kernel has the mount: a file beside the table, mapped, so that it is
// right whenever the process dies. Who takes the mount over goes on with it, everybody else begins it anew. It has a header
// and then four bits for each base node, which package fuse gives their meaning (Shown).
type kept struct {
	*mapped.File
	goesOn bool // what a process before wrote counts

	nowhere atomic.Uint32
}

// keptHeader is at the start of the file, in the byte order of the host.
type keptHeader struct {
	magic   [8]byte
	version uint32
	_       uint32
	boot    [16]byte // which run of the host's kernel wrote to it
	seed    [16]byte // of the overlay's positions in directories
	// How far the table goes, so that nobody needs to read all of it to know, and a checksum of that; not while adding is 1.
	adding, next, nextName, nodes, dirs, crc atomic.Uint64
}

const (
	keptVersion  = 1
	keptStart    = 4096 // where the nodes' bits begin
	nodesInWord  = 8
	bitsOfNode   = 4
	bytesInWord  = 4
	nodesInBytes = nodesInWord / bytesInWord
)

var keptMagic = [8]byte{'A', 'F', 'S', 'k', 'e', 'p', 't', 0}

func openKept(on disk.FS, path string, boot [16]byte, takeOver bool) (*kept, error) {
	if takeOver {
		r, err := mapped.Open(on, path, smallChunkBits)
		if err != nil {
			return nil, err
		}
		if err := r.Load(true); err != nil {
			return nil, errors.Join(err, r.Close())
		}
		k := &kept{File: r}
		if k.Len() > 0 {
			h := k.header()
			k.goesOn = h.magic == keptMagic && h.version == keptVersion && h.boot == boot
		}
		if k.goesOn {
			return k, nil
		}
		if err := r.Close(); err != nil {
			return nil, err
		}
	}
	r, err := mapped.Create(on, path, smallChunkBits)
	if err != nil {
		return nil, err
	}
	return &kept{File: r}, nil
}

// start makes the file what it is to be for a table that has been read, the magic last.
func (k *kept) start(t *table, boot [16]byte) error {
	if err := k.grow(Node(t.next.Load())); err != nil {
		return err
	}
	h := k.header()
	if !k.goesOn {
		h.version, h.boot = keptVersion, boot
		_, _ = rand.Read(h.seed[:]) // never fails
	}
	k.end(t)
	h.magic = keptMagic
	return nil
}

// grow makes room for the nodes before next.
func (k *kept) grow(next Node) error {
	return k.File.Grow(keptStart + int64(next)/nodesInBytes + bytesInWord)
}

func (k *kept) header() *keptHeader { return (*keptHeader)(unsafe.Pointer(&k.At(0, keptStart)[0])) }

// begin says that the table is going to change.
func (k *kept) begin() { k.header().adding.Store(1) }

// end says how the table is now.
func (k *kept) end(t *table) {
	h := k.header()
	h.next.Store(t.next.Load())
	h.nextName.Store(t.nextName)
	h.nodes.Store(uint64(t.nodes.Load()))
	h.dirs.Store(uint64(t.dirs.Load()))
	h.crc.Store(h.sum())
	h.adding.Store(0)
}

func (h *keptHeader) sum() uint64 {
	b := append(make([]byte, 0, 128), h.seed[:]...)
	for _, v := range []uint64{h.next.Load(), h.nextName.Load(), h.nodes.Load(), h.dirs.Load()} {
		b = binary.NativeEndian.AppendUint64(b, v)
	}
	return uint64(crc32.Checksum(b, castagnoli))
}

// word gives where the bits of a node are.
func (k *kept) word(n Node) (w *atomic.Uint32, shift uint) {
	off := keptStart + int64(n)/nodesInWord*bytesInWord
	if off+bytesInWord > k.Len() {
		return &k.nowhere, 0 // no node that was ever handed out
	}
	return (*atomic.Uint32)(unsafe.Pointer(&k.At(uint64(off), bytesInWord)[0])), uint(n % nodesInWord * bitsOfNode)
}

// Shown gives where four bits of a base node are that package fuse keeps: in the word, from shift on. They are 0 at first,
// and as they were in a Tree that was taken over. The word may be used for as long as the Tree is held, closed or not.
func (t *Tree) Shown(n Node) (w *atomic.Uint32, shift uint) { return t.table.kept.word(n) }

// close closes the file. A caller of Shown finds zeros from now on.
func (k *kept) close() error { return k.Detach() }

// goOn makes the table ready to be continued where the process before was killed: the mapping's pages are what it left,
// and how far it had come is kept. done is false if that is not known, because it
// died while it changed it.
func (t *table) goOn(root object.ID) (done bool, err error) {
	if !t.kept.goesOn || t.kept.header().adding.Load() != 0 {
		return false, nil
	}
	h := t.kept.header()
	next, nextName := h.next.Load(), h.nextName.Load()
	if h.crc.Load() != h.sum() || next <= uint64(Root) || next > uint64(t.records.Len())/recordSize || nextName > uint64(t.names.Len()) {
		return false, nil
	}
	if err := t.checkStart(root); err != nil {
		return false, err
	}
	if t.roots, err = t.readRoots(Node(t.header().root)); err != nil {
		return false, err
	}
	t.next.Store(next)
	t.nextName = nextName
	t.nodes.Store(int64(h.nodes.Load()))
	t.dirs.Store(int64(h.dirs.Load()))
	return true, nil
}
