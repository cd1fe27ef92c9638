package fuse

import "github.com/artifactfs/artifactfs/worktree"

// Refresh makes the kernel forget the attributes of nodes, so that the next stat of one asks for them. Pages stay. It
// must not be called by who answers a request.
func (s *Server) Refresh(nodes []worktree.Node) {
	for _, n := range nodes {
		s.raw.InodeNotify(uint64(n), -1, 0) // a node that the kernel does not have is not written to either
	}
	s.fs.tree.Refreshed(nodes)
}
