// Package proposals compares changes that were made independently of each other, such as several attempts at the same
// task: which paths each of them changed, and which of these paths are the same, merge cleanly or conflict. It compares
// lists of changes that its callers compute by reading trees and running git.
package proposals

import (
	"path"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/git/read"
)

// Origin states to which session a compared checkpoint belongs, and from where this session was forked.
type Origin struct {
	Session string // name of the session
	From    string // session.Meta.From: "SESSION CHECKPOINT", or "" if the session is not a fork
}

// Fork returns the session and the id of the checkpoint from which all sessions in all were forked; the session that
// was forked may itself be in all. The result ok is false if there is no such checkpoint.
func Fork(all []Origin) (session, id string, ok bool) {
	for _, o := range all {
		session, id, forked := strings.Cut(o.From, " ")
		other := func(o2 Origin) bool { return o2.From != o.From && o2.Session != session }
		if forked && !slices.ContainsFunc(all, other) {
			return session, id, true
		}
	}
	return "", "", false
}

// Count returns how many files and lines the changes add, remove and modify. It does not count lines of binary files.
func Count(changes []control.PathChange) (n control.ChangeCount) {
	for _, c := range changes {
		switch c.Status {
		case "A":
			n.Added++
		case "D":
			n.Removed++
		default:
			n.Modified++
		}
		if c.Added >= 0 { // Added is negative for binary files
			n.LinesAdded, n.LinesRemoved = n.LinesAdded+c.Added, n.LinesRemoved+c.Removed
		}
	}
	return n
}

// letters maps the statuses of changed paths in package read to the letters that git prints for them.
var letters = map[string]string{"added": "A", "deleted": "D", "modified": "M", "type-changed": "T"}

// PathChange converts a change of package read, which was found without rename detection, into the type that this
// package compares.
func PathChange(c read.Change) control.PathChange {
	p := control.PathChange{Path: c.Path, Status: letters[c.Status], Added: int64(c.Additions),
		Removed: int64(c.Deletions)}
	if c.Binary || c.Lacking {
		p.Added, p.Removed = -1, -1
	}
	if c.Status != "added" {
		p.OldMode, p.Old = c.OldMode, c.OldHash
	}
	if c.Status != "deleted" {
		p.NewMode, p.New = c.NewMode, c.NewHash
	}
	return p
}

// Side is one of two proposals that may be merged. ID is the type of ids of trees.
type Side[ID comparable] struct {
	Base, Tree ID // the tree to which the changes are relative, and the tree of the proposal
	Changes    []control.PathChange
	Cut        bool // Changes lacks further changes
}

// Clean reports that git merges two proposals with the merge base base without a conflict. The result is found without
// contents, so it is false for many proposals that git can merge, too.
func Clean[ID comparable](base ID, a, b Side[ID]) bool {
	return a.Tree == b.Tree || a.Tree == base || b.Tree == base ||
		a.Base == base && b.Base == base && !a.Cut && !b.Cut && independent(a.Changes, b.Changes)
}

// independent reports that git merges the changes a and b of the same tree without a conflict, like Clean.
func independent(a, b []control.PathChange) bool {
	return !meet(a, b) && !moved(a, b) && !moved(b, a) && !(renames(a, b) && shareNames(a, b))
}

// renames reports whether the changes a and b together add a file and remove a file, so that git may detect a rename.
func renames(a, b []control.PathChange) bool {
	added := func(c control.PathChange) bool { return c.Old == "" }
	removed := func(c control.PathChange) bool { return c.New == "" }
	return (slices.ContainsFunc(a, added) || slices.ContainsFunc(b, added)) &&
		(slices.ContainsFunc(a, removed) || slices.ContainsFunc(b, removed))
}

// shareNames reports whether a and b both add or remove a file at the same path. If one side has also renamed the file,
// git reports a conflict, although both sides have the same result at the path.
func shareNames(a, b []control.PathChange) bool {
	names := map[string]bool{}
	for _, c := range a {
		names[c.Path] = c.Old == "" || c.New == ""
	}
	return slices.ContainsFunc(b, func(c control.PathChange) bool { return names[c.Path] })
}

// meet reports whether a and b change the same path with different results, or whether a path that one of them changes
// is a directory on the other side.
func meet(a, b []control.PathChange) bool {
	result := make(map[string]control.PathChange, len(a))
	dirs := map[string]bool{} // directories of the files that exist after the changes a
	for _, c := range a {
		result[c.Path] = c
		if c.New != "" {
			above(c.Path, func(dir string) bool { dirs[dir] = true; return false })
		}
	}
	for _, c := range b {
		if other, both := result[c.Path]; both && !same(c, other) || c.New != "" && dirs[c.Path] {
			return true
		}
		if c.New != "" && above(c.Path, func(dir string) bool { return result[dir].New != "" }) {
			return true
		}
	}
	return false
}

// moved reports whether b adds a file to a directory from which a removes a file. If git detects that a has renamed the
// directory, it also moves the file that b adds, and reports a conflict.
func moved(a, b []control.PathChange) bool {
	dirs := map[string]bool{}
	for _, c := range a {
		if c.New == "" {
			above(c.Path, func(dir string) bool { dirs[dir] = true; return false })
		}
	}
	return slices.ContainsFunc(b, func(c control.PathChange) bool {
		return c.Old == "" && above(c.Path, func(dir string) bool { return dirs[dir] })
	})
}

// above calls the function each for the directories that contain the path name, the innermost first, until each returns
// true. It leaves out the root directory. It reports whether a call returned true.
func above(name string, each func(dir string) bool) bool {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if each(dir) {
			return true
		}
	}
	return false
}

// same reports whether two changes of a path have the same result: the same mode and the same blob.
func same(a, b control.PathChange) bool { return a.NewMode == b.NewMode && a.New == b.New }

// Pair is the result of merging two of the compared sides.
type Pair struct {
	A, B      int      // indexes of the sides; A < B
	Conflicts []string // paths that git could not merge
}

// Shared returns the paths that at least two sides have changed, and the paths with conflicts, sorted. Each path has a
// verdict for every pair of sides that changed it, and the worst of these verdicts. The parameter changes contains the
// changes of each side, and pairs the results of merging each two sides.
func Shared(changes [][]control.PathChange, pairs []Pair) []control.SharedPath {
	changed := make([]map[string]control.PathChange, len(changes))
	for i, list := range changes {
		changed[i] = make(map[string]control.PathChange, len(list))
		for _, c := range list {
			changed[i][c.Path] = c
		}
	}
	paths := map[string]*control.SharedPath{}
	for _, p := range pairs {
		// The function set records the verdict v of the pair p for a path. The verdict of the path itself is the worst
		// verdict of all pairs: conflict is worse than clean, and clean is worse than same.
		set := func(path string, v control.Verdict) {
			at := paths[path]
			if at == nil {
				at = &control.SharedPath{Path: path, Status: make([]string, len(changes)), Verdict: control.VerdictSame}
				for i := range changed {
					at.Status[i] = changed[i][path].Status
				}
				paths[path] = at
			}
			if v == control.VerdictConflict || at.Verdict == control.VerdictSame {
				at.Verdict = v
			}
			at.Pairs = append(at.Pairs, control.SharedPair{A: p.A, B: p.B, Verdict: v})
		}
		conflicts := map[string]bool{}
		// A path that only one side has changed can also have a conflict, if the path was renamed or if a directory replaces
		// a file.
		for _, path := range p.Conflicts {
			if !conflicts[path] {
				conflicts[path] = true
				set(path, control.VerdictConflict)
			}
		}
		for path, x := range changed[p.A] {
			switch y, both := changed[p.B][path]; {
			case !both || conflicts[path]:
			case same(x, y):
				set(path, control.VerdictSame)
			default:
				set(path, control.VerdictClean)
			}
		}
	}
	all := make([]control.SharedPath, 0, len(paths))
	for _, at := range paths {
		slices.SortFunc(at.Pairs, func(x, y control.SharedPair) int { return (x.A-y.A)*len(changes) + x.B - y.B })
		all = append(all, *at)
	}
	// Maps have no order, so the paths are sorted for a stable result.
	slices.SortFunc(all, func(x, y control.SharedPath) int { return strings.Compare(x.Path, y.Path) })
	return all
}
