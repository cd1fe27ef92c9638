package treediff

import (
	"context"
	"errors"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/session"
)

// mostRenames is the maximum number of files added by one side whose contents are fetched for git's rename detection. To
// detect renames, git compares these files with the files that the same side removed and the other side changed.
const mostRenames = 200

// ContentsToMerge returns the IDs of the contents that git merge-tree reads when it merges the trees ours and theirs: the contents
// of paths that both sides changed since the tree base, and the contents that git compares to detect renames. The result complete
// is false if a side has added more than mostRenames files that may be renamed ones; ids then lacks contents of such files.
func ContentsToMerge(ctx context.Context, read Reader, base, ours, theirs object.ID) (ids []object.ID, complete bool, err error) {
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
	for i := range changes {
		renamed := false
		for path, c := range changes[i] {
			if o, both := changes[1-i][path]; both && (c.to != o.to) {
				add(c.from, c.to, o.to)
				// The other side changed a path that this side removed, so this side may have renamed it.
				renamed = renamed || c.to.Mode == 0
			}
		}
		added := 0
		for _, c := range changes[i] {
			// Git compares added files for renames only if this side has removed a file that the other side changed.
			if !renamed || c.from.Mode != 0 {
				continue
			}
			if added == mostRenames {
				complete = false
				break
			}
			add(c.to)
			added++
		}
	}
	return ids, complete, nil
}

// CommitsToMerge returns the objects that git merge-tree needs to merge the trees ours and theirs. Git finds the base of a merge
// through commits, so the objects are a root commit with the tree base, two commits with the trees ours and theirs and the root
// commit as parent, and the empty tree. The results us and them are the IDs of the commits with the trees ours and theirs.
func CommitsToMerge(f object.Format, base, ours, theirs object.ID) (objects []odb.Outgoing, us, them object.ID, err error) {
	commit := func(tree, parent object.ID) (object.ID, error) {
		id, err := object.ParseID(Name(f, tree))
		if err != nil {
			return id, err
		}
		// The time is fixed, so that the same trees always result in the same commits.
		c, err := session.NewCommit(f, id, parent, time.Unix(0, 0), "merge")
		objects = append(objects, c)
		return c.ID, err
	}
	root, err := commit(base, object.ID{})
	if err != nil {
		return nil, us, them, err
	}
	us, err1 := commit(ours, root)
	them, err2 := commit(theirs, root)
	empty, err3 := session.Outgoing(f, object.Tree, nil)
	return append(objects, empty), us, them, errors.Join(err1, err2, err3)
}

// Name returns the ID of a tree in hexadecimal for git's command line. For a zero ID it returns the ID of the empty tree.
func Name(f object.Format, tree object.ID) string {
	if tree.IsZero() {
		empty, _ := object.Hash(f, object.Tree, nil)
		return empty.String()
	}
	return tree.String()
}
