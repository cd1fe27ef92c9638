package treediff

import (
	"slices"

	"github.com/artifactfs/artifactfs/git/object"
)

// MergeBases returns the merge bases of the commits a and b, sorted by id, from a history that ends at the commit stop:
// commits that are only reachable through stop need not be here. The function parents returns the parents of a commit,
// and false for a commit that is not here. The result ok is false if stop is not reachable from both commits; then the
// history that is here does not suffice.
//
// Each commit that is not here is an ancestor of stop. Because stop is a common ancestor, such a commit is never a
// merge base.
func MergeBases(parents func(object.ID) ([]object.ID, bool), a, b, stop object.ID) (bases []object.ID, ok bool) {
	of, others := ancestors(parents, a, stop), ancestors(parents, b, stop)
	if _, ok := of[stop]; !ok {
		return nil, false
	}
	if _, ok := others[stop]; !ok {
		return nil, false
	}
	// A common ancestor is a merge base unless it is an ancestor of another one. In this case it is a parent of one,
	// because all ancestors of a common ancestor are common, too.
	older := map[object.ID]bool{}
	for id, up := range of {
		if _, common := others[id]; common {
			for _, p := range up {
				older[p] = true
			}
		}
	}
	for id := range of {
		if _, common := others[id]; common && !older[id] {
			bases = append(bases, id)
		}
	}
	slices.SortFunc(bases, object.ID.Compare)
	return bases, true
}

// ancestors returns the commits that are here and reachable from a commit, with their parents. It does not go on behind
// the commit stop.
func ancestors(parents func(object.ID) ([]object.ID, bool), from, stop object.ID) map[object.ID][]object.ID {
	seen := map[object.ID][]object.ID{}
	for stack := []object.ID{from}; len(stack) > 0; {
		id := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if _, known := seen[id]; known {
			continue
		}
		up, ok := parents(id)
		if !ok {
			continue
		}
		if id == stop {
			up = nil
		}
		seen[id] = up
		stack = append(stack, up...)
	}
	return seen
}
