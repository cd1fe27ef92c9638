package capture

import (
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session"
)

// tracked reports whether the index has an entry for path, or for a path below it.
func (v *view) tracked(path string) bool {
	// Paths with conflicts and paths added with "git add -N" are tracked, but are not in the tree of the index.
	t, rel := v.of(path)
	if _, ok := t.special[rel]; ok {
		return true
	}
	return v.trackedMode(path) != 0
}

// trackedFile reports whether the index has an entry for path itself. If the index has only entries below path, a file
// at path is untracked.
func (v *view) trackedFile(path string) bool {
	if t, rel := v.of(path); t.special[rel] {
		return true
	}
	mode := v.trackedMode(path)
	return mode != 0 && mode != object.ModeDir
}

// trackedMode returns the mode of path in the tree of the index, or 0 if that tree does not contain path. If a tree
// cannot be read, trackedMode stores the error in v.failure and returns the mode of a file.
func (v *view) trackedMode(path string) object.Mode {
	e, err := v.staged(path)
	if err != nil {
		v.fail(err)
		return object.ModeFile
	}
	return e.Mode
}

// staged returns the entry of path in the tree of the index. The index is that of the working tree, main or linked,
// that contains path. The mode of the entry is 0 if there is no such entry.
func (v *view) staged(path string) (object.TreeEntry, error) {
	t, rel := v.of(path)
	return v.c.lookup(v.ctx, t.index, rel)
}

// of returns what git tracks in the working tree that contains path, and path relative to this working tree.
func (v *view) of(path string) (t *tracked, rel string) {
	for i := len(v.roots) - 1; i >= 0; i-- { // as in roots.above
		if isWithin(path, v.roots[i].path) {
			return &v.roots[i], relative(path, v.roots[i].path)
		}
	}
	return &v.main, path
}

// tracked describes the paths that git tracks in one working tree, main or linked. The paths are relative to that
// working tree.
type tracked struct {
	path        string    // directory of the linked worktree; "" for the main working tree
	head, index object.ID // trees of HEAD and of the index
	// special holds the paths of index entries that a tree cannot describe (value true), and the directories above them
	// (value false).
	special map[string]bool
}

// track sets the HEAD tree and the index that determine which paths of the main working tree are tracked. It also sets
// those of the linked worktrees, from c.roots.
func (v *view) track(by tracking) {
	v.main, v.roots = by.tracked(""), nil
	for _, r := range v.c.roots {
		v.roots = append(v.roots, r.tracked(r.path))
	}
}

// tracked returns a description of the paths that git tracks in the working tree whose directory is path; "" is the
// main working tree.
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

// tracking determines which paths git tracks: the paths in HEAD's tree and in the index.
type tracking struct {
	head  object.ID
	index session.Index
}
