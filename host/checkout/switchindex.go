package checkout

import (
	"context"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/git/index"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/worktree"
)

// switchedEntries returns the changes of index entries for the plan p, whose grafts had the results done, and the paths
// that were left unchanged because a program changed them during the switch.
func switchedEntries(p *Plan, done []worktree.Grafted, device uint32) (list []index.Change, kept []string) {
	list = slices.Clone(p.Index)
	for i, g := range p.Grafts {
		if done[i].Kept {
			kept = append(kept, g.Path)
		}
		c := entryOf(g.Path, g.Mode, g.ID, done[i].Attr, !done[i].Kept)
		c.Entry.Stat.Dev = device
		list = append(list, c)
	}
	return list, kept
}

// switchIndex updates the index x after a switch: it changes the given entries, marks other paths that the change
// journal has recorded in since, and sets new file times. others has the sorted paths of files in the mount that the
// index may lack. read is passed to index.Switch. written is the modification time that the index file will have.
func switchIndex(x *index.Index, entries []index.Change, since worktree.Changes, others []string, read bool,
	written time.Time) {
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
	}, read)
	if !since.All {
		changed := make(map[string]bool, len(entries))
		for _, c := range entries {
			changed[c.Entry.Path] = true
		}
		x.ApplyMonitor(since.Token, since.Paths, func(path string) bool { return changed[path] })
	}
	// Git does not trust the entry of a file whose modification time is not older than that of the index, because the file
	// may have changed again in the same clock tick. Git reads such a file when it next writes the index. So the index
	// receives a later time than the files. If a file is still not older than the index, the size in its entry is set to
	// 0, which is git's own mark for an entry of unknown state.
	for i := range x.Entries {
		if s := &x.Entries[i].Stat; s.Mtime >= written.Add(-time.Second).UnixNano() {
			s.Size = 0
		}
	}
}

// others returns the sorted paths of the files in the mount that git may not track: files that the base tree does not
// have, redirected directories, and those of the paths missing at which a file exists.
func (c *Checkout) others(ctx context.Context, missing []string) []string {
	list := append(c.Added(), c.Redirects()...)
	for _, p := range missing {
		if f, err := c.Tree.Find(ctx, p); err != nil || f.Node != 0 && !isDir(f) {
			list = append(list, p)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// missing returns the paths that are in the base tree of the mount but not in the given tree.
func (c *Checkout) missing(ctx context.Context, tree object.ID) (paths []string, err error) {
	list, err := Differences(ctx, c.Trees, c.Base, tree)
	for _, d := range list {
		if d.NewMode == 0 {
			paths = append(paths, d.Path)
		}
	}
	return paths, err
}

// except returns the elements of paths that have no change in the list changes. It reuses the array of paths.
func except(paths []string, changes []index.Change) []string {
	changed := make(map[string]bool, len(changes))
	for _, c := range changes {
		changed[c.Entry.Path] = true
	}
	return slices.DeleteFunc(paths, func(p string) bool { return changed[p] })
}

// setTrees stores the IDs of the trees below root in the index (git's cache-tree extension), so that git need not
// compare these directories. It omits the directories of the paths staged, whose index entries differ from those trees.
func (c *Checkout) setTrees(ctx context.Context, x *index.Index, root object.ID, staged []string) {
	differ := map[string]bool{} // directories that contain a staged path
	for _, p := range staged {
		for dir := p; dir != ""; {
			dir = worktree.ParentOf(dir)
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
		parent := find(worktree.ParentOf(dir))
		trees[dir] = object.ID{}
		if parent.IsZero() {
			return parent
		}
		entries, err := c.Trees(ctx, parent)
		failed = failed || err != nil
		for _, e := range entries {
			if e.Mode == object.ModeDir {
				trees[path.Join(worktree.ParentOf(dir), e.Name)] = e.ID
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
