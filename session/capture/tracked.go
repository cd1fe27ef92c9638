package capture

import (
	"github.com/artifactfs/artifactfs/git/object"
)

// tracked reports whether the index has an entry for path or for a path below it.
func (v *view) tracked(path string) bool {
	// Paths with conflicts and paths added with "git add -N" are tracked, but are not in the tree of the index.
	t, rel := v.of(path)
	if _, ok := t.special[rel]; ok {
		return true
	}
	return v.trackedMode(path) != 0
}

// trackedFile reports whether the index has an entry for path itself. If the index has only entries below path, a file at path
// is untracked.
func (v *view) trackedFile(path string) bool {
	if t, rel := v.of(path); t.special[rel] {
		return true
	}
	mode := v.trackedMode(path)
	return mode != 0 && mode != object.ModeDir
}

// trackedMode returns the mode of path in the tree of the index, or 0 if that tree has no such path. If a tree cannot be read,
// trackedMode records the error and returns the mode of a file.
func (v *view) trackedMode(path string) object.Mode {
	e, err := v.staged(path)
	if err != nil {
		v.fail(err)
		return object.ModeFile
	}
	return e.Mode
}

// staged returns the entry of path in the tree of the index of its working tree. The mode of the entry is 0 if there is no such entry.
func (v *view) staged(path string) (object.TreeEntry, error) {
	t, rel := v.of(path)
	return v.c.lookup(v.ctx, t.index, rel)
}

// of returns what the working tree tracks that contains path, and path relative to this working tree.
func (v *view) of(path string) (t *tracked, rel string) {
	for i := len(v.roots) - 1; i >= 0; i-- { // as in roots.above
		if isWithin(path, v.roots[i].path) {
			return &v.roots[i], relative(path, v.roots[i].path)
		}
	}
	return &v.main, path
}

// tracked is what one working tree tracks. Its paths are relative to that working tree.
type tracked struct {
	path        string    // directory of the linked worktree; "" for the main working tree
	head, index object.ID // trees of HEAD and of the index
	// special holds the paths of index entries that a tree cannot describe (value true), and the directories above them
	// (value false).
	special map[string]bool
}

// track sets the index that determines which paths of the main working tree are tracked, and those of c.roots.
func (v *view) track(by tracking) {
	v.main, v.roots = by.tracked(""), nil
	for _, r := range v.c.roots {
		v.roots = append(v.roots, r.tracked(r.path))
	}
}

// tracked returns what the working tree at a path tracks.
func (by tracking) tracked(path string) tracked {
	t := tracked{path: path, head: by.head, index: by.index.Tree, special: map[string]bool{}}
	for _, e := range by.index.Special {
		t.special[e.Path] = true
		for at := parent(e.Path); at != ""; at = parent(at) {
			if _, ok := t.special[at]; ok {
				break
			}
			t.special[at] = false
		}
	}
	return t
}
