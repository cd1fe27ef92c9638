package treediff

import (
	"context"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
)

// mostRenames is the maximum number of files added by one side whose contents are fetched for git's rename detection.
// To detect renames, git compares these files with the files that the same side removed and the other side changed.
const mostRenames = 200

// ContentsToMerge returns the IDs of the contents that git merge-tree reads when it merges the trees ours and theirs:
// the contents of paths that both sides changed since the tree base, the contents that git compares to detect renames,
// and the .gitattributes files of ours above these paths. The result complete is false if a side has added more than
// mostRenames files that may be renamed ones; ids then lacks contents of such files.
func ContentsToMerge(ctx context.Context, read Reader,
	base, ours, theirs object.ID) (ids []object.ID, complete bool, err error) {
	type side struct{ from, to object.TreeEntry }
	changes := [2]map[string]side{{}, {}}
	for i, tree := range []object.ID{ours, theirs} {
		err := Trees(ctx, read, base, tree, func(path string, from, to object.TreeEntry) error {
			changes[i][path] = side{from, to}
			return nil
		})
		if err != nil {
			return nil, false, err
		}
	}
	seen := map[object.ID]bool{}
	add := func(entries ...object.TreeEntry) {
		for _, e := range entries {
			if e.Mode.IsBlob() && !seen[e.ID] {
				seen[e.ID] = true
				ids = append(ids, e.ID)
			}
		}
	}
	complete = true
	dirs := map[string]bool{} // those above the added contents, with a slash at the end
	above := func(path string) {
		for at := len(path); at >= 0; {
			at = strings.LastIndexByte(path[:at], '/')
			dirs[path[:at+1]] = true
		}
	}
	for i := range changes {
		renamed := false
		for path, c := range changes[i] {
			if o, both := changes[1-i][path]; both && (c.to != o.to) {
				add(c.from, c.to, o.to)
				above(path)
				// The other side changed a path that this side removed, so this side may have renamed it.
				renamed = renamed || c.to.Mode == 0
			}
		}
		added := 0
		for path, c := range changes[i] {
			// Git compares added files for renames only if this side has removed a file that the other side changed.
			if !renamed || c.from.Mode != 0 {
				continue
			}
			if added == mostRenames {
				complete = false
				break
			}
			add(c.to)
			above(path)
			added++
		}
	}
	for dir := range dirs {
		if ours.IsZero() {
			break
		}
		e, err := EntryAt(ctx, read, ours, dir+".gitattributes")
		if err != nil {
			return nil, false, err
		}
		add(e)
	}
	return ids, complete, nil
}

// Name returns the ID of a tree in hexadecimal for git's command line. For a zero ID it returns the ID of the empty
// tree.
func Name(f object.Format, tree object.ID) string {
	if tree.IsZero() {
		return object.EmptyTree(f).String()
	}
	return tree.String()
}
