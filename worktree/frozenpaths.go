package worktree

import (
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/worktree/inode"
)

// merge returns the entries of old and fresh as one sorted list. It leaves out the entries of old whose path is in the
// list told or below a path in this list, because the entries in fresh describe these paths completely. All arguments
// are sorted by comparePaths.
func merge(old, fresh []FrozenEntry, told []string) []FrozenEntry {
	if len(old) == 0 {
		return fresh
	}
	if len(told) == 0 {
		return old
	}
	all := make([]FrozenEntry, 0, len(old)+len(fresh))
	for _, e := range old {
		for len(told) > 0 && !isWithin(e.Path, told[0]) && comparePaths(told[0], e.Path) < 0 {
			told = told[1:]
		}
		if len(told) > 0 && isWithin(e.Path, told[0]) {
			continue
		}
		for len(fresh) > 0 && comparePaths(fresh[0].Path, e.Path) < 0 {
			all, fresh = append(all, fresh[0]), fresh[1:]
		}
		all = append(all, e)
	}
	return append(all, fresh...)
}

// outermost returns the directory above path that has an entry but whose contents are not listed. If no such directory
// exists, outermost returns path.
func outermost(entries []FrozenEntry, path string) string {
	if len(entries) == 0 {
		return path
	}
	for end := 0; end < len(path); end++ {
		if i := strings.IndexByte(path[end:], '/'); i >= 0 {
			end += i
		} else {
			break
		}
		i, ok := slices.BinarySearchFunc(entries, path[:end],
			func(e FrozenEntry, at string) int { return comparePaths(e.Path, at) })
		if ok && entries[i].Kind != FrozenDir {
			return path[:end]
		}
	}
	return path
}

// comparePaths compares two paths element by element, so that a directory sorts immediately before everything below it.
// It returns a negative number if a is less than b, and 0 if they are equal.
func comparePaths(a, b string) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] == b[i] {
			continue
		}
		x, y := int(a[i]), int(b[i])
		if a[i] == '/' {
			x = -1
		}
		if b[i] == '/' {
			y = -1
		}
		return x - y
	}
	return len(a) - len(b)
}

// isWithin reports whether path is dir or below it.
func isWithin(path, dir string) bool {
	return strings.HasPrefix(path, dir) && (len(path) == len(dir) || path[len(dir)] == '/')
}

// isClosed reports whether a freeze does not list a directory, because it is a submodule, another git repository, or
// left out by Skip.
func (z *freezing) isClosed(path string, s seen) bool {
	r, base := z.view.base.Table.Record(s.node)
	return base && r.Kind() == inode.KindGitlink || z.isNested(path, s) || z.skips(path)
}

// isNested reports whether a directory contains another git repository whose files are not listed.
func (z *freezing) isNested(path string, s seen) bool {
	return s.nested && (z.o.Enter == nil || !z.o.Enter(path))
}

// skips reports whether Skip leaves out the contents of a directory. It calls Skip once for each directory, so that all
// rounds agree.
func (z *freezing) skips(dir string) bool {
	if z.o.Skip == nil {
		return false
	}
	skip, ok := z.skipped[dir]
	if !ok {
		skip = z.o.Skip(dir)
		z.skipped[dir] = skip
	}
	return skip
}
