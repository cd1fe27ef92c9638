// Package acl reads and changes POSIX access control lists in the form in which Linux keeps them in extended attributes
// (uapi/linux/posix_acl_xattr.h). The kernel checks permissions by them; a file system keeps lists and modes in step, and
// makes what new files inherit: that is here, by the rules of acl(5).
package acl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// Names of the extended attributes.
const (
	Access  = "system.posix_acl_access"
	Default = "system.posix_acl_default" // of a directory: what its new entries inherit
)

// IsName reports whether an extended attribute is an access control list.
func IsName(name string) bool { return name == Access || name == Default }

// tag is whom an entry is about.
type tag uint16

const (
	userObj  tag = 1 << iota // the file's owner
	user                     // the user ID
	groupObj                 // the file's group
	group                    // the group ID
	mask                     // the most that user, groupObj and group may
	other
)

const (
	version    = 2
	headerSize = 4
	entrySize  = 8
)

type entry struct {
	tag  tag
	perm uint16 // rwx
	id   uint32 // of user and group
}

// List is an access control list. The empty List is none.
type List []entry

// ErrFormat marks bytes that are no access control list.
var ErrFormat = errors.New("no access control list")

// Parse reads the value of an extended attribute. It requires what makes a list complete, and nothing of the order of
// entries, which the kernel has checked.
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

// Bytes returns the value of an extended attribute.
func (l List) Bytes() []byte {
	b := binary.LittleEndian.AppendUint32(make([]byte, 0, headerSize+len(l)*entrySize), version)
	for _, e := range l {
		b = binary.LittleEndian.AppendUint16(b, uint16(e.tag))
		b = binary.LittleEndian.AppendUint16(b, e.perm)
		b = binary.LittleEndian.AppendUint32(b, e.id)
	}
	return b
}

// Extended reports whether a list says more than a mode can.
func (l List) Extended() bool {
	return slices.ContainsFunc(l, func(e entry) bool { return e.tag == user || e.tag == group || e.tag == mask })
}

// shift is where the permissions of an entry are in a mode; -1: not in it. With a mask the group bits are the mask's.
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

// Mode returns a mode with the permission bits that the list stands for.
func (l List) Mode(mode uint32) uint32 {
	for _, e := range l {
		if s := l.shift(e.tag); s >= 0 {
			mode = mode&^(7<<s) | uint32(e.perm)<<s
		}
	}
	return mode
}

// WithMode returns the list after a chmod(2) to mode.
func (l List) WithMode(mode uint32) List {
	changed := slices.Clone(l)
	for i, e := range changed {
		if s := l.shift(e.tag); s >= 0 {
			changed[i].perm = uint16(mode >> s & 7)
		}
	}
	return changed
}

// Inherit returns the access list and the mode of what is made with mode in a directory whose default list l is: both have
// what the other allows as well.
func (l List) Inherit(mode uint32) (List, uint32) {
	allowed := l.Mode(mode) | ^uint32(0o777)
	return l.WithMode(mode & allowed), mode & allowed
}
