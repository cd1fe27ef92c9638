// Package acl reads and changes POSIX access control lists in the form in which Linux stores them in extended attributes
// (uapi/linux/posix_acl_xattr.h). The kernel checks permissions by these lists. The file system has two duties, which this
// package implements by the rules of acl(5): it keeps the list and the mode of a file consistent, and it computes the list and
// the mode that a new file inherits from its directory.
package acl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// Names of the extended attributes.
const (
	Access  = "system.posix_acl_access"  // list that applies to the file itself
	Default = "system.posix_acl_default" // of a directory: list that new entries inherit
)

// IsName reports whether an extended attribute is an access control list.
func IsName(name string) bool { return name == Access || name == Default }

// tag is the kind of user or group that an entry of a list applies to.
type tag uint16

const (
	userObj  tag = 1 << iota // the file's owner
	user                     // the user entry.id
	groupObj                 // the file's group
	group                    // the group entry.id
	mask                     // upper bound of the permissions of user, groupObj and group
	other                    // all other users
)

const (
	version    = 2 // first four bytes of the attribute's value
	headerSize = 4 // in bytes
	entrySize  = 8 // in bytes
)

// entry is one entry of a list: the permissions of one user, one group or a class of users.
type entry struct {
	tag  tag
	perm uint16 // bits as in one digit of a mode: 4 read, 2 write, 1 execute
	id   uint32 // user or group ID; meaningful for the tags user and group only
}

// List is an access control list. The empty List stands for no list.
type List []entry

// ErrFormat is returned for bytes that are not a valid access control list.
var ErrFormat = errors.New("no access control list")

// Parse decodes the value of an extended attribute. It returns ErrFormat if the value is malformed, if a required entry is
// missing or if an entry that must be unique occurs twice. It does not check the order of the entries, which the kernel has
// checked already.
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
		return nil, fmt.Errorf("%w: entries are missing", ErrFormat)
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

// shift returns the number of the lowest bit of a mode that holds the permissions of entries with tag t, or -1 if the mode
// does not contain these permissions. If the list has a mask, the group bits of the mode are those of the mask.
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

// Mode returns mode with its permission bits replaced by those that the list expresses.
func (l List) Mode(mode uint32) uint32 {
	for _, e := range l {
		if s := l.shift(e.tag); s >= 0 {
			mode = mode&^(7<<s) | uint32(e.perm)<<s
		}
	}
	return mode
}

// WithMode returns a copy of the list as it is after a chmod(2) to mode: entries that correspond to permission bits have those
// of mode.
func (l List) WithMode(mode uint32) List {
	changed := slices.Clone(l)
	for i, e := range changed {
		if s := l.shift(e.tag); s >= 0 {
			changed[i].perm = uint16(mode >> s & 7)
		}
	}
	return changed
}

// Inherit returns the access list and the mode of a file that is created with the given mode in a directory whose default list
// is l. A permission bit is set only if both the given mode and l allow it.
func (l List) Inherit(mode uint32) (List, uint32) {
	allowed := l.Mode(mode) | ^uint32(0o777)
	return l.WithMode(mode & allowed), mode & allowed
}
