package index

import (
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
)

// Change is a change of one path in the index: a new entry, or the removal of the path.
type Change struct {
	Entry Entry // the new entry; if Gone is true, only Path is used
	Gone  bool  // whether the path is removed
}

// Apply makes the changes. No two of the changes may have the same path. A change replaces all stages of its path.
// Apply invalidates the directories of the changed paths in the cache tree and in the untracked cache. If a directory
// is replaced by a file, or a file by a directory, the caller must also pass the changes of the paths below the
// directory.
func (x *Index) Apply(changes []Change) {
	// Clone the slice, so that sorting does not change the order of the caller's slice.
	changes = slices.Clone(changes)
	slices.SortFunc(changes, func(a, b Change) int { return strings.Compare(a.Entry.Path, b.Entry.Path) })
	merged := make([]Entry, 0, len(x.Entries)+len(changes))
	rest := x.Entries
	for i := range changes {
		c := &changes[i]
		n, _ := slices.BinarySearchFunc(rest, c.Entry.Path,
			func(e Entry, path string) int { return strings.Compare(e.Path, path) })
		merged = append(merged, rest[:n]...)
		rest = rest[n:]
		same, had := false, false
		// The entries are sorted by path first, so all stages of a path are adjacent.
		for len(rest) > 0 && rest[0].Path == c.Entry.Path {
			had = true
			same = !c.Gone && rest[0].Stage == 0 && rest[0].ID == c.Entry.ID && rest[0].Mode == c.Entry.Mode &&
				rest[0].IntentToAdd == c.Entry.IntentToAdd
			rest = rest[1:]
		}
		if !c.Gone {
			merged = append(merged, c.Entry)
		}
		// If the new entry has the same mode, id and flag IntentToAdd as the old one, the id of the tree remains valid.
		if !same && (had || !c.Gone) {
			x.Tree.invalidate(c.Entry.Path)
		}
		if had == c.Gone { // the path was added to the index or removed from it
			x.Untracked.invalidate(c.Entry.Path)
		}
	}
	x.Entries = append(merged, rest...)
}

// invalidate marks the trees of all directories that contain path as changed, and removes the tree at path itself.
func (t *Tree) invalidate(path string) {
	for t != nil {
		t.Count = -1
		name, rest, below := strings.Cut(path, "/")
		i := slices.IndexFunc(t.Sub, func(s *Tree) bool { return s.Name == name })
		switch {
		case i < 0:
			return
		// The path was a directory in the tree. This directory was removed or replaced by a file.
		case !below:
			t.Sub = slices.Delete(t.Sub, i, i+1)
			return
		}
		t, path = t.Sub[i], rest
	}
}

// invalidate makes git search the directory of path again. With the flag ShowNormal, git lists a directory without
// tracked files as one name. The change may then affect the lists of all directories above the path, so invalidate also
// makes git search those directories again.
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

// SetTrees sets the unknown ids in the cache tree. The function id returns the id of a directory's tree, or false if
// the id is not known. The path of the root is "".
func (x *Index) SetTrees(id func(dir string) (object.ID, bool)) {
	if x.Tree == nil {
		x.Tree = &Tree{Count: -1}
	}
	x.fill(x.Tree, "", x.Entries, id)
}

// fill sets the ids of the tree of a directory and of the trees below it. The parameter entries contains the index
// entries below the directory. The parameter dir is the path of the directory, with a slash at the end, or "" for the
// root.
func (x *Index) fill(t *Tree, dir string, entries []Entry, id func(string) (object.ID, bool)) {
	if t.Count == len(entries) { // the id is already known
		return
	}
	before := t.Sub
	t.Count, t.Sub = len(entries), nil
	for rest := entries; len(rest) > 0; {
		e := &rest[0]
		if e.Stage != 0 || e.IntentToAdd { // a tree cannot contain such an entry
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
		// A subtree keeps its id if the id is still known.
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
