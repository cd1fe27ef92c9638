package index

import (
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/object"
)

// Change is a path that becomes another entry, or no entry any more.
type Change struct {
	Entry Entry // of a path that goes, only the path matters
	Gone  bool
}

// Apply makes changes, each path once. Whatever stages a path had go. The trees along a changed path are not known any
// more, and neither is what is untracked there. A path that was a directory, or becomes one, is changed by the changes of
// what was in it, or comes to be.
func (x *Index) Apply(changes []Change) {
	changes = slices.Clone(changes)
	slices.SortFunc(changes, func(a, b Change) int { return strings.Compare(a.Entry.Path, b.Entry.Path) })
	merged := make([]Entry, 0, len(x.Entries)+len(changes))
	rest := x.Entries
	for i := range changes {
		c := &changes[i]
		n, _ := slices.BinarySearchFunc(rest, c.Entry.Path, func(e Entry, path string) int { return strings.Compare(e.Path, path) })
		merged = append(merged, rest[:n]...)
		rest = rest[n:]
		same, had := false, false
		for len(rest) > 0 && rest[0].Path == c.Entry.Path {
			had = true
			same = !c.Gone && rest[0].Stage == 0 && rest[0].ID == c.Entry.ID && rest[0].Mode == c.Entry.Mode && rest[0].IntentToAdd == c.Entry.IntentToAdd
			rest = rest[1:]
		}
		if !c.Gone {
			merged = append(merged, c.Entry)
		}
		if !same && (had || !c.Gone) {
			x.Tree.invalidate(c.Entry.Path)
		}
		if had == c.Gone { // it was not there and is, or the other way round
			x.Untracked.invalidate(c.Entry.Path)
		}
	}
	x.Entries = append(merged, rest...)
}

// invalidate forgets the ids of the trees that hold path, and a tree in its place.
func (t *Tree) invalidate(path string) {
	for t != nil {
		t.Count = -1
		name, rest, below := strings.Cut(path, "/")
		i := slices.IndexFunc(t.Sub, func(s *Tree) bool { return s.Name == name })
		switch {
		case i < 0:
			return
		case !below:
			t.Sub = slices.Delete(t.Sub, i, i+1)
			return
		}
		t, path = t.Sub[i], rest
	}
}

// invalidate makes git look into the directory that holds path. Where it lists a directory by its name alone, the change
// may make it do so or not any more with every directory above.
func (u *Untracked) invalidate(path string) {
	if u == nil {
		return
	}
	for d := u.Root; d != nil; {
		name, rest, below := strings.Cut(path, "/")
		if u.Flags&ShowNormal != 0 || !below {
			d.Valid, d.Files = false, nil
		}
		i := slices.IndexFunc(d.Sub, func(s *Directory) bool { return s.Name == name })
		if !below || i < 0 {
			return
		}
		d, path = d.Sub[i], rest
	}
}

// SetTrees tells the trees that the entries stand for where that is not known: id gives the tree of a directory, "" for
// the root, or false.
func (x *Index) SetTrees(id func(dir string) (object.ID, bool)) {
	if x.Tree == nil {
		x.Tree = &Tree{Count: -1}
	}
	x.fill(x.Tree, "", x.Entries, id)
}

// fill gives a directory's tree and those below it; entries are the ones in it.
func (x *Index) fill(t *Tree, dir string, entries []Entry, id func(string) (object.ID, bool)) {
	if t.Count == len(entries) { // known
		return
	}
	before := t.Sub
	t.Count, t.Sub = len(entries), nil
	for rest := entries; len(rest) > 0; {
		e := &rest[0]
		if e.Stage != 0 || e.IntentToAdd { // no tree has it
			t.Count = -1
		}
		name, _, below := strings.Cut(e.Path[len(dir):], "/")
		if !below {
			rest = rest[1:]
			continue
		}
		sub := dir + name + "/"
		n := 1
		for n < len(rest) && strings.HasPrefix(rest[n].Path, sub) {
			n++
		}
		s := &Tree{Name: name, Count: -1}
		if i := slices.IndexFunc(before, func(s *Tree) bool { return s.Name == name }); i >= 0 {
			s = before[i]
		}
		x.fill(s, sub, rest[:n], id)
		if s.Count < 0 {
			t.Count = -1
		}
		t.Sub = append(t.Sub, s)
		rest = rest[n:]
	}
	slices.SortFunc(t.Sub, func(a, b *Tree) int { return compareTrees(a.Name, b.Name) })
	if t.Count >= 0 {
		var ok bool
		if t.ID, ok = id(strings.TrimSuffix(dir, "/")); !ok {
			t.Count = -1
		}
	}
}
