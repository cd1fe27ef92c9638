package state

import "unsafe"

// text is the header of a block with the target of a symbolic link. size is the length in bytes of the target, which follows
// the header in memory.
type text struct{ size uint32 }

// xattr is the header of one extended attribute in the linked list of a node. The name and the value of the attribute follow
// the header in memory.
type xattr struct {
	next ref    // next attribute of the same node; 0: none
	size uint32 // length of the value in bytes
	len  uint8  // length of the name in bytes
}

const (
	textSize  = int(unsafe.Sizeof(text{}))
	xattrSize = int(unsafe.Sizeof(xattr{}))
)

// setTarget sets the target of a symbolic link, and releases the previous target.
func (t *Table) setTarget(r *record, target string) {
	t.dropTarget(r)
	r.target = t.arena.alloc(textSize + len(target))
	view[text](&t.arena, r.target).size = uint32(len(target))
	copy(t.target(r), target)
}

// target returns the target of a symbolic link. The bytes point into the arena.
func (t *Table) target(r *record) []byte {
	n := textSize + int(view[text](&t.arena, r.target).size)
	return t.arena.bytes(r.target, n)[textSize:]
}

// dropTarget releases the target of a record, if it has one.
func (t *Table) dropTarget(r *record) {
	if r.target != 0 {
		t.arena.release(r.target, textSize+len(t.target(r)))
		r.target = 0
	}
}

// xattr returns the header, name and value of the attribute at a ref. Name and value point into the arena.
func (t *Table) xattr(at ref) (x *xattr, name string, value []byte) {
	x = view[xattr](&t.arena, at)
	b := t.arena.bytes(at, xattrSize+int(x.len)+int(x.size))[xattrSize:]
	return x, unsafe.String(unsafe.SliceData(b), int(x.len)), b[x.len:]
}

// setXattr sets an extended attribute, and replaces an earlier value.
func (t *Table) setXattr(r *record, name string, value []byte) {
	t.removeXattr(r, name)
	at := t.arena.alloc(xattrSize + len(name) + len(value))
	*view[xattr](&t.arena, at) = xattr{next: r.xattrs, size: uint32(len(value)), len: uint8(len(name))}
	b := t.arena.bytes(at, xattrSize+len(name)+len(value))[xattrSize:]
	copy(b[copy(b, name):], value)
	r.xattrs = at
}

// removeXattr removes an extended attribute, if the record has it.
func (t *Table) removeXattr(r *record, name string) {
	for link := &r.xattrs; *link != 0; {
		at := *link
		x, have, value := t.xattr(at)
		if have == name {
			*link = x.next
			t.arena.release(at, xattrSize+len(have)+len(value))
			return
		}
		link = &x.next
	}
}

// dropXattrs releases all extended attributes of a record.
func (t *Table) dropXattrs(r *record) {
	for r.xattrs != 0 {
		_, name, _ := t.xattr(r.xattrs)
		t.removeXattr(r, name)
	}
}
