package index

import (
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
)

// Switch changes the index for a checkout that has already written the changed files. Unlike Apply, it keeps those
// parts of the untracked cache that remain valid: a checkout does not create untracked files, so a directory that had
// none still has none. However, changed ignore rules may turn ignored files into untracked ones.
//
// The function other reports whether a directory contains a file that is not tracked, be it ignored or not. Changed
// ignore files matter only for such a directory. If read is set, git may read changed ignore files, so Switch records
// the ids of these files; otherwise it records the files as missing.
func (x *Index) Switch(changes []Change, other func(dir string) bool, read bool) {
	// Apply would invalidate the directories of all changed paths in the untracked cache.
	known := x.Untracked
	x.Untracked = nil
	x.Apply(changes)
	x.Untracked = known
	if known == nil || known.Root == nil {
		return
	}
	// A changed ignore file applies to its directory and to all directories below it, but only to files that are not
	// tracked.
	for _, c := range changes {
		d := known.switched(c.Entry.Path)
		switch dir, name := split(c.Entry.Path); {
		case d == nil || name != known.PerDirectory:
		case other(dir):
			d.forget()
		case read && !c.Gone && c.Entry.Mode != object.ModeSymlink && !d.Ignore.IsZero():
			d.Ignore = c.Entry.ID
		default:
			d.Ignore = object.ID{} // record the file as missing; git reads it when it searches the directory
		}
	}
	for _, c := range changes {
		if c.Gone {
			x.prune(c.Entry.Path)
		}
	}
}

// switched returns the directory of path, or nil if the cache does not contain this directory. If this directory or a
// directory above it contains untracked files, switched invalidates all these directories: git lists a directory
// without tracked files as one name, and the change may affect which directories are listed in this way.
func (u *Untracked) switched(path string) *Directory {
	d, rest := u.Root, path
	chain := []*Directory{d}
	for {
		name, below, more := strings.Cut(rest, "/")
		if !more {
			break
		}
		i := slices.IndexFunc(d.Sub, func(s *Directory) bool { return s.Name == name })
		if i < 0 {
			d = nil
			break
		}
		d, rest = d.Sub[i], below
		chain = append(chain, d)
	}
	if slices.ContainsFunc(chain, func(d *Directory) bool { return len(d.Files) > 0 }) {
		for _, d := range chain {
			d.Valid, d.Files = false, nil
		}
	}
	return d
}

// split splits a path into its directory ("" for the root) and its name.
func split(path string) (dir, name string) {
	i := strings.LastIndexByte(path, '/')
	return path[:max(i, 0)], path[i+1:]
}

// forget invalidates a directory and all directories below it, so that git searches them again.
func (d *Directory) forget() {
	d.Valid, d.Files = false, nil
	for _, s := range d.Sub {
		s.forget()
	}
}

// prune removes a directory from the untracked cache if the index no longer contains an entry below it. It checks the
// directories that contain path, beginning below the root, and removes the first such directory together with all
// directories below it.
func (x *Index) prune(path string) {
	d := x.Untracked.Root
	for at := 0; ; {
		i := strings.IndexByte(path[at:], '/')
		if i < 0 {
			return
		}
		name, prefix := path[at:at+i], path[:at+i+1]
		sub := slices.IndexFunc(d.Sub, func(s *Directory) bool { return s.Name == name })
		if sub < 0 {
			return
		}
		// The entries are sorted, so the entries of a directory are adjacent.
		first, _ := slices.BinarySearchFunc(x.Entries, prefix,
			func(e Entry, prefix string) int { return strings.Compare(e.Path, prefix) })
		if first == len(x.Entries) || !strings.HasPrefix(x.Entries[first].Path, prefix) {
			d.Sub = slices.Delete(d.Sub, sub, sub+1)
			return
		}
		d, at = d.Sub[sub], at+i+1
	}
}

// ApplyMonitor applies an answer of the file system monitor to the index. The list paths contains the paths that may
// have changed since the previous token; a path that ends with a slash stands for everything below it. ApplyMonitor
// records the new token. The function spare returns true for a path that has not changed although the answer contains
// it.
func (x *Index) ApplyMonitor(token string, paths []string, spare func(path string) bool) {
	if x.Token == "" {
		return
	}
	x.Token = token
	for _, p := range paths {
		dir, isDir := strings.CutSuffix(p, "/")
		if !isDir && spare(p) {
			continue
		}
		x.Untracked.invalidate(dir)
		first, _ := slices.BinarySearchFunc(x.Entries, dir,
			func(e Entry, path string) int { return strings.Compare(e.Path, path) })
		// Paths such as "dir-x" and "dir.x" also begin with "dir", and are sorted between "dir" and "dir/x".
		for i := first; i < len(x.Entries) && strings.HasPrefix(x.Entries[i].Path, dir); i++ {
			e := &x.Entries[i]
			if (e.Path == dir || isDir && strings.HasPrefix(e.Path, p)) && !spare(e.Path) {
				e.Valid = false
			}
		}
	}
}
