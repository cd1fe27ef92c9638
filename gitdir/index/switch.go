package index

import (
	"slices"
	"strings"
)

// Switch makes the changes of a checkout, whose files are on disk as the new entries say. Unlike Apply it leaves what is
// known of untracked files as far as that stays right: where there are none, there still are none.
func (x *Index) Switch(changes []Change) {
	known := x.Untracked
	x.Untracked = nil
	x.Apply(changes)
	x.Untracked = known
	if known == nil || known.Root == nil {
		return
	}
	for _, c := range changes {
		known.switched(c.Entry.Path)
	}
	for _, c := range changes {
		if c.Gone {
			x.prune(c.Entry.Path)
		}
	}
}

// switched makes git look again at the directories on the way to a path, if one of them has untracked files: which of them
// are shown by their names, and which by a directory's, may have changed. Other ignore rules may change all below them.
func (u *Untracked) switched(path string) {
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
	if d != nil && rest == u.PerDirectory {
		d.forget()
	}
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
