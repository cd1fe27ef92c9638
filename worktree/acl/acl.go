// Package acl reads and changes POSIX access control lists in the format in which Linux stores them in extended
// attributes (uapi/linux/posix_acl_xattr.h). The kernel checks permissions according to these lists. The file system
// has two tasks, which this package implements according to acl(5): the list and the mode of a file must agree, and a
// new file gets a list and a mode that depend on its directory.
package acl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// These are the names of the extended attributes that contain access control lists.
const (
	Access  = "system.posix_acl_access"  // list that applies to the file itself
	Default = "system.posix_acl_default" // list that the new entries of a directory inherit
)

// IsName reports whether an extended attribute is an access control list.
func IsName(name string) bool { return name == Access || name == Default }

// tag states to which users or groups an entry of a list applies.
type tag uint16

const (
	userObj  tag = 1 << iota // the file's owner
	user                     // the user with the ID entry.id
	groupObj                 // the file's group
	group                    // the group with the ID entry.id
	mask                     // maximum permissions of user, groupObj and group
	other                    // all other users
)

const (
	version    = 2 // value of the first four bytes of the attribute
	headerSize = 4 // in bytes
	entrySize  = 8 // in bytes
)

// entry is one entry of a list: the permissions of one user, one group or a class of users.
type entry struct {
	tag  tag
	perm uint16 // permission bits as in one digit of a mode: 4 is read, 2 is write, 1 is execute
	id   uint32 // ID of a user or group; used only with the tags user and group
}

// List is an access control list. An empty List stands for a file without an access control list.
type List []entry

// ErrFormat means that the value of an attribute is not a valid access control list.
var ErrFormat = errors.New("invalid access control list")

// Parse decodes the value of an extended attribute. It returns ErrFormat if the value is malformed, if a required entry
// is missing, or if an entry that may occur only once occurs twice. It does not check the order of the entries, which
// the kernel has checked already.
func Parse(value []byte) (List, error) {
	if len(value) < headerSize || (len(value)-headerSize)%entrySize != 0 || binary.LittleEndian.Uint32(value) != version {
		return nil, fmt.Errorf("%w: %d bytes", ErrFormat, len(value))
	}
	var l List
	var seen tag
	for b := value[headerSize:]; len(b) > 0; b = b[entrySize:] {
		e := entry{tag(binary.LittleEndian.Uint16(b)), binary.LittleEndian.Uint16(b[2:]), binary.LittleEndian.Uint32(b[4:])}
		switch e.tag {
		case userObj, groupObj, mask, other:
			if seen&e.tag != 0 {
				return nil, fmt.Errorf("%w: two entries with tag %#x", ErrFormat, e.tag)
			}
		case user, group:
		default:
			return nil, fmt.Errorf("%w: tag %#x", ErrFormat, e.tag)
		}
		if e.perm&^7 != 0 {
			return nil, fmt.Errorf("%w: permissions %#o", ErrFormat, e.perm)
		}
		seen |= e.tag
		l = append(l, e)
	}
	const all = userObj | groupObj | other
	if len(l) > 0 && (seen&all != all || seen&(user|group) != 0 && seen&mask == 0) {
		return nil, fmt.Errorf("%w: required entries are missing", ErrFormat)
	}
	return l, nil
}

// Bytes returns the list encoded as the value of an extended attribute.
func (l List) Bytes() []byte {
	b := binary.LittleEndian.AppendUint32(make([]byte, 0, headerSize+len(l)*entrySize), version)
	for _, e := range l {
		b = binary.LittleEndian.AppendUint16(b, uint16(e.tag))
		b = binary.LittleEndian.AppendUint16(b, e.perm)
		b = binary.LittleEndian.AppendUint32(b, e.id)
	}
	return b
}

// Extended reports whether the list has an entry that the permission bits of a mode cannot express.
func (l List) Extended() bool {
	return slices.ContainsFunc(l, func(e entry) bool { return e.tag == user || e.tag == group || e.tag == mask })
}

// shift returns the position, in a mode, of the three permission bits for entries with tag t. It returns -1 if the mode
// does not contain these permissions. If the list has a mask, the group bits of the mode contain the mask.
func (l List) shift(t tag) int {
	switch t {
	case userObj:
		return 6
	case mask:
		return 3
	case groupObj:
		if !slices.ContainsFunc(l, func(e entry) bool { return e.tag == mask }) {
			return 3
		}
	case other:
		return 0
	}
	return -1
}

// Mode returns the given mode with its permission bits set to those that the list expresses.
func (l List) Mode(mode uint32) uint32 {
	for _, e := range l {
		if s := l.shift(e.tag); s >= 0 {
			mode = mode&^(7<<s) | uint32(e.perm)<<s
		}
	}
	return mode
}

// WithMode returns a copy of the list as it is after a chmod(2) with the given mode: the entries that correspond to
// permission bits of the mode get these permissions.
func (l List) WithMode(mode uint32) List {
	changed := slices.Clone(l)
	for i, e := range changed {
		if s := l.shift(e.tag); s >= 0 {
			changed[i].perm = uint16(mode >> s & 7)
		}
	}
	return changed
}

// Inherit returns the access control list and the mode of a new file in a directory whose default list is l. mode is
// the mode that the creating process has requested. A permission bit is set if both mode and l contain the bit.
func (l List) Inherit(mode uint32) (List, uint32) {
	allowed := l.Mode(mode) | ^uint32(0o777)
	return l.WithMode(mode & allowed), mode & allowed
}
