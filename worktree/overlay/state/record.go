package state

import (
	"unsafe"
)

// record holds all data of one node, except the node's names.
type record struct {
	size, atime, mtime, ctime int64
	content                   uint64
	parent                    Node
	mode, nlink, uid, gid     uint32
	rdev, flags               uint32
	// key is the current or last generation of the slot for an own node, and the node number for a base node.
	key                 uint32
	dir, target, xattrs ref // blocks in the arena; 0 means none
	// state holds the bits recordUsed to recordListed. For own nodes, the bits above them hold the next slot in the list
	// of free slots.
	state uint32
}

const (
	recordUsed     = 1 << iota // the record belongs to a node
	recordInode                // the node has an inode
	recordReserved             // the record was reserved by NewNode
	recordListed               // the slot is in the list of free slots, and may also be in use again
	linkShift      = 6
	maxSlots       = 1 << (32 - linkShift) // 67 million slots
)

// The method is reports whether any of the given bits is set in the record's state.
func (r *record) is(bit uint32) bool { return r.state&bit != 0 }

// inode returns the record's fields as the Inode of n.
func (r *record) inode(n Node) Inode {
	return Inode{
		Node: n, Mode: r.mode, Nlink: r.nlink, UID: r.uid, GID: r.gid, Rdev: r.rdev, Size: r.size,
		Atime: r.atime, Mtime: r.mtime, Ctime: r.ctime, Content: r.content, Flags: r.flags, Parent: r.parent,
	}
}

// slab is an array of records outside the Go heap. Only chunks that were used are allocated. Records do not move.
type slab struct {
	chunks [][]byte
	end    uint32 // first index that was never used
}

const (
	recordSize   = unsafe.Sizeof(record{})
	slabRecords  = 4096
	slabChunk    = slabRecords * int(recordSize)
	firstRecord  = 1         // index 0 means no record
	noGeneration = 1<<32 - 1 // a slot with this generation is not used again
)

// A record has 96 bytes: the memory use per file is documented, so a change of it must be deliberate.
var _ [96]byte = [recordSize]byte{}

// The method at returns the record at an index, and allocates its chunk if needed.
func (s *slab) at(i uint32) *record {
	c := int(i / slabRecords)
	for len(s.chunks) <= c {
		s.chunks = append(s.chunks, nil)
	}
	if s.chunks[c] == nil {
		s.chunks[c] = mapAnonymous(slabChunk)
	}
	s.end = max(s.end, i+1)
	return (*record)(unsafe.Pointer(&s.chunks[c][uintptr(i%slabRecords)*recordSize]))
}

// look returns the record at an index, or nil if its chunk was never allocated.
func (s *slab) look(i uint32) *record {
	if i >= s.end || s.chunks[i/slabRecords] == nil {
		return nil
	}
	return (*record)(unsafe.Pointer(&s.chunks[i/slabRecords][uintptr(i%slabRecords)*recordSize]))
}

// each calls emit for the used records, beginning at the index from, until emit returns false.
func (s *slab) each(from uint32, emit func(i uint32, r *record) bool) {
	for i := max(from, firstRecord); i < s.end; i++ {
		r := s.look(i)
		if r == nil {
			i |= slabRecords - 1
			continue
		}
		if r.is(recordUsed) && !emit(i, r) {
			return
		}
	}
}

// bytes returns the allocated memory in bytes.
func (s *slab) bytes() (n int64) {
	for _, c := range s.chunks {
		n += int64(len(c))
	}
	return n
}

// close unmaps all records.
func (s *slab) close() {
	for _, c := range s.chunks {
		if c != nil {
			unmap(c)
		}
	}
	*s = slab{}
}
