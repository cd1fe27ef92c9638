package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unsafe"
)

// ErrBatch means that the bytes are not a valid batch.
var ErrBatch = errors.New("invalid batch of changes")

// put is one decoded put. Its name and value point into the batch. The field code determines which other fields are
// valid.
type put struct {
	code code
	node Node // node or directory that the put changes
	// child is the node that an entry names.
	child Node
	name  string
	value []byte
	// mask holds the bits of the fields that a putInode sets (hasMode and following).
	mask  uint64
	inode Inode // only the fields in mask are valid
	// number is, depending on the field code, the number of a contents file, the value of a counter, the number of a
	// request, the bound of a segment, or the first ID in a range of Kept records.
	number uint64
	// nth is the number of an entry among the entries with the same hash.
	nth uint16
	// last is the last ID in the range of Kept records that a putReleased removes.
	last uint64
	kept Kept
}

// decoder reads puts from a batch. It validates every byte, because a log may be damaged.
type decoder struct {
	rest []byte
	bad  bool
}

// next decodes the next put into p. It returns false at the end of the batch. At an invalid put it sets d.bad and
// returns false.
func (d *decoder) next(p *put) bool {
	if len(d.rest) == 0 {
		return false
	}
	p.code = code(d.rest[0])
	d.rest = d.rest[1:]
	switch p.code {
	case putInode:
		p.node = d.node()
		d.fields(p)
	case putEntry:
		p.node, p.name = d.node(), d.entryName()
		p.child = d.node()
	case putHidden, putClear:
		p.node, p.name = d.node(), d.entryName()
	case putTarget:
		p.node, p.value = d.node(), d.bytes(maxTarget)
	case putXattr:
		p.node, p.name = d.node(), d.name()
		p.value = d.bytes(maxValue)
	case putNoXattr:
		p.node, p.name = d.node(), d.name()
	case putDrop:
		p.node = d.node()
	case putDead, putGone:
		p.number = d.uint(1<<64 - 1)
		d.bad = d.bad || p.number == 0
	case putCounter:
		p.node = Node(d.uint(maxCounter - 1))
		p.number = d.uint(1<<64 - 1)
	case putRequest:
		p.number = d.uint(1<<64 - 1)
		p.node = Node(d.uint(1<<64 - 1))
		d.bad = d.bad || p.node != 0 && !p.node.valid()
	case putForgotten:
	case putEntryAt:
		p.node, p.name = d.node(), d.entryName()
		p.child = d.node()
		p.nth = uint16(d.uint(1<<nthBits - 1))
	case putHiddenAt:
		p.node, p.name, p.child = d.node(), d.entryName(), 0
		p.nth = uint16(d.uint(1<<nthBits - 1))
	case putPreserved:
		p.kept = d.kept()
	case putReleased:
		p.number, p.last = d.uint(1<<64-1), d.uint(1<<64-1)
		d.bad = d.bad || p.number == 0
	case putSealed:
		p.name, p.number = d.text(shareLength), d.uint(1<<64-1)
		d.bad = d.bad || p.number == 0 || !ValidShare(p.name)
	case putUnsealed:
		p.name = d.text(shareLength)
		d.bad = d.bad || !ValidShare(p.name)
	default:
		d.bad = true
	}
	return !d.bad
}

// fields decodes the mask and the fields of a putInode into p.
func (d *decoder) fields(p *put) {
	p.mask = d.uint(hasAll)
	for i, v := range [...]*uint32{&p.inode.Mode, &p.inode.Nlink, &p.inode.UID, &p.inode.GID, &p.inode.Rdev,
		&p.inode.Flags} {
		if p.mask&(hasMode<<i) != 0 {
			*v = uint32(d.uint(1<<32 - 1))
		}
	}
	if p.mask&hasSize != 0 {
		p.inode.Size = int64(d.uint(1<<63-1)) + SizeOfBase
	}
	for i, v := range [...]*int64{&p.inode.Atime, &p.inode.Mtime, &p.inode.Ctime} {
		if p.mask&(hasAtime<<i) != 0 {
			*v = d.int64()
		}
	}
	if p.mask&hasContent != 0 {
		p.inode.Content = d.uint(1<<64 - 1)
	}
	if p.mask&hasParent != 0 {
		p.inode.Parent = Node(d.uint(1<<64 - 1))
	}
}

// uint decodes a uvarint that must not exceed limit.
func (d *decoder) uint(limit uint64) uint64 {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 || v > limit {
		d.bad = true
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

// int64 decodes 8 bytes in little-endian order.
func (d *decoder) int64() int64 {
	if len(d.rest) < 8 {
		d.bad = true
		return 0
	}
	v := binary.LittleEndian.Uint64(d.rest)
	d.rest = d.rest[8:]
	return int64(v)
}

// node decodes a node number, which must be one that the table can store.
func (d *decoder) node() Node {
	n := Node(d.uint(1<<64 - 1))
	d.bad = d.bad || !n.valid()
	return n
}

// bytes decodes a string of at most limit bytes. The result points into the batch.
func (d *decoder) bytes(limit int) []byte {
	n := int(d.uint(uint64(limit)))
	if n > len(d.rest) {
		d.bad = true
		return nil
	}
	v := d.rest[:n]
	d.rest = d.rest[n:]
	return v
}

// text decodes a string of at most limit bytes. The result points into the batch.
func (d *decoder) text(limit int) string {
	b := d.bytes(limit)
	return unsafe.String(unsafe.SliceData(b), len(b))
}

// name decodes a name, which must be valid for an attribute.
func (d *decoder) name() string {
	s := d.text(maxName)
	d.bad = d.bad || s == "" || strings.IndexByte(s, 0) >= 0
	return s
}

// entryName decodes a name, which must be valid for a directory entry.
func (d *decoder) entryName() string {
	s := d.name()
	d.bad = d.bad || s == "." || s == ".." || strings.IndexByte(s, '/') >= 0
	return s
}

// check returns nil if every put of a batch can be applied, and otherwise an error that wraps ErrBatch.
func check(batch []byte) error {
	d := decoder{rest: batch}
	var p put
	for d.next(&p) {
	}
	return d.err(batch)
}

// err returns an error that wraps ErrBatch and contains the position of the invalid put, or nil if no put was invalid.
func (d *decoder) err(batch []byte) error {
	if d.bad {
		return fmt.Errorf("invalid put at byte %d of %d: %w", len(batch)-len(d.rest), len(batch), ErrBatch)
	}
	return nil
}

// Nodes calls visit for every node that a batch changes or names, until visit returns false. It returns ErrBatch for an
// invalid batch. Nodes in putRequest records are not visited.
func Nodes(batch []byte, visit func(Node) bool) error {
	if err := check(batch); err != nil {
		return err
	}
	d := decoder{rest: batch}
	for p := (put{}); d.next(&p); {
		if p.code == putPreserved || p.code == putReleased {
			continue
		}
		entry := p.code == putEntryAt || p.code == putHiddenAt
		if (p.code < putDead || entry) && !visit(p.node) || (p.code == putEntry || p.code == putEntryAt) && !visit(p.child) {
			break
		}
	}
	return nil
}
