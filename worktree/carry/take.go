// Package carry takes files from one working tree at one moment, and adds them to another one, without copying their
// contents. The first tree is that of a session, and the second that of its fork. The fork starts with the tree of a
// checkpoint as its base tree. Files that the checkpoint leaves out, such as ignored ones, are carried: the names,
// inodes, targets and attributes are copied, and both overlays use the same sealed contents files (overlay.Sealing).
package carry

import (
	"cmp"
	"slices"
	"strings"
	"syscall"

	"github.com/artifactfs/artifactfs/worktree/basetree"
	"github.com/artifactfs/artifactfs/worktree/inode"
	"github.com/artifactfs/artifactfs/worktree/overlay"
)

// Node is the number of a file, directory or symbolic link of a working tree.
type Node = inode.Node

// Choice states how much of a path is carried.
type Choice uint8

const (
	// Leave carries nothing.
	Leave Choice = iota
	// Enter carries a directory if something in it is carried, about which the next calls decide.
	Enter
	// Ask carries a directory, also if nothing in it is carried, about which the next calls decide.
	Ask
	// All carries the path and, if it is a directory, everything in it.
	All
)

// Files are the files that Take has taken from a working tree, for Add.
type Files struct {
	// Segments are the sealed contents. The overlay of the other tree must be created with
	// them (overlay.Options).
	Segments []overlay.Segment
	// Left are the paths that were to be carried, but could not be. Add appends further ones.
	Left []Left
	// Files, Dirs and Bytes are the numbers of files and directories that Add has added, and the size of the contents of
	// these files.
	Files, Dirs, Bytes int64
	// Unsettled are the inodes of the other tree whose contents must be on disk before Add is called, because they are to
	// replace contents of the base tree (see overlay.Sealing.Settle).
	Unsettled []overlay.Inode

	whole map[string]bool // see Has
	nodes []node
	names []name // a directory is before the names in it
}

// Has reports whether all of a path that was given to Take is carried, except the paths in Left. path must be as it was
// given to Take. The result is false if the function choose has left out the path or a path below it.
func (c *Files) Has(path string) bool { return c.whole[path] }

// Left is a path that could not be carried. The paths below a directory are not carried either.
type Left struct {
	Path string // path relative to the root; the path of a directory ends in a slash
	Why  Why
}

// Why is the reason why a path could not be carried.
type Why string

const (
	NoSocket    Why = "socket"    // a socket belongs to the program that listens on it
	NoSubmodule Why = "submodule" // a submodule is a mount of its own, or not mounted
	// NotFetched is the reason for an unchanged file of the base tree whose contents are not in the overlay.
	NotFetched Why = "unread"
	NoPlace    Why = "place" // the other tree does not have the directory, or has something of another type
)

// node is a file or directory.
type node struct {
	in     overlay.Inode // Node, Parent and Nlink are 0
	target string        // target of a symbolic link
	xattrs []xattr
}

// xattr is an extended attribute.
type xattr struct {
	name  string
	value []byte
}

// name is a name of a node in a directory.
type name struct {
	dir  int    // index of the directory in Files.names; -1 if the directory is not carried
	path string // path relative to the root
	node int    // index in Files.nodes; -1 if the node is an unchanged file that is not carried (NotFetched)
}

// Moment is a working tree at one moment.
type Moment struct {
	Names    overlay.Reader    // names and inodes of its overlay
	Base     *basetree.Tree    // its base tree
	Inodes   int64             // number of inodes in its overlay
	Segments []overlay.Segment // sealed contents that the inodes name, sorted by Bound
}

// Take returns the files at some paths as they are at a moment. The path of a directory may end in a slash, and stands
// for everything below it. The function choose is called for each path, and for paths below those for which it has
// returned Enter or Ask. A path that does not exist is ignored.
func Take(m Moment, paths []string, choose func(path string, isDir bool) Choice) *Files {
	t := taking{names: m.Names, base: m.Base, choose: choose, known: make(map[Node]int),
		c: &Files{whole: make(map[string]bool, len(paths))}}
	if len(paths) > 0 { // usually most changed files are ignored ones
		t.c.nodes, t.c.names = make([]node, 0, m.Inodes), make([]name, 0, m.Inodes)
	}
	for _, given := range paths {
		path := strings.TrimSuffix(given, "/")
		if n, ok := t.find(path); ok {
			t.partly = false
			t.add(-1, path, n, Enter)
			t.c.whole[given] = !t.partly
		}
	}
	t.c.Segments = t.used(m.Segments)
	return t.c
}

// taking is a call of Take in progress.
type taking struct {
	names  overlay.Reader
	base   *basetree.Tree
	choose func(path string, isDir bool) Choice
	known  map[Node]int // indexes in c.nodes of the nodes that are not directories
	partly bool         // whether choose has left out something at or below the path that is taken
	c      *Files
}

// used returns those of the sorted segments that have contents of carried files. The numbers of a segment that is left
// out then belong to the next one, in which no carried file has a number of them.
func (t *taking) used(segments []overlay.Segment) (list []overlay.Segment) {
	has := make([]bool, len(segments))
	for i := range t.c.nodes {
		if number := t.c.nodes[i].in.Content; number != 0 {
			at, _ := slices.BinarySearchFunc(segments, number+1,
				func(s overlay.Segment, n uint64) int { return cmp.Compare(s.Bound, n) })
			has[at] = true
		}
	}
	for i, s := range segments {
		if has[i] {
			list = append(list, s)
		}
	}
	return list
}

// find returns the node at a path.
func (t *taking) find(path string) (n Node, ok bool) {
	n = inode.Root
	for name := range strings.SplitSeq(path, "/") {
		if n, ok = t.child(n, name); !ok {
			return 0, false
		}
	}
	return n, true
}

// child returns the node with the given name in a directory. If the tree of the directory was never fetched, the
// directory has only the names in the overlay.
func (t *taking) child(dir Node, name string) (Node, bool) {
	switch n, p := t.names.Entry(dir, name); p {
	case overlay.Present:
		return n, true
	case overlay.Hidden:
		return 0, false
	}
	return t.base.Table.Search(t.block(dir), name)
}

// block returns the children of a directory in the base tree, as far as they were fetched.
func (t *taking) block(dir Node) (b inode.Block) {
	if r, ok := t.base.Table.Record(dir); ok && !dir.Own() && r.Kind() == inode.KindDir {
		b, _ = r.Block()
	}
	return b
}

// add takes the node n with a path, whose directory has the index dir in c.names. above is the Choice for that
// directory.
func (t *taking) add(dir int, path string, n Node, above Choice) {
	in, ok := t.inode(n)
	if !ok {
		return
	}
	choice := above
	if above != All {
		choice = t.choose(path, isDir(&in))
	}
	if choice == Leave || choice == Enter && !isDir(&in) {
		t.partly = true
		return
	}
	if why, ok := t.refuses(&in); ok {
		t.c.Left = append(t.c.Left, Left{recorded(path, isDir(&in)), why})
		return
	}
	at := len(t.c.names)
	t.c.names = append(t.c.names, name{dir, path, t.node(n, in)})
	if !isDir(&in) {
		return
	}
	for _, e := range t.entries(n) {
		t.add(at, joined(path, e.name), e.node, choice)
	}
	if choice == Enter && len(t.c.names) == at+1 { // nothing in it is carried
		t.partly = true
		t.c.names, t.c.nodes = t.c.names[:at], t.c.nodes[:len(t.c.nodes)-1]
	}
}

// refuses reports whether a node cannot be carried.
func (t *taking) refuses(in *overlay.Inode) (Why, bool) {
	r, ok := t.base.Table.Record(in.Node)
	switch {
	case in.Mode&syscall.S_IFMT == syscall.S_IFSOCK:
		return NoSocket, true
	case ok && !in.Node.Own() && r.Kind() == inode.KindGitlink:
		return NoSubmodule, true
	}
	return "", false
}

// entries returns the names in a directory, with their nodes.
func (t *taking) entries(dir Node) (list []entry) {
	b := t.block(dir)
	for n := b.First; n < b.First+Node(b.Count); n++ {
		name := t.base.Table.Name(t.base.Table.At(n))
		if _, p := t.names.Entry(dir, name); p == overlay.Unknown {
			list = append(list, entry{name: strings.Clone(name), node: n})
		}
	}
	t.names.ReadDir(dir, 0, func(_ uint64, name string, n Node, p overlay.Presence) bool {
		if p == overlay.Present {
			list = append(list, entry{name: strings.Clone(name), node: n})
		}
		return true
	})
	return list
}

// node returns the index of the node n in c.nodes, and adds it if it is new, or -1 if it is an unchanged file of the
// base tree.
func (t *taking) node(n Node, in overlay.Inode) int {
	if i, ok := t.known[n]; ok {
		return i
	}
	if !isDir(&in) && in.Size == overlay.SizeOfBase {
		t.known[n] = -1
		return -1
	}
	if overlay.Unsettled(in) {
		t.c.Unsettled = append(t.c.Unsettled, in)
	}
	c := node{in: in}
	c.in.Node, c.in.Parent, c.in.Nlink, c.in.Flags = 0, 0, 0, 0
	if target, ok := t.names.Target(n); ok {
		c.target = strings.Clone(target)
	}
	for _, name := range t.names.Xattrs(n) {
		if value, ok := t.names.Xattr(n, name); ok {
			c.xattrs = append(c.xattrs, xattr{name, slices.Clone(value)})
		}
	}
	t.c.nodes = append(t.c.nodes, c)
	i := len(t.c.nodes) - 1
	if !isDir(&in) {
		t.known[n] = i
	}
	return i
}

// entry is a name in a directory, with its node.
type entry struct {
	name string
	node Node
}

// inode returns the inode of a node: that of the overlay, or that of the base tree.
func (t *taking) inode(n Node) (overlay.Inode, bool) {
	if in, ok := t.names.Inode(n); ok {
		return in, true
	}
	r, ok := t.base.Table.Record(n)
	if !ok {
		return overlay.Inode{}, false
	}
	return t.base.Inode(n, r), true
}

func isDir(in *overlay.Inode) bool { return in.Mode&syscall.S_IFMT == syscall.S_IFDIR }

// joined returns the path of name in the directory dir.
func joined(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// recorded returns a path, with a slash at its end if it is that of a directory.
func recorded(path string, dir bool) string {
	if dir {
		path += "/"
	}
	return path
}
