package worktree

import (
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/overlay"
)

// Added returns the paths of files and links, relative to the root, at which the base tree has no file or a different one. The
// path of a base directory that was moved ends in a slash, and the paths below it are not listed.
func (t *Tree) Added() (paths []string) {
	if !t.gate.enter() {
		return nil
	}
	defer t.gate.leave()
	t.view(func(m merged) {
		var dirs []Node
		m.EachDir(func(dir Node) bool {
			dirs = append(dirs, dir)
			return true
		})
		for _, dir := range dirs {
			at, ok := m.path(dir)
			if !ok {
				continue // the directory was removed and is still open
			}
			m.ReadDir(dir, 0, func(_ uint64, name string, n Node, p overlay.Presence) bool {
				in, ok := m.inode(n)
				switch {
				case p != overlay.Present || !ok:
				case !isDir(&in):
					paths = append(paths, strings.Clone(joined(at, name)))
				case !n.Own():
					paths = append(paths, strings.Clone(joined(at, name))+"/")
				}
				return true
			})
		}
	})
	slices.Sort(paths)
	return paths
}
