// Package staging compares the index in a checkpoint with a tree, so that the differences can be added to git's index.
package staging

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/git/index"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/treediff"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/worktree"
)

// Against returns the differences of the index x from a tree. read returns the entries of a tree. size returns the size
// of a blob in bytes, or false if the size is not known.
func Against(ctx context.Context, read treediff.Reader, tree object.ID, x *session.Index, f object.Format,
	size func(object.ID) (int64, bool)) (*gitdir.Staged, error) {
	s := &gitdir.Staged{}
	special := map[string]session.IndexEntry{}
	var conflicts []session.IndexEntry
	for _, e := range x.Special {
		if e.Stage == 0 {
			special[e.Path] = e
		} else {
			conflicts = append(conflicts, e)
		}
	}
	// because of their flags, these entries are listed even if mode and id are the same as in the tree
	for path, e := range special {
		if !e.IntentToAdd {
			s.Changes = append(s.Changes, index.Change{Entry: plainEntry(e)})
			continue
		}
		empty, err := EmptyBlob(f)
		if err != nil {
			return nil, err
		}
		s.Changes = append(s.Changes,
			index.Change{Entry: index.Entry{Path: path, Mode: e.Mode, ID: empty.ID, IntentToAdd: true,
				AssumeValid: e.AssumeValid, SkipWorktree: e.SkipWorktree}})
	}
	err := treediff.Trees(ctx, read, tree, x.Tree, func(path string, from, to object.TreeEntry) error {
		if _, isSpecial := special[path]; isSpecial {
			return nil
		}
		c := index.Change{Entry: index.Entry{Path: path, Mode: to.Mode, ID: to.ID}, Gone: to.Mode == 0}
		if to.Mode.IsBlob() {
			if n, ok := size(to.ID); ok {
				c.Entry.Stat.Size = uint32(n)
			}
		}
		s.Changes = append(s.Changes, c)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("compare staged changes: %w", err)
	}
	// Entries with the same path are ordered by stage in the index format.
	slices.SortFunc(conflicts, func(a, b session.IndexEntry) int {
		if n := strings.Compare(a.Path, b.Path); n != 0 {
			return n
		}
		return int(a.Stage) - int(b.Stage)
	})
	for _, e := range conflicts {
		// A path with conflicts has no entry with stage 0.
		s.Changes = slices.DeleteFunc(s.Changes, func(c index.Change) bool { return c.Entry.Path == e.Path })
		s.Others = append(s.Others, plainEntry(e))
	}
	s.Trees = treesOf(ctx, read, x.Tree)
	return s, nil
}

// EmptyBlob returns the blob without contents. The index names this blob for a file that was added with git add -N, and
// git expects it in its object store.
func EmptyBlob(f object.Format) (odb.Outgoing, error) { return session.Outgoing(f, object.Blob, nil) }

// plainEntry converts an index entry of package session into one of package index.
func plainEntry(e session.IndexEntry) index.Entry {
	return index.Entry{Path: e.Path, Mode: e.Mode, ID: e.ID, Stage: e.Stage, AssumeValid: e.AssumeValid,
		SkipWorktree: e.SkipWorktree}
}

// treesOf returns a function that returns the tree of a directory below root, or false if the directory does not exist
// or cannot be read. The function caches the trees that it has read, and must not be called concurrently.
func treesOf(ctx context.Context, read treediff.Reader, root object.ID) func(dir string) (object.ID, bool) {
	trees := map[string]object.ID{"": root}
	var find func(dir string) object.ID
	find = func(dir string) object.ID {
		// The recursion ends at the root, which the map contains from the beginning.
		if tree, ok := trees[dir]; ok {
			return tree
		}
		parent := worktree.ParentOf(dir)
		above := find(parent)
		trees[dir] = object.ID{}
		if above.IsZero() {
			return above
		}
		entries, err := read(ctx, above)
		if err != nil {
			return object.ID{}
		}
		for _, e := range entries {
			if e.Mode == object.ModeDir {
				trees[path.Join(parent, e.Name)] = e.ID
			}
		}
		return trees[dir]
	}
	return func(dir string) (object.ID, bool) {
		tree := find(dir)
		return tree, !tree.IsZero()
	}
}

// EntriesOf returns a function that returns the entry of a path in the tree root, or the zero entry if the path is not
// in the tree or is a directory.
func EntriesOf(ctx context.Context, read treediff.Reader, root object.ID) func(at string) (object.TreeEntry, error) {
	tree := treesOf(ctx, read, root)
	return func(at string) (object.TreeEntry, error) {
		dir := worktree.ParentOf(at)
		id, ok := tree(dir)
		if !ok {
			return object.TreeEntry{}, nil
		}
		entries, err := read(ctx, id)
		name := at
		if dir != "" {
			name = at[len(dir)+1:]
		}
		i := slices.IndexFunc(entries, func(e object.TreeEntry) bool { return e.Name == name })
		if i < 0 || err != nil || entries[i].Mode == object.ModeDir {
			return object.TreeEntry{}, err
		}
		return entries[i], nil
	}
}
