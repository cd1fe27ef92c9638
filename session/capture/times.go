package capture

import (
	"context"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/worktree"
)

// mostTimes is the maximum number of paths in Report.Times. Setting the times of so many paths takes a fork less than a
// tenth of a second.
const mostTimes = 20_000

// times returns the times that the paths of the checkpoint had when the working tree was frozen, or nil if these are
// not known. A path that has changed since the freeze gets the time of the freeze, because its own time may be lost,
// and a program such as make must not consider a product up to date that is older than the path. An excluded file also
// gets that time, because the fork has other contents than the working tree from which a product may have been built.
func (s *shot) times(ctx context.Context) *worktree.Times {
	c := s.edit.c
	times, since, ok := c.o.Tree.Overlay().Times(s.view.frozen, mostTimes, s.edit.left.covers)
	if !ok {
		return nil
	}
	for path, l := range s.edit.left.all {
		if l.Why != session.Excluded {
			continue
		}
		// If the checkpoint does not have the path, the fork has it only if it was carried, with the same contents.
		if e, err := c.lookup(ctx, s.shown, strings.TrimSuffix(path, "/")); err != nil || e.Mode != 0 {
			since = append(since, path)
		}
	}
	changed := map[string]bool{}
	for _, path := range since {
		if dir, isDir := strings.CutSuffix(path, "/"); isDir {
			e, err := c.lookup(ctx, s.shown, dir)
			switch {
			// The names and times that were below the directory are not known.
			case err != nil, dir == "", e.Mode == object.ModeDir:
				return nil
			case e.Mode == 0: // the checkpoint does not have the directory
				continue
			}
			path = dir
		}
		changed[path] = true
	}
	times.Paths = slices.DeleteFunc(times.Paths, func(t worktree.PathTimes) bool { return changed[t.Path] })
	at := s.view.frozen.Moment()
	for path := range changed {
		times.Paths = append(times.Paths, worktree.PathTimes{Path: path, Atime: at, Mtime: at, Ctime: at})
	}
	if len(times.Paths) > mostTimes {
		return nil
	}
	return &times
}
