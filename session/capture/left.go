package capture

import (
	"cmp"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/session"
)

// leftSet is the set of the paths that exist in the working tree, but not in a checkpoint's tree. The path of a
// directory ends in a slash; it stands for everything below the directory.
type leftSet struct {
	all   map[string]LeftOut
	below map[string]int // number of the set's paths below each directory
	// unfiltered is the set of the paths with the reason session.Unfiltered.
	unfiltered map[string]bool
}

// newLeftSet returns a set of the paths in the map all.
func newLeftSet(all map[string]LeftOut) *leftSet {
	s := &leftSet{all: map[string]LeftOut{}, below: map[string]int{}, unfiltered: map[string]bool{}}
	for _, l := range all {
		s.add(l)
	}
	return s
}

// add adds a path, or replaces the reason if the path is in the set.
func (s *leftSet) add(l LeftOut) {
	if _, ok := s.all[l.Path]; !ok {
		s.count(l.Path, 1)
	}
	s.all[l.Path] = l
	if delete(s.unfiltered, l.Path); l.Why == session.Unfiltered {
		s.unfiltered[l.Path] = true
	}
}

// count adds n to the counters in s.below of all directories above path.
func (s *leftSet) count(path string, n int) {
	for dir := parent(strings.TrimSuffix(path, "/")); dir != ""; dir = parent(dir) {
		if s.below[dir] += n; s.below[dir] == 0 {
			delete(s.below, dir)
		}
	}
}

// delete removes one path.
func (s *leftSet) delete(path string) {
	if _, ok := s.all[path]; ok {
		delete(s.all, path)
		delete(s.unfiltered, path)
		s.count(path, -1)
	}
}

// covers reports whether the set has a path, or a directory above it. The path of a directory ends in a slash.
func (s *leftSet) covers(path string) bool {
	for i := range path {
		if path[i] == '/' {
			if _, ok := s.all[path[:i+1]]; ok {
				return true
			}
		}
	}
	_, ok := s.all[path]
	return ok
}

// forget removes path itself and all paths below path from the set.
func (s *leftSet) forget(path string) {
	s.delete(path)
	s.delete(path + "/")
	// Usually the set has no path below this path: avoid the scan of all paths.
	if s.below[path] == 0 {
		return
	}
	for p := range s.all {
		if strings.HasPrefix(p, path+"/") {
			s.delete(p)
		}
	}
}

// reported is the maximum number of left-out paths that a checkpoint stores and reports.
const reported = 100

// why returns the rank of a reason, by which left-out paths are sorted. Reasons that a user expects less have lower
// ranks.
func why(w session.Why) int {
	return slices.Index([]session.Why{session.Unfiltered, session.Linked, session.Secret, session.TooLarge,
		session.Excluded, session.NoFile, session.Ignored}, w)
}

// first returns at most reported paths of the set, sorted by reason: first the reasons that a user expects least.
func (s *leftSet) first() []LeftOut {
	list := make([]LeftOut, 0, reported+1)
	order := func(a, b LeftOut) int {
		return cmp.Or(cmp.Compare(why(a.Why), why(b.Why)), strings.Compare(a.Path, b.Path))
	}
	for _, l := range s.all {
		// There may be a hundred thousand ignored paths, so cut the list to its maximum length after each insertion.
		if len(list) == reported && order(l, list[reported-1]) > 0 {
			continue
		}
		i, _ := slices.BinarySearchFunc(list, l, order)
		list = slices.Insert(list, i, l)
		list = list[:min(len(list), reported)]
	}
	return list
}
