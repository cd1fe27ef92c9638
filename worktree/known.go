package worktree

import (
	"context"
	"syscall"
)

// Known returns the files that the kernel may have cached, and whose paths the function covers selects. covers is
// called for directories, too: below reports whether a path in the directory can be selected. Known fetches nothing:
// the kernel knows nothing in a directory whose entries are not fetched.
func (k *Kernel) Known(covers func(path string) (file, below bool)) (files []Node) {
	if k.view.layer == nil || !k.gate.enter() {
		return nil
	}
	defer k.gate.exit()
	type place struct {
		dir  Node
		path string
	}
	for open := []place{{Root, ""}}; len(open) > 0; {
		at := open[len(open)-1]
		open = open[:len(open)-1]
		if r, ok := k.view.base.Table.Record(at.dir); ok && !at.dir.Own() {
			if _, fetched := r.Block(); !fetched {
				continue
			}
		}
		// Nothing is fetched for these entries, so the call needs no time limit. An error means that the directory was
		// removed.
		_ = k.view.readDir(context.Background(), at.dir, 0, func(e Entry) bool {
			path := joined(at.path, e.Name)
			file, below := covers(path)
			switch dir := e.Mode&syscall.S_IFMT == syscall.S_IFDIR; {
			case dir && below && k.knows(e.Node):
				open = append(open, place{e.Node, path})
			case !dir && file && k.knows(e.Node):
				files = append(files, e.Node)
			}
			return true
		})
	}
	return files
}

// Lookups returns the number of references that the kernel has to a node.
func (k *Kernel) Lookups(n Node) uint64 {
	if !k.gate.enter() {
		return 0
	}
	defer k.gate.exit()
	return k.view.lookups(n)
}

// knows reports whether the kernel may have a reference to a node. It does not look up the nodes that the overlay has
// created.
func (k *Kernel) knows(n Node) bool {
	r, ok := k.view.base.Table.Record(n)
	return n.Own() || !ok || r.Known()
}
