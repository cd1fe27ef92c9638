package index

import (
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/object"
)

// Change is a change of one path of the index for Apply: a new entry, or the removal of the path.
type Change struct {
	Entry Entry // new entry; for a removal only its Path matters
	Gone  bool  // the path is removed
}

// Apply makes changes, at most one for each path. A change replaces all stages of its path. It invalidates the cache
// tree and the untracked cache along the changed paths. If a directory becomes a file or the other way round, the
// caller also passes the changes of the paths below it.
func (x *Index) Apply(changes []Change) {
	// The caller's slice keeps its order.
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
		// Git's order sorts by path first, so all stages of a path are adjacent.
		for len(rest) > 0 && rest[0].Path == c.Entry.Path {
			had = true
			same = !c.Gone && rest[0].Stage == 0 && rest[0].ID == c.Entry.ID && rest[0].Mode == c.Entry.Mode &&
				rest[0].IntentToAdd == c.Entry.IntentToAdd
			rest = rest[1:]
		}
		if !c.Gone {
			merged = append(merged, c.Entry)
		}
		// An entry with the same contents does not change the tree, only stat data.
		if !same && (had || !c.Gone) {
			x.Tree.invalidate(c.Entry.Path)
		}
		if had == c.Gone { // the path is new in the index, or no longer in it
			x.Untracked.invalidate(c.Entry.Path)
		}
	}
	x.Entries = append(merged, rest...)
}

// invalidate marks the directories on the way to path as changed, and removes the tree at path itself.
func (t *Tree) invalidate(path string) {
	for t != nil {
		t.Count = -1
		name, rest, below := strings.Cut(path, "/")
		i := slices.IndexFunc(t.Sub, func(s *Tree) bool { return s.Name == name })
		switch {
		case i < 0:
			return
		// The path itself was a directory: a file takes its place, or it is removed.
		case !below:
			t.Sub = slices.Delete(t.Sub, i, i+1)
			return
		}
		t, path = t.Sub[i], rest
	}
}

// invalidate makes git search the directory of path again. If git lists directories without tracked files as one name
// (ShowNormal), the change may affect all directories above too, so they are invalidated as well.
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

// SetTrees fills in the unknown parts of the cache tree. id returns the tree of a directory, "" for the root, or
// false if it is not known.
func (x *Index) SetTrees(id func(dir string) (object.ID, bool)) {
	if x.Tree == nil {
		x.Tree = &Tree{Count: -1}
	}
	x.fill(x.Tree, "", x.Entries, id)
}

// fill sets the tree of a directory and those below it. entries are the entries in the directory, dir its path with a
// slash at the end.
func (x *Index) fill(t *Tree, dir string, entries []Entry, id func(string) (object.ID, bool)) {
	if t.Count == len(entries) { // the tree is known already
		return
	}
	before := t.Sub
	t.Count, t.Sub = len(entries), nil
	for rest := entries; len(rest) > 0; {
		e := &rest[0]
		if e.Stage != 0 || e.IntentToAdd { // no tree can contain such an entry
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
		// A subtree that is still known keeps its ID.
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
