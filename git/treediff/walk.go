package treediff

import (
	"path"
	"slices"

	"github.com/artifactfs/artifactfs/git/object"
)

// Walk compares a tree with other trees, its bases.
type Walk struct {
	Read func(id object.ID) ([]object.TreeEntry, error) // reads directories of the tree
	Base func(id object.ID) ([]object.TreeEntry, error) // reads directories of the bases; nil: Read
	// Visit gets the entry of the tree at a path, and the entries of the bases there in the order of the bases. An entry
	// has mode 0 if its tree does not contain the path. The directories at the path are compared if the result enter is
	// true. Visit must not keep the slice.
	Visit func(path string, entry object.TreeEntry, bases []object.TreeEntry) (enter bool, err error)
}

// Run visits the paths at which the entry of the tree differs from the entries of all bases. In each directory, the
// entries of the tree come first, in their order. A zero ID stands for the empty tree. An error of a function of w ends
// the walk and is returned.
func (w Walk) Run(tree object.ID, bases ...object.ID) error {
	return w.below("", append([]object.ID{tree}, bases...))
}

// below compares the entries of one directory. The parameter at is its path, and ids has its trees: first that of the
// tree, then those of the bases, zero if there is none.
func (w Walk) below(at string, ids []object.ID) error {
	if slices.Contains(ids[1:], ids[0]) {
		return nil
	}
	lists, named := make([][]object.TreeEntry, len(ids)), make([]map[string]object.TreeEntry, len(ids))
	for i, id := range ids {
		if id.IsZero() {
			continue
		}
		read := w.Read
		if i > 0 && w.Base != nil {
			read = w.Base
		}
		var err error
		if lists[i], err = read(id); err != nil {
			return err
		}
		if i > 0 {
			named[i] = make(map[string]object.TreeEntry, len(lists[i]))
			for _, e := range lists[i] {
				named[i][e.Name] = e
			}
		}
	}
	row := make([]object.TreeEntry, len(ids))
	for i, list := range lists {
		for _, e := range list {
			if row[0] = e; i > 0 {
				row[0] = object.TreeEntry{}
				if _, left := named[i][e.Name]; !left {
					continue
				}
			}
			for j := 1; j < len(ids); j++ {
				row[j] = named[j][e.Name]
				delete(named[j], e.Name)
			}
			if err := w.entry(path.Join(at, e.Name), row); err != nil {
				return err
			}
		}
	}
	return nil
}

// entry compares the entries at one path, in the order of the parameter ids of below, and everything below that path.
func (w Walk) entry(at string, row []object.TreeEntry) error {
	same := func(base object.TreeEntry) bool { return base.Mode == row[0].Mode && base.ID == row[0].ID }
	if slices.ContainsFunc(row[1:], same) {
		return nil
	}
	enter, err := w.Visit(at, row[0], row[1:])
	if err != nil || !enter {
		return err
	}
	ids := make([]object.ID, len(row))
	for i, e := range row {
		if e.Mode == object.ModeDir {
			ids[i] = e.ID
		}
	}
	return w.below(at, ids)
}
