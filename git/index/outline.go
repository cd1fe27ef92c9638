package index

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sort"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/varint"
)

// ErrNoOutline means that only Read can parse the index: it contains a conflict, an entry with a flag, or an entry that
// stands for a directory in a sparse index.
var ErrNoOutline = errors.New("index can only be read completely")

// Outline reads single entries of an index file when they are requested. A caller that needs few entries, or only the
// cache tree, saves the time for parsing all entries.
type Outline struct {
	Tree *Tree // cache tree, as in Index; nil if there is none

	format  object.Format // object format of the ids
	version uint32        // version of the index, 2 to 4
	data    []byte        // the file without the checksum at its end
	count   int           // number of entries
	marks   []cursor      // positions of every markEvery-th entry
}

// markEvery is the distance between two marks. To reach an entry, fewer than markEvery entries have to be skipped.
const markEvery = 64

// ReadOutline parses an index file as far as an Outline needs it. Like git, it does not verify the checksum when it
// reads an index. It returns ErrNoOutline if only Read can read the index, and ErrSplit if the index is split.
func ReadOutline(f object.Format, data []byte) (*Outline, error) {
	o, err := readOutline(f, data)
	if err != nil {
		return nil, fmt.Errorf("read index: %w", err)
	}
	return o, nil
}

// readOutline is ReadOutline with plain errors; ReadOutline adds to each error that the index could not be read.
func readOutline(f object.Format, data []byte) (*Outline, error) {
	body := len(data) - f.Size()
	if body < headerSize || string(data[:4]) != "DIRC" {
		return nil, errors.New("file is not a git index")
	}
	o := &Outline{format: f, version: binary.BigEndian.Uint32(data[4:]), data: data[:body],
		count: int(binary.BigEndian.Uint32(data[8:]))}
	if o.version < 2 || o.version > 4 {
		return nil, fmt.Errorf("unknown index version %d", o.version)
	}
	// The number of entries that the file states determines how much memory is needed. Refuse a number that is too large
	// for the size of the file before memory is allocated.
	if least := fixedSize + f.Size() + 2 + 1; o.count > body/least {
		return nil, fmt.Errorf("index states %d entries: %w", o.count, errShort)
	}
	c := cursor{at: headerSize}
	for i := range o.count {
		if i%markEvery == 0 {
			// The next call of next overwrites the path of the cursor c, so the mark contains a copy of the path.
			o.marks = append(o.marks, cursor{c.at, bytes.Clone(c.path)})
		}
		special, more, err := o.next(&c)
		switch {
		case err != nil:
			return nil, fmt.Errorf("index entry %d: %w", i, err)
		case special:
			return nil, ErrNoOutline
		case len(c.path) == 0:
			// an entry without a path replaces an entry of the shared index; it occurs only in a split index
			return nil, ErrSplit
		case !more:
			return nil, fmt.Errorf("entry %q is out of order", c.path)
		}
	}
	return o, o.extensions(c.at)
}

// cursor is a position in the index file, at the start of an entry or behind the last one.
type cursor struct {
	at   int    // offset of the entry in bytes
	path []byte // path of the previous entry, because an entry of version 4 contains only the difference from that path
}

// next moves the cursor behind the next entry and sets the cursor's path to the path of this entry. The result special
// is true if an Outline cannot represent the entry. The result more is true if the path of the entry is greater than
// the previous path, as the order of entries requires.
func (o *Outline) next(c *cursor) (special, more bool, err error) {
	at := c.at
	name := at + fixedSize + o.format.Size() + 2
	if name > len(o.data) {
		return false, false, errShort
	}
	flags := binary.BigEndian.Uint16(o.data[name-2:])
	special = flags&^maxNameInFlags != 0 || binary.BigEndian.Uint32(o.data[at+24:]) == uint32(object.ModeDir)
	if special {
		return true, false, nil
	}
	same := 0 // length of the prefix that is common with the previous path
	length := int(flags & maxNameInFlags)
	if o.version == 4 {
		count, n := varint.Decode(o.data[name:min(len(o.data), name+4)])
		gone := int(count)
		if n == 0 || gone > len(c.path) {
			return false, false, errShort
		}
		same, name = len(c.path)-gone, name+n
	}
	// The path ends at a NUL in two cases: if it is too long for the length field, and in version 4, in which an entry
	// contains only the end of the path.
	if o.version == 4 || length == maxNameInFlags {
		if length = bytes.IndexByte(o.data[name:], 0); length < 0 {
			return false, false, errShort
		}
	}
	end := name + length
	// In versions 2 and 3 an entry is padded with 1 to 8 NULs to a multiple of 8 bytes.
	if c.at = end + 1; o.version < 4 {
		c.at = end + 8 - (end-at)%8
	}
	if c.at > len(o.data) || same+length > maxPath {
		return false, false, errShort
	}
	more = bytes.Compare(c.path[same:], o.data[name:end]) < 0
	c.path = append(c.path[:same], o.data[name:end]...)
	return false, more, nil
}

// extensions parses the extensions, which follow the entries, and stores the extension TREE. It ignores all other
// optional extensions. The parameter at is the offset of the first extension in bytes.
func (o *Outline) extensions(at int) error {
	r := reader{x: &Index{Format: o.format}}
	for at < len(o.data) {
		if len(o.data)-at < 8 {
			return errShort
		}
		name, size := o.data[at:at+4], int64(binary.BigEndian.Uint32(o.data[at+4:]))
		at += 8
		if size > int64(len(o.data)-at) {
			return fmt.Errorf("index extension %.4q: %w", name, errShort)
		}
		body := o.data[at : at+int(size)]
		at += int(size)
		switch {
		case string(name) == "TREE":
			r.text, r.at = string(body), 0
			var err error
			if o.Tree, err = r.tree(0, o.count); err == nil && r.at < len(body) {
				err = errors.New("cache tree has more than one root")
			}
			if err != nil {
				return fmt.Errorf("index extension %.4q: %w", name, err)
			}
		case string(name) == "link":
			return ErrSplit
		// A name that begins with a lower-case letter marks an extension that every reader must support. sdir needs no
		// support here, because next refuses the entries that stand for directories.
		case string(name) != "sdir" && (name[0] < 'A' || name[0] > 'Z'):
			return fmt.Errorf("index extension %.4q is required but unknown", name)
		}
	}
	return nil
}

// Len returns the number of entries.
func (o *Outline) Len() int { return o.count }

// before returns a cursor that is positioned at the start of entry i.
func (o *Outline) before(i int) cursor {
	m := o.marks[i/markEvery]
	c := cursor{m.at, bytes.Clone(m.path)}
	for range i % markEvery {
		_, _, _ = o.next(&c) // readOutline has already parsed this entry without an error
	}
	return c
}

// Entry returns entry i. Its field Valid is always false, because FSMN is not parsed.
func (o *Outline) Entry(i int) (Entry, error) {
	c := o.before(i)
	b := string(o.data[c.at : c.at+fixedSize])
	id, err := object.FromBytes(o.data[c.at+fixedSize : c.at+fixedSize+o.format.Size()])
	if err != nil {
		return Entry{}, fmt.Errorf("read index entry %d: %w", i, err)
	}
	_, _, _ = o.next(&c)
	e := Entry{Path: string(c.path), Mode: object.Mode(number(b, 24)), ID: id, Stat: readStat(b, b[28:])}
	if !e.Mode.IsBlob() && e.Mode != object.ModeGitlink {
		return Entry{}, fmt.Errorf("read index entry %d: invalid mode %o", i, uint32(e.Mode))
	}
	return e, nil
}

// Search returns the index of the first entry in [lo, hi) whose path is not less than path, or hi if there is no such
// entry.
func (o *Outline) Search(lo, hi int, path string) int {
	return lo + sort.Search(hi-lo, func(i int) bool {
		c := o.before(lo + i)
		_, _, _ = o.next(&c)
		return string(c.path) >= path
	})
}
