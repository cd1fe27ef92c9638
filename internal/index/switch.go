package index

import (
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/object"
)

// Switch makes the changes of a checkout, whose files are on disk as the new entries say. Unlike Apply it leaves what is
// known of untracked files as far as that stays right: where there are none, there still are none. Other tells whether
// there is any file below a directory that is not tracked, ignored or not: only then do other ignore rules matter. Read says
// that git may read ignore files that were changed, whose contents it has not seen.
func (x *Index) Switch(changes []Change, other func(dir string) bool, read bool) {
	known := x.Untracked
	x.Untracked = nil
	x.Apply(changes)
	x.Untracked = known
	if known == nil || known.Root == nil {
		return
	}
	for _, c := range changes {
		d := known.switched(c.Entry.Path)
		switch dir, name := split(c.Entry.Path); {
		case d == nil || name != known.PerDirectory:
		case other(dir):
			d.forget()
		case read && !c.Gone && c.Entry.Mode != object.ModeSymlink && !d.Ignore.IsZero():
			d.Ignore = c.Entry.ID
		default:
			d.Ignore = object.ID{} // git reads them when it has to look at the directory
		}
	}
	for _, c := range changes {
		if c.Gone {
			x.prune(c.Entry.Path)
		}
	}
}

// switched makes git look again at the directories on the way to a path, if one of them has untracked files: which of them
// are shown by their names, and which by a directory's, may have changed. It gives the path's directory, if that is known.
func (u *Untracked) switched(path string) *Directory {
	d, rest := u.Root, path
	chain := []*Directory{d}
	for {
		name, below, more := strings.Cut(rest, "/")
		if !more {
			break
		}
		i := slices.IndexFunc(d.Sub, func(s *Directory) bool { return s.Name == name })
		if i < 0 {
			d = nil
			break
		}
		d, rest = d.Sub[i], below
		chain = append(chain, d)
	}
	if slices.ContainsFunc(chain, func(d *Directory) bool { return len(d.Files) > 0 }) {
		for _, d := range chain {
			d.Valid, d.Files = false, nil
		}
	}
	return d
}

func split(path string) (dir, name string) {
	i := strings.LastIndexByte(path, '/')
	return path[:max(i, 0)], path[i+1:]
}

// forget makes git look at a directory and all below.
func (d *Directory) forget() {
	d.Valid, d.Files = false, nil
	for _, s := range d.Sub {
		s.forget()
	}
}

// prune takes out the directories of a path in which no entry is left.
func (x *Index) prune(path string) {
	d := x.Untracked.Root
	for at := 0; ; {
		i := strings.IndexByte(path[at:], '/')
		if i < 0 {
			return
		}
		name, prefix := path[at:at+i], path[:at+i+1]
		sub := slices.IndexFunc(d.Sub, func(s *Directory) bool { return s.Name == name })
		if sub < 0 {
			return
		}
		first, _ := slices.BinarySearchFunc(x.Entries, prefix, func(e Entry, prefix string) int { return strings.Compare(e.Path, prefix) })
		if first == len(x.Entries) || !strings.HasPrefix(x.Entries[first].Path, prefix) {
			d.Sub = slices.Delete(d.Sub, sub, sub+1)
			return
		}
		d, at = d.Sub[sub], at+i+1
	}
}

// Heard notes what the file system monitor says: these paths may differ from what the index knew at its token, those below
// one that ends in a slash too, and from now on the token is another. Paths for which spare says so are as they are noted.
func (x *Index) Heard(token string, paths []string, spare func(path string) bool) {
	if x.Token == "" {
		return
	}
	x.Token = token
	for _, p := range paths {
		dir, isDir := strings.CutSuffix(p, "/")
		if !isDir && spare(p) {
			continue
		}
		x.Untracked.invalidate(dir)
		first, _ := slices.BinarySearchFunc(x.Entries, dir, func(e Entry, path string) int { return strings.Compare(e.Path, path) })
		for i := first; i < len(x.Entries) && strings.HasPrefix(x.Entries[i].Path, dir); i++ {
			e := &x.Entries[i]
			if (e.Path == dir || isDir && strings.HasPrefix(e.Path, p)) && !spare(e.Path) {
				e.Valid = false
			}
		}
	}
}
