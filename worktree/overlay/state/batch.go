package state

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// Batch is a sequence of puts, which are encoded as they are added. A put contains the new value instead of an
// operation, so applying a batch twice has the same result as applying it once. The zero Batch is empty and ready to
// use.
type Batch struct {
	b    []byte
	puts int
	// err describes the first put that is invalid and that Apply will refuse; nil if there is none.
	err error
}

// Bytes returns the encoded batch for Apply. It is valid until the next put or Reset.
func (b *Batch) Bytes() []byte { return b.b }

// Puts returns the number of puts.
func (b *Batch) Puts() int { return b.puts }

// Err returns an error that wraps ErrBatch and describes the first put that Apply will refuse, or nil.
func (b *Batch) Err() error { return b.err }

// Reset empties the batch, but keeps its memory for reuse.
func (b *Batch) Reset() { b.b, b.puts, b.err = b.b[:0], 0, nil }

// code is the first byte of a put. Its values are stored in the log.
//
// The fields of the put follow the code. Numbers are encoded as uvarints, strings as their length (a uvarint) and their
// bytes, and the times of an inode as 8 bytes in little-endian order:
//
//	inode      node, mask of has... bits, the fields in the mask
//	entry      directory, name, node
//	hidden     directory, name
//	clear      directory, name
//	target     node, target
//	xattr      node, name, value
//	noXattr    node, name
//	drop       node
//	dead       number of a contents file
//	gone       number of a contents file
//	counter    counter, value
//	request    request, created node or 0
//	forgotten  no fields
//	entryAt    directory, name, node, number among the names with the same hash
//	hiddenAt   directory, name, number among the names with the same hash
//	kept       fields of a Kept in the order of the struct, with a uvarint of flags instead of the booleans
//	unkept     first ID, last ID
//	sealed     ID of a share, bound
//	unsealed   ID of a share
//
// A log may contain sealed and unsealed only if wal.Log.Raise was called for it.
//
// A new code must be added at the end, and the format version of package wal must be raised with it, because an older
// program refuses a batch that contains an unknown code.
type code byte

const (
	putInode code = iota + 1
	putEntry
	putHidden
	putClear
	putTarget
	putXattr
	putNoXattr
	putDrop
	putDead
	putGone
	putCounter
	putRequest
	putForgotten
	putEntryAt
	putHiddenAt
	putPreserved
	putReleased
	putSealed
	putUnsealed
)

// Bits for the fields in a putInode, in the order in which the fields are encoded.
const (
	hasMode = 1 << iota
	hasNlink
	hasUID
	hasGID
	hasRdev
	hasFlags
	hasSize
	hasAtime
	hasMtime
	hasCtime
	hasContent
	hasParent
	hasAll = 1<<iota - 1
)

// Maximum lengths in bytes of names, link targets and attribute values. They are equal to the limits of Linux.
const (
	maxName   = 255
	maxTarget = 4096
	maxValue  = 64 << 10
)

// PutInode sets the fields in which the inode in the parameter new differs from the inode in the parameter old, or all
// fields if old is nil.
func (b *Batch) PutInode(new, old *Inode) {
	mask := hasAll
	if old != nil {
		mask = difference(new, old)
	}
	if mask == 0 {
		return
	}
	b.put(putInode, new.Node)
	b.uint(uint64(mask))
	for i, v := range [...]uint32{new.Mode, new.Nlink, new.UID, new.GID, new.Rdev, new.Flags} {
		if mask&(hasMode<<i) != 0 {
			b.uint(uint64(v))
		}
	}
	if mask&hasSize != 0 {
		b.uint(uint64(new.Size - SizeOfBase)) // the difference is never negative, because SizeOfBase is the minimum
	}
	for i, v := range [...]int64{new.Atime, new.Mtime, new.Ctime} {
		if mask&(hasAtime<<i) != 0 {
			b.b = binary.LittleEndian.AppendUint64(b.b, uint64(v))
		}
	}
	if mask&hasContent != 0 {
		b.uint(new.Content)
	}
	if mask&hasParent != 0 {
		b.uint(uint64(new.Parent))
	}
	if new.Size < SizeOfBase {
		b.fail("inode %d: invalid size %d", new.Node, new.Size)
	}
}

// difference returns a mask of the fields in which two inodes differ.
func difference(a, b *Inode) (mask int) {
	for i, differs := range [...]bool{
		a.Mode != b.Mode, a.Nlink != b.Nlink, a.UID != b.UID, a.GID != b.GID, a.Rdev != b.Rdev, a.Flags != b.Flags,
		a.Size != b.Size, a.Atime != b.Atime, a.Mtime != b.Mtime, a.Ctime != b.Ctime,
		a.Content != b.Content, a.Parent != b.Parent,
	} {
		if differs {
			mask |= 1 << i
		}
	}
	return mask
}

// SetEntry makes name in dir an entry for n.
func (b *Batch) SetEntry(dir Node, name string, n Node) {
	b.entry(putEntry, dir, name)
	b.node(n)
}

// Hide makes a name absent, whether or not the base tree has it.
func (b *Batch) Hide(dir Node, name string) { b.entry(putHidden, dir, name) }

// ClearEntry removes the table's entry for a name, so that the base tree's entry is used.
func (b *Batch) ClearEntry(dir Node, name string) { b.entry(putClear, dir, name) }

// SetTarget sets the target of a symbolic link, at most maxTarget bytes.
func (b *Batch) SetTarget(n Node, target string) {
	b.put(putTarget, n)
	b.string(target)
	if len(target) > maxTarget {
		b.fail("symbolic link target is too long: %d bytes", len(target))
	}
}

// SetXattr sets an extended attribute, whose value has at most maxValue bytes.
func (b *Batch) SetXattr(n Node, name string, value []byte) {
	b.put(putXattr, n)
	b.name(name)
	b.uint(uint64(len(value)))
	b.b = append(b.b, value...)
	if len(value) > maxValue {
		b.fail("extended attribute %s is too large: %d bytes", name, len(value))
	}
}

// RemoveXattr removes an extended attribute.
func (b *Batch) RemoveXattr(n Node, name string) {
	b.put(putNoXattr, n)
	b.name(name)
}

// Drop removes a node with its inode, target and attributes, and with its entries if it is a directory. Entries in
// other directories that name the node stay.
func (b *Batch) Drop(n Node) { b.put(putDrop, n) }

// DeadContent records that a contents file must be removed.
func (b *Batch) DeadContent(number uint64) { b.number(putDead, number) }

// ContentGone records that a dead contents file has been removed.
func (b *Batch) ContentGone(number uint64) { b.number(putGone, number) }

// SetCounter sets a counter. CounterGeneration can only be raised.
func (b *Batch) SetCounter(c Counter, v uint64) {
	b.begin(putCounter)
	b.b = append(b.b, byte(c))
	b.uint(v)
	if c >= maxCounter {
		b.fail("unknown counter %d", c)
	}
}

// Request records that the batch was made for the kernel's request with this id. The parameter made is the node that
// the request created, or 0 if the request created none.
func (b *Batch) Request(id uint64, made Node) {
	b.begin(putRequest)
	b.uint(id)
	b.uint(uint64(made))
	if made != 0 && !made.valid() {
		b.fail("invalid node number %d", made)
	}
}

// ForgetRequests removes all recorded requests. It is used when these requests came from another kernel.
func (b *Batch) ForgetRequests() { b.begin(putForgotten) }

// entryAt does the same as SetEntry, or as Hide if n is 0, and also sets nth, the entry's number among the names with
// the same hash. Only dumps use entryAt.
func (b *Batch) entryAt(dir Node, name string, n Node, nth uint16) {
	if n == 0 {
		b.entry(putHiddenAt, dir, name)
	} else {
		b.entry(putEntryAt, dir, name)
		b.node(n)
	}
	b.uint(uint64(nth))
}

// begin appends the code of a put.
func (b *Batch) begin(c code) {
	b.b = append(b.b, byte(c))
	b.puts++
}

// put appends the code of a put and the node that the put changes.
func (b *Batch) put(c code, n Node) {
	b.begin(c)
	b.node(n)
}

// node appends a node number.
func (b *Batch) node(n Node) {
	b.uint(uint64(n))
	if !n.valid() {
		b.fail("invalid node number %d", n)
	}
}

// entry appends the code of a put, a directory, and the name of an entry in the directory.
func (b *Batch) entry(c code, dir Node, name string) {
	b.put(c, dir)
	b.name(name)
	if name == "." || name == ".." || strings.Contains(name, "/") {
		b.fail("invalid entry name %q", name)
	}
}

// name appends a file or attribute name, and records an error if the name is invalid.
func (b *Batch) name(s string) {
	if s == "" || len(s) > maxName || strings.Contains(s, "\x00") {
		b.fail("name %.40q is empty or too long: %d bytes", s, len(s))
	}
	b.string(s)
}

// number appends the code of a put and a number, which must not be 0.
func (b *Batch) number(c code, number uint64) {
	b.begin(c)
	b.uint(number)
	if number == 0 {
		b.fail("number is 0, want at least 1")
	}
}

// uint appends a number as a uvarint.
func (b *Batch) uint(v uint64) { b.b = binary.AppendUvarint(b.b, v) }

// string appends the length of a string and its bytes.
func (b *Batch) string(s string) {
	b.uint(uint64(len(s)))
	b.b = append(b.b, s...)
}

// fail records an error for the first invalid put.
func (b *Batch) fail(format string, args ...any) {
	if b.err == nil {
		b.err = fmt.Errorf(format+": %w", append(args, ErrBatch)...)
	}
}

// valid reports whether the table can store a node: a base node, or an own node whose slot is within range.
func (n Node) valid() bool {
	if n.Own() {
		return slot(n) >= firstRecord && slot(n) < maxSlots
	}
	return n != 0
}
