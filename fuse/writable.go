package fuse

import (
	"sync"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/worktree"
)

// writable is the file system of a writable mount.
type writable struct {
	*fileSystem
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

// A LOOKUP must not wait for a size: the kernel holds the lock of the directory until the reply (fs/namei.c,
// lookup_slow), and a process that wants to remove, rename or overwrite the file does not need the size. So the reply
// to a LOOKUP of a file of unknown size has size 0, and attributes that are already invalid. If a process needs the
// size, the kernel requests it with a GETATTR: for stat, for an open (fs/fuse/dir.c, fuse_permission) and for a read
// (fs/fuse/file.c, fuse_cache_read_iter). That GETATTR waits for the size.
//
// If a reply with size 0 arrives after a later one with the size, the kernel drops it because of its version
// (fi->attr_version). It does not compare versions for replies to LINK and SETATTR: if another process changes the mode
// of a file or makes a link to it while the first process waits for the size, the kernel may know size 0 for a moment,
// and requests the size again with the next read or stat.
//
// One case remains wrong: a statx(2) that asks for cached attributes (AT_STATX_DONT_SYNC) sends no request and returns
// size 0.

// fillEntry fills a reply that contains an entry, for which the kernel counts a look-up of the node. The tree's lookup
// count is increased before the reply is sent, because the kernel may forget the node as soon as it has the reply. The
// kernel does not cache the attributes of a file of unknown size, or of a locked file.
func (f *writable) fillEntry(out *raw.EntryOut, a worktree.Attr) {
	f.tree.Kernel().Remember(a.Node)
	keep := a.Size >= 0
	if isFile(a.Mode) && f.locked(a.Node) {
		a.Mode, keep = a.Mode&^writeBits, false
	}
	fillEntry(out, a)
	if !keep {
		out.SetAttrTimeout(0)
	}
}

// fillAttr fills a reply that contains only attributes. Unlike fillEntry it counts no look-up.
func (f *writable) fillAttr(out *raw.AttrOut, a worktree.Attr) {
	switch {
	case isFile(a.Mode) && f.locked(a.Node):
		a.Mode &^= writeBits
	case a.Size >= 0:
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
