package fuse

import (
	"sync"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/worktree"
)

// writable is a mount that can be changed.
type writable struct {
	*fileSystem
	sizes     sizes
	resized   resized
	redirects redirects
	writes    *writing
	acl       bool // access control lists count

	notices sync.WaitGroup // notices to the kernel that must not be waited for in a request
}

var (
	_ raw.RawFileSystem = (*fileSystem)(nil)
	_ raw.RawFileSystem = (*writable)(nil)
)

// fillEntry shows the kernel a node, which it counts: every reply that carries a node is noted before it is sent,
// because the kernel may forget the node as soon as it has it.
func (f *writable) fillEntry(out *raw.EntryOut, a worktree.Attr) {
	f.tree.Remember(a.Node)
	a, until := f.shown(a)
	fillEntry(out, a)
	out.Generation = f.resized.show(a.Node)
	if !until {
		out.SetAttrTimeout(0)
	}
}

// shown gives a node's attributes as the kernel is to be shown them, and says whether it may keep them.
func (f *writable) shown(a worktree.Attr) (_ worktree.Attr, keep bool) {
	if !isFile(a.Mode) {
		return a, a.Size >= 0 // of a symbolic link it takes any size at any time
	}
	if f.sizes.untold(a.Node, a.Size >= 0) {
		a.Size = 0
		return a, false
	}
	if a.Size < 0 { // found before the size was known; another request was quicker
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

func (f *writable) Forget(node, lookups uint64) {
	f.tree.Forget(worktree.Node(node), lookups)
}

func (f *writable) OnUnmount() {
	f.fileSystem.OnUnmount()
	f.notices.Wait()
}
