package worktree

import (
	"slices"
	"strings"
)

// treeOrder returns the nodes of a block in the order of a git tree, in which the name of a directory ends in a slash. It
// returns nil if that is the order of the block, which is the normal case.
func (t *table) treeOrder(b block) []Node {
	misplaced := false
	for i := 0; i+1 < b.count && !misplaced; i++ {
		r := t.rec(b.first + Node(i))
		if r.kind != kindDir {
			continue
		}
		name, next := t.name(r), t.name(t.rec(b.first+Node(i)+1))
		misplaced = len(next) > len(name) && next[len(name)] < '/' && strings.HasPrefix(next, name)
	}
	if !misplaced {
		return nil
	}
	nodes := make([]Node, b.count)
	for i := range nodes {
		nodes[i] = b.first + Node(i)
	}
	slices.SortFunc(nodes, func(x, y Node) int { return compareInTree(t.rec(x), t.rec(y), t) })
	return nodes
}

// compareInTree compares two records in the order of a git tree.
func compareInTree(x, y *record, t *table) int {
	a, b := t.name(x), t.name(y)
	n := min(len(a), len(b))
	if c := strings.Compare(a[:n], b[:n]); c != 0 {
		return c
	}
	end := func(name string, r *record) byte {
		switch {
		case len(name) > n:
			return name[n]
		case r.kind == kindDir:
			return '/'
		}
		return 0
	}
	return int(end(a, x)) - int(end(b, y))
}
