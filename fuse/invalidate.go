package fuse

import (
	"sync"

	raw "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/artifactfs/artifactfs/worktree"
)

// notifiers is the number of notices (messages to the kernel that answer no request) that are sent concurrently. Each
// notice waits for the lock of a directory.
const notifiers = 4

// Invalidate makes the kernel drop the names and attributes in stale, which have changed without a request. The kernel
// then looks up those names again, including the names that it had cached as absent, and lists those directories again.
// Invalidate must not be called while answering a request: dropping an entry takes the lock of its directory, and the
// process that holds this lock may wait for a reply.
func (s *Server) Invalidate(stale worktree.Stale) {
	places := make(chan worktree.Place)
	var all sync.WaitGroup
	for range min(notifiers, len(stale.Places)) {
		all.Go(func() {
			s.device.notifyKernel(func() raw.Status {
				for p := range places {
					s.raw.EntryNotify(uint64(p.Dir), p.Name) // fails with ENOENT if the kernel has not cached the name
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
	s.device.notifyKernel(func() raw.Status {
		for _, n := range stale.Nodes {
			// The cached pages of a directory contain its listing, so they are invalidated too. The pages of a file remain
			// valid, because the contents of a node never change without a request.
			off := int64(-1)
			if stale.Dirs[n] {
				off = 0
			}
			s.raw.InodeNotify(uint64(n), off, 0)
		}
		return raw.OK
	})
}
