package fuse

import (
	"fmt"
	"sync"
	"syscall"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/worktree"
)

// sizes records which files of the base tree the kernel has the size of.
//
// A LOOKUP must not wait for a size: the kernel holds the directory meanwhile (fs/namei.c,
// lookup_slow), and a process that wants to remove, rename or overwrite the file does not need the
// size. So the reply to a LOOKUP of a file of unknown size has size 0 and attributes that are
// already invalid. A process that needs the size makes the kernel request it: by stat, by opening
// for reading (fs/fuse/dir.c, fuse_permission), by reading and by writing (fs/fuse/file.c,
// fuse_cache_read_iter, fuse_cache_write_iter). That GETATTR waits.
//
// With a writeback cache the kernel keeps its own size of a file, whatever the reply contains
// (fs/fuse/inode.c, fuse_change_attributes). The size has to be grown by storing the last byte of
// the file into the page cache, which moves the end of the file (fuse_notify_store). The kernel
// still reads that page as a whole, unless the byte is the only one in it: then the page counts as
// read, and the byte must be the right one.
//
// The first reply that shows a file decides, for as long as the mount exists, whether the size is
// stored this way, even if the kernel forgets the file in between. If replies of both kinds were in
// flight at the same time, the kernel would keep the wrong half of each.
//
// A statx(2) for cached attributes (AT_STATX_DONT_SYNC) sends no request and shows size 0.
//
// Storing makes the reply to the GETATTR itself out of date (fuse_write_update_attr raises the
// version of the attributes), so the kernel sends another one; the first reply is used for the stat
// that it answers.
//
// The state survives a takeover: it is stored in the bits that a Tree has for it
// (worktree.Tree.Shown), of which the lower two are a sizeState and the upper two the generation
// (resized).
type sizes struct {
	tree    *worktree.Tree
	sending [64]sync.Mutex // by node: held while a size is stored in the kernel
}

const (
	// Bits of worktree.Tree.Shown.
	sizeBits       = 3
	generationBits = 3 << generationShift

	generationShift = 2
)

// sizeState is the kernel's knowledge of the size of a node.
type sizeState uint32

const (
	sizeUnseen  sizeState = iota // no answer has shown the file
	sizeUnknown                  // the kernel has 0, or will have
	sizeKnown
)

// state returns the kernel's knowledge of a node's size.
func (s *sizes) state(n worktree.Node) sizeState {
	if n.Own() {
		return sizeKnown // the size of an overlay file is always known
	}
	w, shift := s.tree.Shown(n)
	return sizeState(w.Load() >> shift & sizeBits)
}

// set moves a node from one state to the next. It returns false if the node was not in the state
// from.
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

// hidesSize reports whether a reply must show a file without its size. The first reply decides: known
// is true if it has the size.
func (s *sizes) hidesSize(n worktree.Node, known bool) bool {
	if n.Own() {
		return false
	}
	first := sizeUnknown
	if known {
		first = sizeKnown
	}
	s.set(n, sizeUnseen, first)
	return s.state(n) == sizeUnknown
}

// markKnown records that the kernel has the size of a file.
func (s *sizes) markKnown(n worktree.Node) {
	if !n.Own() && !s.set(n, sizeUnknown, sizeKnown) {
		s.set(n, sizeUnseen, sizeKnown)
	}
}

// sendSize waits for a file's size and stores it in the kernel. It returns the attributes with that
// size.
func (f *writable) sendSize(w *waiter, n worktree.Node) (worktree.Attr, error) {
	return f.tree.Told(w, n, func(size int64, last func() (byte, error)) error {
		lock := &f.sizes.sending[n%worktree.Node(len(f.sizes.sending))]
		lock.Lock()
		defer lock.Unlock()
		if f.sizes.state(n) == sizeKnown {
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
			// No READ that waits can have locked the page, since the kernel reads nothing behind the end
			// of a file. ENOENT is not expected, since the caller of the request holds the inode.
			if status := f.server.InodeNotifyStoreCache(uint64(n), size-1, end[:]); status != raw.OK {
				return fmt.Errorf("tell size: %w", syscall.Errno(status))
			}
		}
		f.sizes.markKnown(n)
		return nil
	})
}

// pageSize is the unit of the kernel's page cache, in bytes.
var pageSize = int64(syscall.Getpagesize())
