package inode

import (
	"fmt"

	"github.com/artifactfs/artifactfs/git/object"
)

// A further root is the root directory of another tree than the base tree. Like the root of the base tree, it is its
// own parent. The further roots form a list: the header of the table refers to the root that was added last, and each
// further root refers to the root that was added before. The nodes below a further root are base nodes like all others:
// each has a blob, and a path by which git selects the attributes of the blob, and the blob is fetched when the file is
// read. A further root is not visible in the mount. An entry of the overlay makes a node below the further root visible
// (graft.go).

// isRoot reports whether a published node is the root of the base tree or a further root.
func (t *Table) isRoot(n Node) bool { return Node(t.At(n).parent) == n }

// TreeOf returns the root of the tree that contains a published node.
func (t *Table) TreeOf(n Node) Node {
	for !t.isRoot(n) {
		n = Node(t.At(n).parent)
	}
	return n
}

// before returns the further root that was added before the further root r. It returns 0 if r was added first.
func (r *Record) before() Node { return Node(r.name >> 8) }

// RootsOf returns the roots of the given tree, the latest root first. If the tree is the base tree, Root is the last
// element.
func (t *Table) RootsOf(tree object.ID) (list []Node) {
	t.append.Lock()
	defer t.append.Unlock()
	for _, n := range t.roots {
		if t.At(n).ObjectID() == tree {
			list = append(list, n)
		}
	}
	if t.At(Root).ObjectID() == tree {
		list = append(list, Root)
	}
	return list
}

// AddRoot adds a further root for a tree. A tree may have several roots: if the file of a node was renamed in the
// mount, a graft needs another node for the original path, and this node is below another root.
func (t *Table) AddRoot(tree object.ID) (Node, error) {
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
	h, r := t.header(), t.At(n)
	*r = Record{name: uint64(h.root) << 8, parent: uint32(n), kind: KindDir}
	r.idLen = uint8(copy(r.id[:], tree.Bytes()))
	r.crc = r.sum("")
	t.next.Store(uint64(n) + 1)
	h.root = uint32(n) // this store adds the root to the list
	t.roots = append([]Node{n}, t.roots...)
	return n, nil
}

// checkRoots reads the further roots of a table that another process has written. If a power loss has destroyed the
// latest roots, the list is shortened to the roots that were synced.
func (t *Table) checkRoots(lossy uint64) error {
	h := t.header()
	roots, err := t.readRoots(Node(h.root))
	if err != nil && uint64(h.root) >= lossy {
		h.root = h.rootSynced
		roots, err = t.readRoots(Node(h.root))
	}
	t.roots = roots
	return err
}

// readRoots returns the list of further roots, beginning with the root latest. It returns ErrTable if an element of the
// list is not a valid root.
func (t *Table) readRoots(latest Node) (roots []Node, err error) {
	for n, limit := latest, uint64(t.records.Len())/recordSize; n != 0; {
		if n <= Root || uint64(n) >= limit {
			return nil, fmt.Errorf("read root %d of a table with %d records: %w", n, limit, ErrTable)
		}
		r := t.At(n)
		id, err := object.FromBytes(r.id[:min(int(r.idLen), len(r.id))])
		if r.kind != KindDir || Node(r.parent) != n || r.name&maxName != 0 || r.crc != r.sum("") ||
			(err != nil || len(id.Bytes()) != int(r.idLen)) && r.idLen != 0 {
			return nil, fmt.Errorf("node %d is in the list of roots, but is not a root: %w", n, ErrTable)
		}
		roots, limit = append(roots, n), uint64(n) // an older root must have a lower number, so the list cannot have a cycle
		n = r.before()
	}
	return roots, nil
}
