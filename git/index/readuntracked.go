package index

import (
	"fmt"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
)

// stat parses stat data in the form that UNTR contains, which has no mode.
func (r *reader) stat() (Stat, error) {
	b, err := r.take(statSize)
	if err != nil {
		return Stat{}, err
	}
	return readStat(b, b[24:]), nil
}

// orNone parses an id. An id of zeros stands for no id, and is returned as the zero object.ID.
func (r *reader) orNone() (object.ID, error) {
	id, err := r.id()
	if err == nil && strings.Trim(string(id.Bytes()), "\x00") == "" {
		id = object.ID{}
	}
	return id, err
}

// untracked parses UNTR, the untracked cache.
func (r *reader) untracked() (*Untracked, error) {
	u := &Untracked{}
	n, err := r.varint()
	if err != nil {
		return nil, err
	}
	ident, err := r.take(n)
	if err != nil {
		return nil, err
	}
	u.Ident, _, _ = strings.Cut(ident, "\x00") // old versions of git wrote several strings; use only the first one
	for _, x := range []*Exclude{&u.InfoExclude, &u.ExcludesFile} {
		if x.Stat, err = r.stat(); err != nil {
			return nil, err
		}
	}
	flags, err := r.take(4)
	if err != nil {
		return nil, err
	}
	u.Flags = number(flags, 0)
	for _, x := range []*Exclude{&u.InfoExclude, &u.ExcludesFile} {
		if x.ID, err = r.orNone(); err != nil {
			return nil, err
		}
	}
	if u.PerDirectory, err = r.name(); err != nil {
		return nil, err
	}
	if n, err = r.varint(); err != nil || n == 0 {
		return u, err
	}
	return u, r.directories(u, n)
}

// directories parses the n directories of UNTR: first their names, depth first, then three bitmaps with one bit for
// each directory, then the stat data, and then the ids of the ignore files.
func (r *reader) directories(u *Untracked, n int) error {
	// Each directory takes at least 3 bytes, so a wrong n cannot make the slice too large.
	all := make([]*Directory, 0, min(n, len(r.text)/3))
	var err error
	if u.Root, err = r.directory(&all, 0); err != nil {
		return err
	}
	if len(all) != n {
		return fmt.Errorf("untracked cache has %d directories, but states %d", len(all), n)
	}
	var maps [3]bitmap // valid directories, check-only directories, and directories whose ignore file has an id
	for i := range maps {
		var size int
		if maps[i], size, err = readBitmap([]byte(r.text[r.at:]), n); err != nil {
			return err
		}
		r.at += size
	}
	// Only valid directories have stat data.
	for i, d := range all {
		d.CheckOnly = maps[1].has(i)
		if d.Valid = maps[0].has(i); d.Valid {
			if d.Stat, err = r.stat(); err != nil {
				return err
			}
		}
	}
	for i, d := range all {
		if maps[2].has(i) {
			if d.Ignore, err = r.orNone(); err != nil {
				return err
			}
		}
	}
	return nil
}

// directory parses the names of a directory and of the directories below it, and appends the directories to all.
func (r *reader) directory(all *[]*Directory, depth int) (*Directory, error) {
	files, err := r.varint()
	if err != nil {
		return nil, err
	}
	subs, err := r.varint()
	if err != nil {
		return nil, err
	}
	d := &Directory{}
	if d.Name, err = r.name(); err != nil {
		return nil, err
	}
	if depth > maxDepth {
		return nil, errShort
	}
	for range files {
		name, err := r.name()
		if err != nil {
			return nil, err
		}
		d.Files = append(d.Files, name)
	}
	*all = append(*all, d)
	for range subs {
		s, err := r.directory(all, depth+1)
		if err != nil {
			return nil, err
		}
		d.Sub = append(d.Sub, s)
	}
	return d, nil
}
