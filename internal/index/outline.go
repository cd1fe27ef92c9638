package index

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sort"

	"github.com/artifactfs/artifactfs/internal/varint"
	"github.com/artifactfs/artifactfs/object"
)

// ErrNoOutline says that an index is for Read: not all of its entries are files with a path and an id, and nothing else that
// commands have set.
var ErrNoOutline = errors.New("index has no outline")

// Outline is an index file of which entries are read when they are asked for: who wants to know which trees it stands for
// need not look at most of them.
type Outline struct {
	Tree *Tree // as in Index

	format  object.Format
	version uint32
	data    []byte
	count   int
	marks   []cursor // before each markEvery-th entry
}

// markEvery is how many entries are passed over, at most, to get at one.
const markEvery = 64

// ReadOutline makes the outline of an index file. The checksum is not looked at, nor does git when it reads an index.
func ReadOutline(f object.Format, data []byte) (*Outline, error) {
	o, err := readOutline(f, data)
	if err != nil {
		return nil, fmt.Errorf("read index: %w", err)
	}
	return o, nil
}

func readOutline(f object.Format, data []byte) (*Outline, error) {
	body := len(data) - f.Size()
	if body < headerSize || string(data[:4]) != "DIRC" {
		return nil, errors.New("no index")
	}
	o := &Outline{format: f, version: binary.BigEndian.Uint32(data[4:]), data: data[:body], count: int(binary.BigEndian.Uint32(data[8:]))}
	if o.version < 2 || o.version > 4 {
		return nil, fmt.Errorf("version %d", o.version)
	}
	if least := fixedSize + f.Size() + 2 + 1; o.count > body/least {
		return nil, fmt.Errorf("%d entries: %w", o.count, errShort)
	}
	c := cursor{at: headerSize}
	for i := range o.count {
		if i%markEvery == 0 {
			o.marks = append(o.marks, cursor{c.at, bytes.Clone(c.path)})
		}
		special, more, err := o.next(&c)
		switch {
		case err != nil:
			return nil, fmt.Errorf("entry %d: %w", i, err)
		case special:
			return nil, ErrNoOutline
		case len(c.path) == 0: // it stands for one of the other file
			return nil, ErrSplit
		case !more:
			return nil, fmt.Errorf("%q out of order", c.path)
		}
	}
	return o, o.extensions(c.at)
}

// cursor stands before an entry.
type cursor struct {
	at   int    // offset of it
	path []byte // of the entry before
}

// next passes over an entry, whose path the cursor has then. special: it is not for an outline; more: its path is greater than
// the one before.
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
	same := 0 // bytes of the path before that stay
	length := int(flags & maxNameInFlags)
	if o.version == 4 {
		count, n := varint.Decode(o.data[name:min(len(o.data), name+4)])
		gone := int(count)
		if n == 0 || gone > len(c.path) {
			return false, false, errShort
		}
		same, name = len(c.path)-gone, name+n
	}
	if o.version == 4 || length == maxNameInFlags {
		if length = bytes.IndexByte(o.data[name:], 0); length < 0 {
			return false, false, errShort
		}
	}
	end := name + length
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

// extensions reads what is behind the entries.
func (o *Outline) extensions(at int) error {
	r := reader{x: &Index{Format: o.format}}
	for at < len(o.data) {
		if len(o.data)-at < 8 {
			return errShort
		}
		name, size := o.data[at:at+4], int64(binary.BigEndian.Uint32(o.data[at+4:]))
		at += 8
		if size > int64(len(o.data)-at) {
			return fmt.Errorf("extension %.4q: %w", name, errShort)
		}
		body := o.data[at : at+int(size)]
		at += int(size)
		switch {
		case string(name) == "TREE":
			r.text, r.at = string(body), 0
			var err error
			if o.Tree, err = r.tree(0, o.count); err == nil && r.at < len(body) {
				err = errors.New("more than one root")
			}
			if err != nil {
				return fmt.Errorf("extension %.4q: %w", name, err)
			}
		case string(name) == "link":
			return ErrSplit
		case string(name) != "sdir" && (name[0] < 'A' || name[0] > 'Z'):
			return fmt.Errorf("extension %.4q: not known, and not optional", name)
		}
	}
	return nil
}

// Len is how many entries there are.
func (o *Outline) Len() int { return o.count }

// before gives a cursor that stands before an entry.
func (o *Outline) before(i int) cursor {
	m := o.marks[i/markEvery]
	c := cursor{m.at, bytes.Clone(m.path)}
	for range i % markEvery {
		_, _, _ = o.next(&c) // it was read before
	}
	return c
}

// Entry reads an entry.
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
		return Entry{}, fmt.Errorf("read index entry %d: mode %o", i, uint32(e.Mode))
	}
	return e, nil
}

// Search gives the first entry from lo on, before hi, whose path is not less than path; hi if there is none.
func (o *Outline) Search(lo, hi int, path string) int {
	return lo + sort.Search(hi-lo, func(i int) bool {
		c := o.before(lo + i)
		_, _, _ = o.next(&c)
		return string(c.path) >= path
	})
}
