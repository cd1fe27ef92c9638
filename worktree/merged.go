package worktree

import (
	"strings"

	"github.com/artifactfs/artifactfs/overlay"
	"github.com/artifactfs/artifactfs/worktree/basetree"
	"github.com/artifactfs/artifactfs/worktree/inode"
)

// upper is the set of read operations on an overlay that merged needs. overlay.Reader implements it.
type upper interface {
	Inode(n Node) (overlay.Inode, bool)
	Entry(dir Node, name string) (Node, overlay.Presence)
	ReadDir(dir Node, after uint64, emit func(cookie uint64, name string, n Node, p overlay.Presence) bool)
	Entries(dir Node) (present, hidden int)
	Names(n Node, most int64, emit func(dir Node, name string) bool) (looked int64)
	EachDir(emit func(dir Node) bool)
	Target(n Node) (string, bool)
	Xattr(n Node, name string) ([]byte, bool)
	Xattrs(n Node) []string
	EachInode(emit func(overlay.Inode) bool)
}

// merged is the working tree at one moment: the overlay above the base tree. It is valid only within the view or update
// that passed it.
type merged struct {
	upper
	base *basetree.Tree
}

// inode returns the inode of a node as the overlay stores it, or as the overlay would store it if the node were promoted.
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

// entry looks up a name in a directory whose block is b.
func (m merged) entry(dir Node, b inode.Block, name string) (Node, bool) {
	switch n, p := m.Entry(dir, name); p {
	case overlay.Present:
		return n, true
	case overlay.Hidden:
		return 0, false
	}
	return m.base.Table.Search(b, name)
}

// empty reports whether a directory, whose block is b, has no entries. Only names of the block can be hidden, so a
// directory without present entries is empty if the number of hidden names is that of the block.
func (m merged) empty(dir Node, b inode.Block) bool {
	present, hidden := m.Entries(dir)
	return present == 0 && hidden == b.Count
}

// within reports whether a directory is n or below n.
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
	return true // the overlay is damaged and has a cycle, which no rename may extend
}

// maxDepth bounds the number of steps of a walk to the root. Only a damaged overlay has a longer path.
const maxDepth = 1 << 20

// path returns the present path of a node, relative to the root. For a file with several names it returns one of its paths, or
// false if the directory of a name is not known.
func (m merged) path(n Node) (string, bool) {
	var names []string
	for range maxDepth {
		if n == Root {
			break
		}
		in, ok := m.inode(n)
		if !ok || in.Parent == n { // the root of another tree, which has no path in the mount
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

// name returns the name of a node in a directory. Inodes do not contain names. Unless a base node still has its original name,
// all entries that the overlay has for the directory are searched.
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

// nothing is the overlay of a Tree without one.
type nothing struct{}

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

var (
	_ upper = overlay.Reader{}
	_ upper = nothing{}
)
