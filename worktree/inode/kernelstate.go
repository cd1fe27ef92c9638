package inode

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"sync/atomic"
	"unsafe"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/disk/mapped"
)

// kernelState is the state that becomes invalid when the kernel no longer has the mount. It is stored in a mapped file
// next to the table, so that it is up to date when the process dies. A takeover continues the file; any other Open
// creates the file again. The file contains a header; bytes behind the header are not used.
type kernelState struct {
	*mapped.File
	continued bool // true if the state of the previous process is continued
}

// kernelHeader is the contents of the file. Its numbers are in the byte order of the host.
type kernelHeader struct {
	magic   [8]byte
	version uint32
	_       uint32
	boot    [16]byte // boot ID that the host had when the file was created
	seed    [16]byte // seed for the positions that the overlay assigns in directory listings
	// adding is 1 while the table is being extended. The other fields describe the length of the table, so that a takeover
	// need not read the whole table. The field crc is their checksum. They are valid while adding is 0.
	adding, next, nextName, nodes, dirs, crc atomic.Uint64
}

const (
	kernelVersion = 1
	kernelSize    = 4096 // size of the header in bytes
)

var kernelMagic = [8]byte{'A', 'F', 'S', 'k', 'e', 'p', 't', 0}

// openKernelState opens the file at path, or creates it. For a takeover, it continues a valid file. A file of another
// boot or version is replaced.
func openKernelState(on disk.FS, path string, boot [16]byte, takeOver bool) (*kernelState, error) {
	if takeOver {
		r, err := mapped.Open(on, path, smallChunkBits)
		if err != nil {
			return nil, err
		}
		if err := r.Load(true); err != nil {
			return nil, errors.Join(err, r.Close())
		}
		k := &kernelState{File: r}
		if k.Len() > 0 {
			h := k.header()
			k.continued = h.magic == kernelMagic && h.version == kernelVersion && h.boot == boot
		}
		if k.continued {
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
	return &kernelState{File: r}, nil
}

// start makes the file valid for a table that was read completely. It writes the magic number last, so that a process
// which is killed before leaves a file that the next process recognizes as invalid.
func (k *kernelState) start(t *Table, boot [16]byte) error {
	if err := k.Grow(kernelSize); err != nil {
		return err
	}
	h := k.header()
	if !k.continued {
		h.version, h.boot = kernelVersion, boot
		_, _ = rand.Read(h.seed[:]) // never fails
	}
	k.endAdd(t)
	h.magic = kernelMagic
	return nil
}

// header returns the header in the mapped file.
func (k *kernelState) header() *kernelHeader {
	return (*kernelHeader)(unsafe.Pointer(&k.At(0, kernelSize)[0]))
}

// beginAdd marks the recorded length of the table as invalid, because the table is about to grow.
func (k *kernelState) beginAdd() { k.header().adding.Store(1) }

// endAdd records the present length of the table and marks it as valid.
func (k *kernelState) endAdd(t *Table) {
	h := k.header()
	h.next.Store(t.next.Load())
	h.nextName.Store(t.nextName)
	h.nodes.Store(uint64(t.nodes.Load()))
	h.dirs.Store(uint64(t.dirs.Load()))
	h.crc.Store(h.sum())
	h.adding.Store(0)
}

// sum returns the checksum of the seed and the length of the table, for the field crc.
func (h *kernelHeader) sum() uint64 {
	b := append(make([]byte, 0, 128), h.seed[:]...)
	for _, v := range []uint64{h.next.Load(), h.nextName.Load(), h.nodes.Load(), h.dirs.Load()} {
		b = binary.NativeEndian.AppendUint64(b, v)
	}
	return uint64(crc32.Checksum(b, castagnoli))
}

// TookOver reports whether the state of the previous process is continued.
func (t *Table) TookOver() bool { return t.kernel.continued }

// Seed returns the seed for the positions that the overlay assigns in directory listings. A takeover does not change
// it.
func (t *Table) Seed() [16]byte { return t.kernel.header().seed }

// resumeKilled continues, without reading all records, the table of a process that was killed after the host was
// started. The mapped pages still contain what this process has stored, and the file of the kernel state contains the
// length of the table. done is false if that length is missing or invalid, for example because the process died while
// it extended the table. In this case the caller must read the whole table.
func (t *Table) resumeKilled(root object.ID) (done bool, err error) {
	if !t.kernel.continued || t.kernel.header().adding.Load() != 0 {
		return false, nil
	}
	h := t.kernel.header()
	next, nextName := h.next.Load(), h.nextName.Load()
	if h.crc.Load() != h.sum() || next <= uint64(Root) || next > uint64(t.records.Len())/recordSize ||
		nextName > uint64(t.names.Len()) {
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
