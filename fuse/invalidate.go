package fuse

import (
	"sync"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/worktree"
)

// notifiers is how many notices are written at a time: each waits for the lock of a directory.
const notifiers = 4

// Invalidate makes the kernel forget names and attributes that changed without its doing: a name that it has, or knows
// not to be there, is looked up again; a directory is listed again. It must not be called by who answers a request: to
// drop an entry takes the directory's lock, and who has that may wait for an answer.
func (s *Server) Invalidate(stale worktree.Stale) {
	places := make(chan worktree.Place)
	var all sync.WaitGroup
	for range min(notifiers, len(stale.Places)) {
		all.Go(func() {
			s.device.tellKernel(func() raw.Status {
				for p := range places {
					s.raw.EntryNotify(uint64(p.Dir), p.Name) // ENOENT: the kernel does not have it
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
			// Of a directory the pages are its listing. Those of a file stay: what they hold is the node's for good.
			off := int64(-1)
			if stale.Dirs[n] {
				off = 0
			}
			s.raw.InodeNotify(uint64(n), off, 0)
		}
		return raw.OK
	})
}
