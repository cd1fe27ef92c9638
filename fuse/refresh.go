package fuse

import "github.com/artifactfs/artifactfs/worktree"

// Refresh makes the kernel drop the attributes of nodes, so that the next stat of each node sends a request, and the
// kernel reports the next write to the node by a GETXATTR. Cached pages are kept. Refresh must not be called while
// answering a request, because a notice may wait for locks that the kernel holds until the reply.
func (s *Server) Refresh(nodes []worktree.Node) {
	for _, n := range nodes {
		// an error means that the kernel does not know the node, so no program writes to it
		s.raw.InodeNotify(uint64(n), -1, 0)
	}
	s.fs.tree.Monitor().Refreshed(nodes)
}
