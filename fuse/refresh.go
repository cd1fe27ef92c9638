package fuse

import "github.com/artifactfs/artifactfs/worktree"

// Refresh makes the kernel forget the attributes of nodes, so that the next stat of each sends a
// request. Pages are kept. It must not be called while answering a request.
func (s *Server) Refresh(nodes []worktree.Node) {
	for _, n := range nodes {
		s.raw.InodeNotify(uint64(n), -1, 0) // a node that the kernel does not have is not being written either
	}
	s.fs.tree.Refreshed(nodes)
}
