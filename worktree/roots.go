package worktree

import (
	"fmt"

	"github.com/artifactfs/artifactfs/object"
)

// A further root is a record that is its own parent, as the base tree's is, and is named by the root that was added
// after it, the latest by the header. Below it are blocks like all others, so that their nodes are base nodes in
// everything: they know their blob and the path by which its attributes count, and cost nothing before they are read.
// Nothing shows a further root itself; the overlay gives nodes below it a place in the mount (graft.go).

// isRoot reports whether a published node is the root of a tree.
func (t *table) isRoot(n Node) bool { return Node(t.rec(n).parent) == n }

// treeOf returns the root of the tree that a published node is of.
func (t *table) treeOf(n Node) Node {
	for !t.isRoot(n) {
		n = Node(t.rec(n).parent)
	}
	return n
}

// before returns the further root that was added before another, 0 if that was the first.
func (r *record) before() Node { return Node(r.name >> 8) }

// rootsOf lists the roots of a tree, the latest first, the base's last.
func (t *table) rootsOf(tree object.ID) (list []Node) {
	t.append.Lock()
	defer t.append.Unlock()
	for _, n := range t.roots {
		if t.rec(n).objectID() == tree {
			list = append(list, n)
		}
	}
	if t.rec(Root).objectID() == tree {
		list = append(list, Root)
	}
	return list
}

// addRoot adds a root of a tree. There may be several of one tree: a node has one place only.
func (t *table) addRoot(tree object.ID) (Node, error) {
	t.append.Lock()
	defer t.append.Unlock()
	n := Node(t.next.Load())
	if uint64(n) > maxNode {
		return 0, fmt.Errorf("add root %s: table is full", tree)
	}
	t.kernel.beginAdd()
	defer t.kernel.endAdd(t)
	if err := t.grow(n + 1); err != nil {
		return 0, fmt.Errorf("add root %s: %w", tree, err)
	}
	h, r := t.header(), t.rec(n)
	*r = record{name: uint64(h.root) << 8, parent: uint32(n), kind: kindDir}
	r.idLen = uint8(copy(r.id[:], tree.Bytes()))
	r.crc = r.sum("")
	h.version = versionRoots
	t.next.Store(uint64(n) + 1)
	h.root = uint32(n) // from here on it exists
	t.roots = append([]Node{n}, t.roots...)
	return n, nil
}

// checkRoots reads the further roots of a table that another process wrote. If power loss took the latest, those that
// were synced are left.
func (t *table) checkRoots(lossy uint64) error {
	h := t.header()
	roots, err := t.readRoots(Node(h.root))
	if err != nil && uint64(h.root) >= lossy {
		h.root = h.rootSynced
		roots, err = t.readRoots(Node(h.root))
	}
	t.roots = roots
	return err
}

func (t *table) readRoots(latest Node) (roots []Node, err error) {
	for n, limit := latest, uint64(t.records.Len())/recordSize; n != 0; {
		if n <= Root || uint64(n) >= limit {
			return nil, fmt.Errorf("root %d of %d records: %w", n, limit, ErrTable)
		}
		r := t.rec(n)
		id, err := object.FromBytes(r.id[:min(int(r.idLen), len(r.id))])
		if r.kind != kindDir || Node(r.parent) != n || r.name&maxName != 0 || r.crc != r.sum("") ||
			(err != nil || len(id.Bytes()) != int(r.idLen)) && r.idLen != 0 {
			return nil, fmt.Errorf("node %d: not a root: %w", n, ErrTable)
		}
		roots, limit = append(roots, n), uint64(n) // older ones stand before it
		n = r.before()
	}
	return roots, nil
}
