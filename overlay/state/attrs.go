package state

import "unsafe"

// text is a block of bytes that knows its length: a link's target.
type text struct{ size uint32 }

// xattr is one extended attribute of a node's list; behind it lie its name and its value.
type xattr struct {
	next ref
	size uint32 // of the value
	len  uint8  // of the name
}

const (
	textSize  = int(unsafe.Sizeof(text{}))
	xattrSize = int(unsafe.Sizeof(xattr{}))
)

func (t *Table) setTarget(r *record, target string) {
	t.dropTarget(r)
	r.target = t.arena.alloc(textSize + len(target))
	view[text](&t.arena, r.target).size = uint32(len(target))
	copy(t.target(r), target)
}

// target lies in the arena.
func (t *Table) target(r *record) []byte {
	n := textSize + int(view[text](&t.arena, r.target).size)
	return t.arena.bytes(r.target, n)[textSize:]
}

func (t *Table) dropTarget(r *record) {
	if r.target != 0 {
		t.arena.release(r.target, textSize+len(t.target(r)))
		r.target = 0
	}
}

// xattr returns an attribute's parts; they lie in the arena.
func (t *Table) xattr(at ref) (x *xattr, name string, value []byte) {
	x = view[xattr](&t.arena, at)
	b := t.arena.bytes(at, xattrSize+int(x.len)+int(x.size))[xattrSize:]
	return x, unsafe.String(unsafe.SliceData(b), int(x.len)), b[x.len:]
}

func (t *Table) setXattr(r *record, name string, value []byte) {
	t.removeXattr(r, name)
	at := t.arena.alloc(xattrSize + len(name) + len(value))
	*view[xattr](&t.arena, at) = xattr{next: r.xattrs, size: uint32(len(value)), len: uint8(len(name))}
	b := t.arena.bytes(at, xattrSize+len(name)+len(value))[xattrSize:]
	copy(b[copy(b, name):], value)
	r.xattrs = at
}

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

func (t *Table) dropXattrs(r *record) {
	for r.xattrs != 0 {
		_, name, _ := t.xattr(r.xattrs)
		t.removeXattr(r, name)
	}
}
