package fuse

import (
	"sync"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/worktree"
)

// writable is the file system of a writable mount.
type writable struct {
	*fileSystem
	sizes     sizes
	resized   resized
	redirects redirects
	writes    *writing
	acl       bool // access control lists apply

	notices sync.WaitGroup // notices to the kernel for which a request must not wait
}

var (
	_ raw.RawFileSystem = (*fileSystem)(nil)
	_ raw.RawFileSystem = (*writable)(nil)
)

// fillEntry fills in a node that the kernel counts: the look-up count is increased before the reply
// is sent, because the kernel may forget the node as soon as it has the reply.
func (f *writable) fillEntry(out *raw.EntryOut, a worktree.Attr) {
	f.tree.Remember(a.Node)
	a, until := f.shown(a)
	fillEntry(out, a)
	out.Generation = f.resized.generation(a.Node)
	if !until {
		out.SetAttrTimeout(0)
	}
}

// shown returns a node's attributes for a reply, and whether the kernel may cache them.
func (f *writable) shown(a worktree.Attr) (_ worktree.Attr, keep bool) {
	if !isFile(a.Mode) {
		return a, a.Size >= 0 // the kernel accepts a symbolic link's size at any time
	}
	if f.sizes.hidesSize(a.Node, a.Size >= 0) {
		a.Size = 0
		return a, false
	}
	if a.Size < 0 { // read before the size was known; another request was quicker
		a, keep = f.tree.KnownAttr(a.Node)
		return a, keep
	}
	return a, true
}

// fillAttr is fillEntry without a count.
func (f *writable) fillAttr(out *raw.AttrOut, a worktree.Attr) {
	a, keep := f.shown(a)
	if keep {
		out.SetTimeout(forever)
	}
	fillAttr(&out.Attr, a)
}

// Forget decreases the lookup count of a node.
func (f *writable) Forget(node, lookups uint64) {
	f.tree.Forget(worktree.Node(node), lookups)
}

// OnUnmount ends the waits of requests and returns when no notice to the kernel is in flight.
func (f *writable) OnUnmount() {
	f.fileSystem.OnUnmount()
	f.notices.Wait()
}
