package daemon

import (
	"context"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/control"
	"github.com/artifactfs/artifactfs/gitdir"
	"github.com/artifactfs/artifactfs/internal/index"
	"github.com/artifactfs/artifactfs/internal/mountinfo"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/worktree"
)

// renew makes the new index: what changes, what the monitor has said of the rest, and times. Others are the files of the
// mount that may not be tracked, sorted.
func (m *mount) renew(x *index.Index, entries []index.Change, since worktree.Changes, others []string, written time.Time) {
	tracked := make(map[string]bool, len(x.Entries))
	for _, e := range x.Entries {
		tracked[e.Path] = true
	}
	for _, c := range entries {
		tracked[c.Entry.Path] = !c.Gone
	}
	others = slices.DeleteFunc(others, func(p string) bool { return tracked[p] || p == ".git" })
	x.Switch(entries, func(dir string) bool {
		i, _ := slices.BinarySearch(others, dir)
		return slices.ContainsFunc(others[i:], func(p string) bool { return dir == "" || strings.HasPrefix(p, dir+"/") })
	}, m.request.Prefetch != control.PrefetchNone)
	if !since.All {
		here := make(map[string]bool, len(entries))
		for _, c := range entries {
			here[c.Entry.Path] = true
		}
		x.Heard(since.Token, since.Paths, func(path string) bool { return here[path] })
	}
	// Git takes a file that is as young as the index for one that may have been changed in the same tick, and reads it
	// when it writes the index next. So the index is younger than all files, and those for which git would have been
	// right are marked as git does it: their size is not known.
	for i := range x.Entries {
		if s := &x.Entries[i].Stat; s.Mtime >= written.Add(-time.Second).UnixNano() {
			s.Size = 0
		}
	}
}

// others lists the files of the mount that git may not track: what is not of the base tree, and of the paths that the
// target or the index does not have those that are there.
func (m *mount) others(ctx context.Context, missing []string) []string {
	list := append(m.tree.Added(), m.redirects.Paths()...)
	for _, p := range missing {
		if f, err := m.tree.Find(ctx, p); err != nil || f.Node != 0 && !isDir(f) {
			list = append(list, p)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// missing lists the paths of the base tree that a tree does not have.
func (m *mount) missing(ctx context.Context, git *gitdir.Dir, tree object.ID) (paths []string, err error) {
	list, err := git.Differences(ctx, m.snapshot().Tree, tree)
	for _, d := range list {
		if d.NewMode == 0 {
			paths = append(paths, d.Path)
		}
	}
	return paths, err
}

// except gives the paths that no change is of.
func except(paths []string, changes []index.Change) []string {
	changed := make(map[string]bool, len(changes))
	for _, c := range changes {
		changed[c.Entry.Path] = true
	}
	return slices.DeleteFunc(paths, func(p string) bool { return changed[p] })
}

// setTrees tells the trees of the index where they are those of the target: git need not compare there. Staged are the
// paths that differ from it.
func (m *mount) setTrees(ctx context.Context, x *index.Index, root object.ID, staged []string) {
	differ := map[string]bool{} // directories
	for _, p := range staged {
		for dir := p; dir != ""; {
			dir = parentOf(dir)
			differ[dir] = true
		}
	}
	trees := map[string]object.ID{"": root}
	failed := false
	var find func(dir string) object.ID
	find = func(dir string) object.ID {
		if tree, ok := trees[dir]; ok {
			return tree
		}
		parent := find(parentOf(dir))
		trees[dir] = object.ID{}
		if parent.IsZero() {
			return parent
		}
		entries, err := m.view.Tree(ctx, parent)
		failed = failed || err != nil
		for _, e := range entries {
			if e.Mode == object.ModeDir {
				trees[path.Join(parentOf(dir), e.Name)] = e.ID
			}
		}
		return trees[dir]
	}
	x.SetTrees(func(dir string) (object.ID, bool) {
		if differ[dir] || failed {
			return object.ID{}, false
		}
		tree := find(dir)
		return tree, !tree.IsZero()
	})
}

// staleAfter is what the kernel may know wrong of the paths of a switch, of which a dead process did some and told it
// nothing. A directory over which, or below which, something is mounted was there before and is left alone: to forget it
// would unmount that.
func (m *mount) staleAfter(ctx context.Context, list []gitdir.Difference) worktree.Stale {
	stale := worktree.Stale{Dirs: map[worktree.Node]bool{}}
	asked := map[string]bool{}
	for _, d := range list {
		for at := d.Path; at != "" && !asked[at]; at = parentOf(at) {
			asked[at] = true
			f, err := m.tree.Find(ctx, at)
			if err != nil {
				continue
			}
			if f.Node != 0 {
				stale.Nodes = append(stale.Nodes, f.Node)
				stale.Dirs[f.Node] = isDir(f)
			}
			parent, err := m.tree.Resolve(ctx, parentOf(at))
			if err != nil || isDir(f) && m.mountedBelow(at) {
				continue
			}
			stale.Places = append(stale.Places, worktree.Place{Dir: parent, Name: path.Base(at)})
		}
	}
	stale.Nodes = append(stale.Nodes, worktree.Root)
	stale.Dirs[worktree.Root] = true
	return stale
}

// mountedOn says whether something else is mounted over a path of the mount.
func (m *mount) mountedOn(p string) bool {
	return m.anyMount(func(at string) bool { return at == path.Join(m.dir, p) })
}

// mountedBelow says the same of a path and all below it.
func (m *mount) mountedBelow(p string) bool {
	return m.anyMount(func(at string) bool { return mountinfo.Within(path.Join(m.dir, p), at) })
}

func (m *mount) anyMount(is func(at string) bool) bool {
	mounts, err := mountinfo.Self()
	if err != nil {
		return true // it is left alone
	}
	return slices.ContainsFunc(mounts, func(m mountinfo.Mount) bool { return is(m.Point) })
}
