package fuse

import (
	"fmt"
	"sync"
	"syscall"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/worktree"
)

// sizes knows which files of the base tree the kernel was told the size of.
//
// A look-up must not wait for a size: the kernel holds the directory meanwhile (fs/namei.c, lookup_slow), and who
// wants to remove, rename or overwrite the file needs none. So a LOOKUP of an unknown size says 0 with attributes that
// are no longer valid, and whoever needs the size makes the kernel ask again: stat, open for reading
// (fs/fuse/dir.c, fuse_permission), reading and writing (fs/fuse/file.c, fuse_cache_read_iter, fuse_cache_write_iter).
// That GETATTR waits. But with a writeback cache the kernel keeps its own size of a file whatever we answer
// (fs/fuse/inode.c, fuse_change_attributes); it has to be grown by storing the last byte into its page cache, which
// moves the end of the file (fuse_notify_store). That page stays to be read as a whole, unless the byte is the only one
// in it: then it counts as read, and the byte must be the right one.
//
// The first answer that shows a file decides how it is told for as long as the mount is there, even if the kernel forgets
// the file between: of an answer of the one kind and one of the other that cross each other, the kernel would keep the
// wrong half of each.
//
// A statx(2) that asks for what is cached (AT_STATX_DONT_SYNC) makes no request and shows the 0; it asked for that.
//
// Storing makes the reply to the GETATTR itself out of date (fuse_write_update_attr raises the version of the
// attributes), so the kernel asks once more; the reply is used for the stat that it answers.
//
// What the kernel was told outlives this process if another takes the mount over: it is kept in the bits that a Tree has
// for it (worktree.Tree.Shown), of which the lower two are a sizeState and the upper two the generation (resized).
type sizes struct {
	tree    *worktree.Tree
	telling [64]sync.Mutex // by node: held while the kernel is being told a size
}

const (
	sizeBits       = 3
	generationBits = 3 << generationShift

	generationShift = 2
)

type sizeState uint32

const (
	sizeFresh  sizeState = iota // no answer has shown the file
	sizeUntold                  // the kernel has 0, or will have
	sizeTold
)

func (s *sizes) state(n worktree.Node) sizeState {
	if n.Own() {
		return sizeTold // what the overlay made has a size
	}
	w, shift := s.tree.Shown(n)
	return sizeState(w.Load() >> shift & sizeBits)
}

// set moves a node from one state to the next, and says false if it was not in the former.
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

// untold says how a file is to be shown: without its size, or with it.
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

// told notes that the kernel has the size, by whatever way.
func (s *sizes) told(n worktree.Node) {
	if !n.Own() && !s.set(n, sizeUntold, sizeTold) {
		s.set(n, sizeFresh, sizeTold)
	}
}

// tell waits for a file's size and makes the kernel have it. It gives the attributes that go with it.
func (f *writable) tell(w *waiter, n worktree.Node) (worktree.Attr, error) {
	return f.tree.Told(w, n, func(size int64, last func() (byte, error)) error {
		turn := &f.sizes.telling[n%worktree.Node(len(f.sizes.telling))]
		turn.Lock()
		defer turn.Unlock()
		if f.sizes.state(n) == sizeTold {
			return nil // by another request, and before it was answered
		}
		if size > 0 {
			var end [1]byte
			if size%pageSize == 1 {
				var err error
				if end[0], err = last(); err != nil {
					return err
				}
			}
			// The page cannot be locked for a READ that waits: nothing is read behind the end of a file. Not even
			// ENOENT is to be expected, since who waits for the answer holds the inode.
			if status := f.server.InodeNotifyStoreCache(uint64(n), size-1, end[:]); status != raw.OK {
				return fmt.Errorf("tell size: %w", syscall.Errno(status))
			}
		}
		f.sizes.told(n)
		return nil
	})
}

// pageSize is the unit of the kernel's page cache. A larger one than the host's makes us ask for the last byte of a
// file less often than needed, so it is the host's.
var pageSize = int64(syscall.Getpagesize())
