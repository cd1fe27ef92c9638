package fuse

import (
	"fmt"
	"sync"
	"syscall"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/worktree"
)

// sizes records for which files of the base tree the kernel knows the size.
//
// A LOOKUP must not wait for a size: the kernel holds the lock of the directory until the reply (fs/namei.c,
// lookup_slow), and a process that wants to remove, rename or overwrite the file does not need the size. So the reply
// to a LOOKUP of a file of unknown size has size 0, and attributes that are already invalid. If a process needs the
// size, the kernel requests it with a GETATTR: for stat, for an open for reading (fs/fuse/dir.c, fuse_permission),
// for a read and for a write (fs/fuse/file.c, fuse_cache_read_iter, fuse_cache_write_iter). That GETATTR waits for
// the size.
//
// Without a writeback cache the kernel takes the size from the reply. If a reply with size 0 arrives after a later one with
// the size, the kernel drops it because of its version (fi->attr_version). It does not compare versions for replies to LINK
// and SETATTR: if another process changes the mode of a file or makes a link to it while the first process waits for the
// size, the kernel may know size 0 for a moment, and requests the size again with the next read or stat.
//
// With a writeback cache the kernel does not take a new size from a reply, but keeps its own (fs/fuse/inode.c,
// fuse_change_attributes). Only a notice that stores the last byte of the file in the page cache can increase the kernel's
// size, because this notice moves the end of the file (fuse_notify_store). Usually the kernel still reads the whole page of
// that byte from this process, so the stored byte may have any value. If the byte is the only byte of the page, however, the
// kernel treats the page as read, so the stored byte must have the value that it has in the file.
//
// With a writeback cache, the first reply that contains a file decides whether the file's size is stored by such a
// notice. The decision holds as long as the mount exists, even if the kernel forgets the file in between: if replies
// with the size and replies with size 0 were in flight at the same time, the kernel could combine parts of both.
//
// One case remains wrong: a statx(2) that asks for cached attributes (AT_STATX_DONT_SYNC) sends no request and
// returns size 0.
//
// The notice makes the reply to the GETATTR outdated in the kernel's view (fuse_write_update_attr raises the version
// of the attributes). So the kernel does not cache that reply and sends another GETATTR later. The stat that caused
// the first GETATTR still returns its reply.
//
// The state survives a takeover, because it is stored in four bits that a Tree keeps for each node
// (worktree.Kernel.Shown): the lower two are a sizeState, the upper two the generation (see the type resized).
type sizes struct {
	tree    *worktree.Tree
	sending [64]sync.Mutex // locks by node id modulo 64; the lock of a node is held while its size is stored in the kernel
}

const (
	// Masks for the bits of a node that worktree.Kernel.Shown returns.
	sizeBits       = 3
	generationBits = 3 << generationShift

	generationShift = 2
)

// sizeState states which size of a node the kernel knows.
type sizeState uint32

const (
	sizeUnseen  sizeState = iota // no reply has contained the file
	sizeUnknown                  // the kernel treats the size as 0, or will do so when a reply arrives
	sizeKnown                    // the kernel knows the size
)

// state returns the sizeState of a node.
func (s *sizes) state(n worktree.Node) sizeState {
	if n.Own() {
		return sizeKnown // the kernel always knows the size of an overlay file
	}
	w, shift := s.tree.Kernel().Shown(n)
	return sizeState(w.Load() >> shift & sizeBits)
}

// hidden reports whether the kernel treats the size of a file as 0 until a notice stores the size. Only a writeback cache needs
// such notices.
func (f *writable) hidden(n worktree.Node) bool { return f.cached && f.sizes.state(n) == sizeUnknown }

// set changes the state of a node to the state in the parameter to, if the node's state equals the parameter from. Otherwise
// set changes nothing and returns false.
func (s *sizes) set(n worktree.Node, from, to sizeState) bool {
	w, shift := s.tree.Kernel().Shown(n)
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

// hidesSize reports whether replies must contain size 0 for a file. known is true if the caller knows the size. The first call
// for a file determines the result: later calls return the same result until markKnown is called for the file.
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

// markKnown records that the kernel knows the size of a file.
func (s *sizes) markKnown(n worktree.Node) {
	if !n.Own() && !s.set(n, sizeUnknown, sizeKnown) {
		s.set(n, sizeUnseen, sizeKnown)
	}
}

// sendSize waits for a file's size, stores the size in the kernel by a notice, and returns the attributes with this size.
func (f *writable) sendSize(w *waiter, n worktree.Node) (worktree.Attr, error) {
	return f.tree.Told(w, n, func(size int64, last func() (byte, error)) error {
		lock := &f.sizes.sending[n%worktree.Node(len(f.sizes.sending))]
		lock.Lock()
		defer lock.Unlock()
		if f.sizes.state(n) == sizeKnown {
			return nil // another request has stored the size in the kernel
		}
		if size > 0 {
			var end [1]byte
			if size%pageSize == 1 {
				var err error
				if end[0], err = last(); err != nil {
					return err
				}
			}
			// The notice cannot wait for a page that a READ in progress has locked: until now the kernel treats the file as
			// empty, and it reads no pages behind the end of a file. ENOENT is not expected, because the kernel keeps the
			// inode while the request is in progress.
			if status := f.server.InodeNotifyStoreCache(uint64(n), size-1, end[:]); status != raw.OK {
				return fmt.Errorf("notify kernel of file size: %w", syscall.Errno(status))
			}
		}
		f.sizes.markKnown(n)
		return nil
	})
}

// pageSize is the unit of the kernel's page cache, in bytes.
var pageSize = int64(syscall.Getpagesize())
