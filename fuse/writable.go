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
	writes    *writing // WRITEs in progress
	acl       bool     // whether POSIX access control lists apply (Options.ACL)
	guard     Guard    // a copy of Options.Guard; nil: programs may change all paths

	notices sync.WaitGroup // waits for the notices to the kernel that are sent in the background
}

var (
	_ raw.RawFileSystem = (*fileSystem)(nil)
	_ raw.RawFileSystem = (*writable)(nil)
)

// fillEntry fills a reply that contains an entry, for which the kernel counts a look-up of the node. The tree's lookup count
// is increased before the reply is sent, because the kernel may forget the node as soon as it has the reply.
func (f *writable) fillEntry(out *raw.EntryOut, a worktree.Attr) {
	f.tree.Kernel().Remember(a.Node)
	locked := isFile(a.Mode) && f.locked(a.Node)
	a, until := f.shown(a)
	if locked {
		a.Mode, until = a.Mode&^writeBits, false
	}
	fillEntry(out, a)
	out.Generation = f.resized.generation(a.Node)
	if !until {
		out.SetAttrTimeout(0)
	}
}

// shown returns a node's attributes in the form for a reply. The size is 0 if the kernel must not get the size yet (see the
// type sizes). keep reports whether the kernel may cache the attributes.
func (f *writable) shown(a worktree.Attr) (_ worktree.Attr, keep bool) {
	if !isFile(a.Mode) || !f.cached {
		return a, a.Size >= 0 // any reply may change the size that the kernel knows
	}
	if f.sizes.hidesSize(a.Node, a.Size >= 0) {
		a.Size = 0
		return a, false
	}
	if a.Size < 0 { // another request has found out the size after the attributes a were read
		a, keep = f.tree.KnownAttr(a.Node)
		return a, keep
	}
	return a, true
}

// fillAttr fills a reply that contains only attributes. Unlike fillEntry it counts no look-up.
func (f *writable) fillAttr(out *raw.AttrOut, a worktree.Attr) {
	locked := isFile(a.Mode) && f.locked(a.Node)
	a, keep := f.shown(a)
	switch {
	case locked:
		a.Mode &^= writeBits
	case keep:
		out.SetTimeout(forever)
	}
	fillAttr(&out.Attr, a)
}

// Forget decreases the lookup count of a node by lookups.
func (f *writable) Forget(node, lookups uint64) {
	f.tree.Kernel().Forget(worktree.Node(node), lookups)
}

// OnUnmount ends the waits of all requests and returns when all notices to the kernel were sent.
func (f *writable) OnUnmount() {
	f.fileSystem.OnUnmount()
	f.notices.Wait()
}
