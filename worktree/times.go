package worktree

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/artifactfs/artifactfs/worktree/overlay"
)

// Times contains the times of the paths of a working tree. With them, another Tree with the same files can show the
// same times (Options.Time and Overlay.SetTimes).
type Times struct {
	Unchanged time.Time   // time of all paths that are not in Paths: atime, mtime and ctime
	Paths     []PathTimes // in no particular order
}

// PathTimes contains the times of one path, in nanoseconds since 1970.
type PathTimes struct {
	Path                string // path relative to the root; "" is the root itself
	Atime, Mtime, Ctime int64
}

// Times returns the times of all paths at the moment of the freeze f. The function skip is called for paths, and
// reports whether a path is left out; the path of a directory ends in a slash, and stands for everything below it.
// Times runs after the freeze while requests continue. Therefore it also returns the paths that were recorded in the
// change journal since the moment, whose times at the moment may be lost: Times has arbitrary times for them. The path
// of a directory ends in a slash and stands for everything below it. The result ok is false if more than most paths
// would be returned, or if the journal does not contain all changes since the moment.
func (o *Overlay) Times(f *Frozen, most int, skip func(path string) bool) (t Times, since []string, ok bool) {
	if o.view.layer == nil || f.at == 0 || !o.gate.enter() {
		return t, nil, false
	}
	defer o.gate.exit()
	w := timesWalk{view: o.view, moment: f.at, most: most, skip: skip, seen: make(map[Node]bool),
		inPlace: make(map[Node][]Node)}
	o.view.look(w.find)
	w.add("", Root)
	w.dir(Root, "")
	if len(w.list) > most {
		return t, nil, false
	}
	_, since, known := o.changes.since(f.Token)
	since = slices.DeleteFunc(since, skip)
	return Times{o.view.base.Time(), w.list}, since, known && len(since) <= most
}

// timesWalk is a call of Overlay.Times in progress. It visits the nodes that have an inode in the overlay, and the
// directories above them.
type timesWalk struct {
	view   *view
	moment int64 // moment of the freeze, in nanoseconds since 1970
	most   int
	skip   func(path string) bool
	seen   map[Node]bool // directories that dir has listed
	// inPlace has the base nodes to visit whose names are those of their tree, by directory.
	inPlace map[Node][]Node
	list    []PathTimes
}

// find sets w.inPlace.
func (w *timesWalk) find(m merged) {
	found := make(map[Node]bool)
	m.EachInode(func(in overlay.Inode) bool {
		for n := in.Node; n != Root && !found[n]; {
			r, ok := m.base.Table.Record(n)
			if !ok || r.Dir() == n { // an own node, which dir finds by its name in the overlay, or the root of a graft
				break
			}
			found[n] = true
			if _, p := m.Entry(r.Dir(), m.base.Table.Name(r)); p != overlay.Unknown {
				break
			}
			w.inPlace[r.Dir()] = append(w.inPlace[r.Dir()], n)
			n = r.Dir()
		}
		return true
	})
}

// named is a name in a directory, its node, and whether the node is a directory.
type named struct {
	name  string
	node  Node
	isDir bool
}

// dir adds the times of everything below the directory n at the path at.
func (w *timesWalk) dir(n Node, at string) {
	if w.seen[n] || len(w.list) > w.most { // a directory is seen twice if it was renamed during the walk
		return
	}
	w.seen[n] = true
	var list []named
	w.view.look(func(m merged) {
		for _, child := range w.inPlace[n] {
			r := m.base.Table.At(child)
			name := m.base.Table.Name(r)
			if _, p := m.Entry(n, name); p == overlay.Unknown {
				list = append(list, named{strings.Clone(name), child, r.Kind().IsDir()})
			}
		}
	})
	for after, more := uint64(0), true; more; {
		w.view.look(func(m merged) {
			left := glance
			more = false
			m.ReadDir(n, after, func(cookie uint64, name string, child Node, p overlay.Presence) bool {
				if more = left == 0; more {
					return false
				}
				left--
				after = cookie
				if in, ok := m.inode(child); p == overlay.Present && ok {
					list = append(list, named{strings.Clone(name), child, isDir(&in)})
				}
				return true
			})
		})
	}
	for _, e := range list {
		path := joined(at, e.name)
		if path == gitFile || w.skip(recorded(path, e.isDir)) {
			continue
		}
		w.add(path, e.node)
		if e.isDir {
			w.dir(e.node, path)
		}
	}
}

// add adds the times of node n, unless these are the times of unchanged paths.
func (w *timesWalk) add(path string, n Node) {
	in, err := w.view.inode(n)
	if err != nil {
		return
	}
	t := PathTimes{path, in.Atime, in.Mtime, in.Ctime}
	if isDir(&in) && in.Ctime > w.moment {
		// Entries may have changed since the moment. If the contents or the mtime of a file have changed, the journal has
		// its path.
		t.Mtime, t.Ctime = min(t.Mtime, w.moment), w.moment
	}
	if at := w.view.base.Time().UnixNano(); t != (PathTimes{path, at, at, at}) {
		w.list = append(w.list, t)
	}
}

// someTimes is the number of paths whose times SetTimes sets in one update.
const someTimes = 128

// ErrNoTimes means that SetTimes has set no times, because it could not read a directory.
var ErrNoTimes = errors.New("no times were set")

// SetTimes sets the times of a new working tree, of which the kernel knows no path yet. It ignores paths that do not
// exist. The paths do not count as changed, and the change journal does not record them. If t.Unchanged is earlier than
// Options.Time, all other paths have that time when SetTimes has returned. The overlay stores it after all other times:
// when a kill, a power failure or a damage has lost some of these, all unchanged paths have Options.Time again, and no
// path has an earlier time than in t. SetTimes waits until the trees of the directories above the paths are fetched.
func (o *Overlay) SetTimes(ctx context.Context, t Times) error {
	if !o.gate.enter() {
		return ErrClosed
	}
	defer o.gate.exit()
	if o.view.layer == nil {
		return syscall.EROFS
	}
	nodes, dirs := make([]Node, len(t.Paths)), map[string]Node{".": Root}
	for i, p := range t.Paths {
		n, err := o.nodeAt(ctx, p.Path, dirs)
		if err != nil && !errors.Is(err, ErrNotExist) && !errors.Is(err, ErrNotDir) &&
			!errors.Is(err, syscall.ENAMETOOLONG) {
			return fmt.Errorf("%w: %w", ErrNoTimes, err)
		}
		nodes[i] = n
	}
	earlier := t.Unchanged.Before(o.view.base.Time())
	for i, done := 0, false; !done; i += someTimes {
		some := t.Paths[i:min(i+someTimes, len(t.Paths))]
		done = i+len(some) == len(t.Paths)
		err := o.view.layer.Update(func(tx *overlay.Tx) error {
			m := merged{tx.Reader, o.view.base}
			for k, p := range some {
				if in, ok := m.inode(nodes[i+k]); ok {
					in.Atime, in.Mtime, in.Ctime = p.Atime, p.Mtime, p.Ctime
					tx.PutTimes(in)
				}
			}
			if done && earlier {
				tx.SetBaseTime(t.Unchanged.UnixNano())
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if earlier {
		o.view.base.SetTime(t.Unchanged)
	}
	return nil
}

// nodeAt returns the node at a path. dirs contains the nodes of the directories that were found before, and nodeAt adds
// those above the path.
func (o *Overlay) nodeAt(ctx context.Context, at string, dirs map[string]Node) (Node, error) {
	if at == "" {
		return Root, nil
	}
	above := path.Dir(at)
	dir, ok := dirs[above]
	if !ok {
		var err error
		if dir, err = o.nodeAt(ctx, above, dirs); err != nil {
			return 0, err
		}
		dirs[above] = dir
	}
	in, err := o.view.find(ctx, dir, path.Base(at))
	return in.Node, err
}
