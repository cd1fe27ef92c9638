package odb

import (
	"errors"
	"io"

	"github.com/artifactfs/artifactfs/git/object"
)

// Source is a source of verified objects.
type Source interface {
	// Get returns an object's type and contents. It fails if the contents are larger than limit, in
	// bytes.
	Get(id object.ID, limit int64) (object.Type, []byte, error)
	// Size returns an object's type and its size in bytes.
	Size(id object.ID) (object.Type, int64, error)
	// WriteTo writes an object's contents to w, without holding them in memory.
	WriteTo(id object.ID, w io.Writer) error
}

var (
	_ Source = (*Store)(nil)
	_ Source = (*Loose)(nil)
	_ Source = (*Dir)(nil)
)

// Dir reads an `objects` directory in which git may repack at any time.
type Dir struct {
	Packs *Store
	Loose Source
}

// OpenDir returns the Dir for the objects directory dir. The parameter packs is the Store of the same directory.
func OpenDir(dir string, packs *Store) *Dir {
	return &Dir{Packs: packs, Loose: NewLoose(dir, packs.Format())}
}

// sources returns the sources in the order in which an object is searched: packs, loose objects, packs. The packs are
// searched twice because git may pack a loose object after the first search: git creates the pack and then removes the
// loose file. A search of the Store that does not find the object reads the list of packs again.
func (d *Dir) sources() [3]Source { return [3]Source{d.Packs, d.Loose, d.Packs} }

// Get returns an object's type and contents, as Store.Get does.
func (d *Dir) Get(id object.ID, limit int64) (t object.Type, content []byte, err error) {
	for _, from := range d.sources() {
		if t, content, err = from.Get(id, limit); err == nil {
			break
		}
	}
	return t, content, err
}

// Size returns an object's type and its size in bytes. If other programs can change the directory, it reads the whole
// object, because an invalid one must not hide a valid one in another directory.
func (d *Dir) Size(id object.ID) (t object.Type, size int64, err error) {
	for _, from := range d.sources() {
		if t, size, err = from.Size(id); err == nil && d.Packs.foreign {
			err = from.WriteTo(id, io.Discard)
		}
		if err == nil {
			break
		}
	}
	return t, size, err
}

// WriteTo writes an object's contents to w. It tries the next source only after ErrNotFound, because other errors may
// occur after a part was written.
func (d *Dir) WriteTo(id object.ID, w io.Writer) (err error) {
	for _, from := range d.sources() {
		if err = from.WriteTo(id, w); !errors.Is(err, ErrNotFound) {
			break
		}
	}
	return err
}

// Has reports whether the directory has an object. It is faster than Size for objects that are
// missing, and searches in the same order.
func (d *Dir) Has(id object.ID) bool {
	if d.Packs.Has(id) {
		return true
	}
	if _, _, err := d.Loose.Size(id); err == nil {
		return true
	}
	return d.Packs.Refresh() == nil && d.Packs.Has(id)
}
