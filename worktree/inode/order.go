package inode

import (
	"slices"
	"strings"
)

// TreeOrder returns the nodes of a block in the order of a git tree, in which a directory is sorted as if its name
// ended in a slash. It returns nil if the block is in that order already, which is the usual case.
func (t *Table) TreeOrder(b Block) []Node {
	misplaced := false
	for i := 0; i+1 < b.Count && !misplaced; i++ {
		r := t.At(b.First + Node(i))
		if r.kind != KindDir {
			continue
		}
		name, next := t.Name(r), t.Name(t.At(b.First+Node(i)+1))
		misplaced = len(next) > len(name) && next[len(name)] < '/' && strings.HasPrefix(next, name)
	}
	if !misplaced {
		return nil
	}
	nodes := make([]Node, b.Count)
	for i := range nodes {
		nodes[i] = b.First + Node(i)
	}
	slices.SortFunc(nodes, func(x, y Node) int { return compareInTree(t.At(x), t.At(y), t) })
	return nodes
}

// compareInTree compares the names of two records in the order of a git tree.
func compareInTree(x, y *Record, t *Table) int {
	a, b := t.Name(x), t.Name(y)
	n := min(len(a), len(b))
	if c := strings.Compare(a[:n], b[:n]); c != 0 {
		return c
	}
	end := func(name string, r *Record) byte {
		switch {
		case len(name) > n:
			return name[n]
		case r.kind == KindDir:
			return '/'
		}
		return 0
	}
	return int(end(a, x)) - int(end(b, y))
}
