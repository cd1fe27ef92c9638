package fuse

import (
	"sync"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/worktree"
)

// notifiers is how many notices are written concurrently: each waits for the lock of a directory.
const notifiers = 4

// Invalidate makes the kernel forget names and attributes that have changed without a request: it
// looks up names again, also those that it knows as absent, and lists directories again. It must
// not be called while answering a request: dropping an entry takes the directory's lock, whose
// holder may wait for a reply.
func (s *Server) Invalidate(stale worktree.Stale) {
	places := make(chan worktree.Place)
	var all sync.WaitGroup
	for range min(notifiers, len(stale.Places)) {
		all.Go(func() {
			s.device.tellKernel(func() raw.Status {
				for p := range places {
					s.raw.EntryNotify(uint64(p.Dir), p.Name) // ENOENT: not in the kernel's cache
				}
				return raw.OK
			})
		})
	}
	for _, p := range stale.Places {
		places <- p
	}
	close(places)
	all.Wait()
	s.device.tellKernel(func() raw.Status {
		for _, n := range stale.Nodes {
			// The pages of a directory are its listing. Those of a file remain valid: the contents
			// of a node never change this way.
			off := int64(-1)
			if stale.Dirs[n] {
				off = 0
			}
			s.raw.InodeNotify(uint64(n), off, 0)
		}
		return raw.OK
	})
}
