package fuse

import (
	"fmt"
	"sync"
	"syscall"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/worktree"
)

// sizes records which files of the base tree have their size in the kernel.
//
// A LOOKUP must not wait for a size: the kernel holds the directory's lock meanwhile (fs/namei.c, lookup_slow), and
// removing, renaming or overwriting the file does not need it. So the reply to a LOOKUP of a file with unknown size has
// size 0 with attributes that are already expired. System calls that need the size make the kernel request the
// attributes again: stat, open for reading (fs/fuse/dir.c, fuse_permission), reading and writing (fs/fuse/file.c,
// fuse_cache_read_iter, fuse_cache_write_iter). That GETATTR waits. But with a writeback cache the kernel keeps its own
// size of a file whatever the reply contains (fs/fuse/inode.c, fuse_change_attributes). To change it, this package
// stores the last byte of the file in the kernel's page cache, which moves the end of the file (fuse_notify_store). The
// page of that byte is still read from this process, unless the byte is the only one in it: then the page counts as
// read, and the byte must be the right one.
//
// The first reply that shows a file determines how its size is reported for the lifetime of the mount, even if the
// kernel forgets the file in between: from a reply with and a reply without the size that arrive in the wrong order, the
// kernel would keep an inconsistent mixture.
//
// A statx(2) for cached attributes (AT_STATX_DONT_SYNC) makes no request and returns the size 0, as the caller asked
// for.
//
// Storing the byte also expires the attributes in the reply to the GETATTR itself (fuse_write_update_attr raises the
// version of the attributes), so the kernel requests them once more; the reply is used for the stat that caused it.
//
// The state must survive a takeover, because the kernel keeps its sizes: it is stored in the bits that a Tree has for it
// (worktree.Tree.Shown). The lower two bits are a sizeState, the upper two the generation (resized).
type sizes struct {
	tree    *worktree.Tree
	telling [64]sync.Mutex // by node: held while a size is sent to the kernel
}

const (
	sizeBits       = 3
	generationBits = 3 << generationShift

	generationShift = 2
)

// sizeState is the state of a file's size in the kernel.
type sizeState uint32

const (
	sizeFresh  sizeState = iota // no reply has shown the file
	sizeUntold                  // the kernel has size 0, or will after the reply
	sizeTold                    // the kernel has the size
)

// state returns the state of a node.
func (s *sizes) state(n worktree.Node) sizeState {
	if n.Own() {
		return sizeTold // the size of an own node is always known
	}
	w, shift := s.tree.Shown(n)
	return sizeState(w.Load() >> shift & sizeBits)
}

// set changes a node's state, and returns false if the state was not from.
func (s *sizes) set(n worktree.Node, from, to sizeState) bool {
	w, shift := s.tree.Shown(n)
	for {
		have := w.Load()
		if sizeState(have>>shift&sizeBits) != from {
			return false
		}
		if w.CompareAndSwap(have, have&^(sizeBits<<shift)|uint32(to)<<shift) {
			return true
		}
	}
}

// untold reports whether a reply must show a file without its size; known states whether the size is known. The first
// call for a node decides.
func (s *sizes) untold(n worktree.Node, known bool) bool {
	if n.Own() {
		return false
	}
	first := sizeUntold
	if known {
		first = sizeTold
	}
	s.set(n, sizeFresh, first)
	return s.state(n) == sizeUntold
}

// told records that the kernel has the size, from any kind of reply.
func (s *sizes) told(n worktree.Node) {
	if !n.Own() && !s.set(n, sizeUntold, sizeTold) {
		s.set(n, sizeFresh, sizeTold)
	}
}

// tell waits for a file's size, sends it to the kernel, and returns the file's attributes with it.
func (f *writable) tell(w *waiter, n worktree.Node) (worktree.Attr, error) {
	return f.tree.Told(w, n, func(size int64, last func() (byte, error)) error {
		turn := &f.sizes.telling[n%worktree.Node(len(f.sizes.telling))]
		turn.Lock()
		defer turn.Unlock()
		if f.sizes.state(n) == sizeTold {
			return nil // another request has sent it and was not answered yet
		}
		if size > 0 {
			var end [1]byte
			if size%pageSize == 1 {
				var err error
				if end[0], err = last(); err != nil {
					return err
				}
			}
			// The page cannot be locked by a READ that waits: the kernel reads nothing behind the end of a file. ENOENT
			// is not possible either, since the thread that waits for the reply holds the inode.
			if status := f.server.InodeNotifyStoreCache(uint64(n), size-1, end[:]); status != raw.OK {
				return fmt.Errorf("tell size: %w", syscall.Errno(status))
			}
		}
		f.sizes.told(n)
		return nil
	})
}

// pageSize is the unit of the kernel's page cache in bytes, that of the host. A larger value would skip last bytes that
// the kernel needs.
var pageSize = int64(syscall.Getpagesize())
