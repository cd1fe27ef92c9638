package worktree

import (
	"strings"

	"github.com/artifactfs/artifactfs/worktree/basetree"
	"github.com/artifactfs/artifactfs/worktree/inode"
	"github.com/artifactfs/artifactfs/worktree/overlay"
)

// merged is the working tree at one moment: the overlay, and the base tree for everything that the overlay does not
// store. A function that receives a merged may use it until the function returns, because then the overlay's lock is
// released.
type merged struct {
	overlay.Reader
	base *basetree.Tree
}

// inode returns the inode of a node from the overlay. If the overlay has no inode for the node, it returns the inode
// that the node has in the base tree.
func (m merged) inode(n Node) (overlay.Inode, bool) {
	if in, ok := m.Inode(n); ok {
		return in, true
	}
	r, ok := m.base.Table.Record(n)
	if !ok {
		return overlay.Inode{}, false
	}
	return m.base.Inode(n, r), true
}

// entry returns the node with the given name in a directory. b is the block of the directory: the children that the
// directory has in the base tree.
func (m merged) entry(dir Node, b inode.Block, name string) (Node, bool) {
	switch n, p := m.Entry(dir, name); p {
	case overlay.Present:
		return n, true
	case overlay.Hidden:
		return 0, false
	}
	return m.base.Table.Search(b, name)
}

// empty reports whether a directory has no entries. b is the block of the directory: the children that the directory
// has in the base tree. The overlay can hide the names in b and no other names. Therefore the directory is empty if the
// overlay has added no entry and hides as many names as b has.
func (m merged) empty(dir Node, b inode.Block) bool {
	present, hidden := m.Entries(dir)
	return present == 0 && hidden == b.Count
}

// within reports whether the directory dir is the node n, or is below n.
func (m merged) within(dir, n Node) bool {
	for range maxDepth {
		if dir == n {
			return true
		}
		if dir == Root {
			return false
		}
		in, ok := m.inode(dir)
		if !ok || in.Parent == dir {
			return false
		}
		dir = in.Parent
	}
	// the directories form a cycle, because the overlay is damaged; the result true prevents renames that would extend the
	// cycle
	return true
}

// maxDepth is the maximum number of steps on the way to the root. If the way to the root is longer, the overlay is
// damaged.
const maxDepth = 1 << 20

// path returns the present path of a node, relative to the root. For a file with several names, it returns one of its
// paths. It returns false if the node has no name, or if the directory of its name is not known.
func (m merged) path(n Node) (string, bool) {
	var names []string
	for range maxDepth {
		if n == Root {
			break
		}
		in, ok := m.inode(n)
		if !ok || in.Parent == n { // this is the root of a grafted tree, which has no path in the mount
			return "", false
		}
		name, ok := m.name(n, in.Parent)
		if !ok {
			return "", false
		}
		names, n = append(names, name), in.Parent
	}
	var b strings.Builder
	for i := len(names) - 1; i >= 0; i-- {
		b.WriteString(names[i])
		if i > 0 {
			b.WriteByte('/')
		}
	}
	return b.String(), n == Root
}

// name returns the name of a node in the directory dir. If a node of the base tree still has its original name, the
// inode table contains the name. Otherwise name searches all entries that the overlay has for the directory, because
// inodes do not contain names.
func (m merged) name(n, dir Node) (name string, ok bool) {
	if r, base := m.base.Table.Record(n); base {
		name = m.base.Table.Name(r)
		at, p := m.Entry(dir, name)
		if p == overlay.Unknown && r.Dir() == dir || p == overlay.Present && at == n {
			return name, true
		}
	}
	m.ReadDir(dir, 0, func(_ uint64, entry string, at Node, p overlay.Presence) bool {
		ok = p == overlay.Present && at == n
		if ok {
			name = strings.Clone(entry)
		}
		return !ok
	})
	return name, ok
}

// nothing implements overlay.Reader for a Tree without an overlay. It has neither inodes nor entries, and is asked for
// nothing else.
type nothing struct{ overlay.Reader }

func (nothing) Inode(Node) (overlay.Inode, bool)            { return overlay.Inode{}, false }
func (nothing) Entry(Node, string) (Node, overlay.Presence) { return 0, overlay.Unknown }
func (nothing) ReadDir(Node, uint64, func(uint64, string, Node, overlay.Presence) bool) {
}
func (nothing) Entries(Node) (present, hidden int)               { return 0, 0 }
func (nothing) Target(Node) (string, bool)                       { return "", false }
func (nothing) Xattr(Node, string) ([]byte, bool)                { return nil, false }
func (nothing) Xattrs(Node) []string                             { return nil }
func (nothing) EachInode(func(overlay.Inode) bool)               {}
func (nothing) Names(Node, int64, func(Node, string) bool) int64 { return 0 }
func (nothing) EachDir(func(Node) bool)                          {}
