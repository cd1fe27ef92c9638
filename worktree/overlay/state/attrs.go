package state

import "unsafe"

// text is the header of a block with the target of a symbolic link. The field size is the length in bytes of the
// target, which follows the header in memory.
type text struct{ size uint32 }

// xattr is the header of one extended attribute in the linked list of a node. The name and the value of the attribute
// follow the header in memory.
type xattr struct {
	next ref    // next attribute of the same node; 0 if there is none
	size uint32 // length of the value in bytes
	len  uint8  // length of the name in bytes
}

const (
	textSize  = int(unsafe.Sizeof(text{}))
	xattrSize = int(unsafe.Sizeof(xattr{}))
)

// attributes keeps the link targets and extended attributes of a Table, in the table's arena. It has no lock: the rules
// of Table apply.
type attributes struct{ arena *arena }

// setTarget sets the target of a symbolic link, and releases the previous target.
func (s *attributes) setTarget(r *record, target string) {
	s.dropTarget(r)
	r.target = s.arena.alloc(textSize + len(target))
	view[text](s.arena, r.target).size = uint32(len(target))
	copy(s.target(r), target)
}

// target returns the target of a symbolic link. The bytes point into the arena.
func (s *attributes) target(r *record) []byte {
	n := textSize + int(view[text](s.arena, r.target).size)
	return s.arena.bytes(r.target, n)[textSize:]
}

// dropTarget releases the target of a record, if it has one.
func (s *attributes) dropTarget(r *record) {
	if r.target != 0 {
		s.arena.release(r.target, textSize+len(s.target(r)))
		r.target = 0
	}
}

// xattr returns the header, the name and the value of the attribute to which the ref at points. The name and the value
// point into the arena.
func (s *attributes) xattr(at ref) (x *xattr, name string, value []byte) {
	x = view[xattr](s.arena, at)
	b := s.arena.bytes(at, xattrSize+int(x.len)+int(x.size))[xattrSize:]
	return x, unsafe.String(unsafe.SliceData(b), int(x.len)), b[x.len:]
}

// setXattr sets an extended attribute, and replaces an earlier value.
func (s *attributes) setXattr(r *record, name string, value []byte) {
	s.removeXattr(r, name)
	at := s.arena.alloc(xattrSize + len(name) + len(value))
	*view[xattr](s.arena, at) = xattr{next: r.xattrs, size: uint32(len(value)), len: uint8(len(name))}
	b := s.arena.bytes(at, xattrSize+len(name)+len(value))[xattrSize:]
	copy(b[copy(b, name):], value)
	r.xattrs = at
}

// removeXattr removes an extended attribute, if the record has it.
func (s *attributes) removeXattr(r *record, name string) {
	for link := &r.xattrs; *link != 0; {
		at := *link
		x, have, value := s.xattr(at)
		if have == name {
			*link = x.next
			s.arena.release(at, xattrSize+len(have)+len(value))
			return
		}
		link = &x.next
	}
}

// dropXattrs releases all extended attributes of a record.
func (s *attributes) dropXattrs(r *record) {
	for r.xattrs != 0 {
		_, name, _ := s.xattr(r.xattrs)
		s.removeXattr(r, name)
	}
}
