package worktree

import (
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/worktree/overlay"
)

// Overlay reports how the working tree differs from the base tree, and the state of the overlay, which stores the
// differences. The daemon calls it for the status of a mount, before a session ends, and when a session is forked. The
// fields do not change after Open.
type Overlay struct {
	gate     *gate
	view     *view
	changes  *recorder
	dir      string           // directory of the overlay; "" if the Tree has no overlay
	full     chan struct{}    // see Full
	recovery overlay.Recovery // state in which Open found the overlay
}

// Recovery returns the state in which Open found the overlay, and the repairs that Open made.
func (o *Overlay) Recovery() overlay.Recovery { return o.recovery }

// Changed returns the number of paths that differ from the base tree. A path that differs in its times and in nothing
// else is not counted.
func (o *Overlay) Changed() int64 {
	if o.view.layer == nil || !o.gate.enter() {
		return 0
	}
	defer o.gate.exit()
	changed := o.view.layer.Changed()
	o.view.look(func(m merged) { changed -= m.younger() })
	return max(0, changed)
}

// Stats returns the size of the overlay. It returns the zero value if the Tree has no overlay.
func (o *Overlay) Stats() overlay.Stats {
	if o.view.layer == nil || !o.gate.enter() {
		return overlay.Stats{}
	}
	defer o.gate.exit()
	return o.view.layer.Stats()
}

// Added returns the paths of files and symbolic links for which the base tree has no file or another file. The paths
// are relative to the root. The path of a base directory that was moved ends in a slash, and stands for all paths below
// the directory.
func (o *Overlay) Added() (paths []string) {
	if !o.gate.enter() {
		return nil
	}
	defer o.gate.exit()
	o.view.look(func(m merged) {
		var dirs []Node
		m.EachDir(func(dir Node) bool {
			dirs = append(dirs, dir)
			return true
		})
		for _, dir := range dirs {
			at, ok := m.path(dir)
			if !ok {
				continue // the directory was removed, but a program still has it open
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
