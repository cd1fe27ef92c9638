package daemon

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/artifactfs/artifactfs/checkout"
	"github.com/artifactfs/artifactfs/gitdir"
	"github.com/artifactfs/artifactfs/internal/index"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/resume"
	"github.com/artifactfs/artifactfs/session/treediff"
)

// stagedIf returns stagedThen if the index is to be restored, otherwise nil.
func (w *restoring) stagedIf(staged bool) checkout.StagedOf {
	if !staged {
		return nil
	}
	return w.stagedThen
}

// stagedThen compares the index at the target with the index at checkpoint p, for the paths of the restore. It copies
// the blobs to where git finds them.
func (w *restoring) stagedThen(ctx context.Context, p session.Checkpoint) (*gitdir.Staged, error) {
	now, err := w.repo.State(p)
	if err != nil {
		return nil, err
	}
	then, err := w.stateOf(ctx, w.Target)
	if err != nil {
		return nil, err
	}
	noSize := func(object.ID) (int64, bool) { return 0, false }
	s, err := stagedAgainst(ctx, w.m.view.Tree, now.Index.Tree, &then.Index, w.m.store.Format(), noSize)
	if err != nil {
		return nil, err
	}
	x := &gitdir.Staged{}
	listed := map[string]bool{}
	for _, c := range s.Changes {
		listed[c.Entry.Path] = true
		if w.Wants(c.Entry.Path) {
			x.Changes = append(x.Changes, c)
		}
	}
	for _, e := range s.Others {
		listed[e.Path] = true
		if w.Wants(e.Path) {
			x.Others = append(x.Others, e)
		}
	}
	entry := entriesOf(ctx, w.m.view.Tree, then.Index.Tree)
	// Entries with flags that the target's index does not have, and that therefore return to the entry of its tree.
	for _, e := range now.Index.Special {
		if listed[e.Path] || !w.Wants(e.Path) {
			continue
		}
		listed[e.Path] = true
		was, err := entry(e.Path)
		if err != nil {
			return nil, err
		}
		x.Changes = append(x.Changes, index.Change{Entry: index.Entry{Path: e.Path, Mode: was.Mode, ID: was.ID}, Gone: was.Mode == 0})
	}
	return x, w.keepForGit(ctx, x)
}

// stateOf reads the checkpoint state of p. It fetches small files of the state that are missing from the session remote.
func (w *restoring) stateOf(ctx context.Context, p session.Checkpoint) (session.State, error) {
	blobs, err := resume.StateBlobs(w.repo, p)
	if err == nil {
		err = w.m.owned.Provide(ctx, blobs, nil)
	}
	if err != nil {
		return session.State{}, err
	}
	return w.repo.State(p)
}

// keepForGit copies the session's blobs that the index names into the object store of the mount's git directory.
func (w *restoring) keepForGit(ctx context.Context, x *gitdir.Staged) error {
	var out []odb.Outgoing
	add := func(e index.Entry) {
		if e.IntentToAdd {
			if empty, err := emptyBlob(e.ID.Format()); err == nil {
				out = append(out, empty)
			}
			return
		}
		if !e.Mode.IsBlob() || !w.repo.Owned(e.ID) {
			return
		}
		if _, size, err := w.repo.Size(e.ID); err == nil {
			out = append(out, odb.Outgoing{ID: e.ID, Type: object.Blob, Size: size,
				Open: func() (io.ReadCloser, error) { return w.repo.Open(e.ID) }})
		}
	}
	for _, c := range x.Changes {
		if !c.Gone {
			add(c.Entry)
		}
	}
	for _, e := range x.Others {
		add(e)
	}
	if err := w.m.local.Keep(ctx, out); err != nil {
		return fmt.Errorf("keep what was staged: %w", err)
	}
	return nil
}

// entriesOf returns a function that finds the entry of a path in a tree. It returns a zero entry if the tree has no
// entry at the path, or has a directory.
func entriesOf(ctx context.Context, read treediff.Reader, root object.ID) func(at string) (object.TreeEntry, error) {
	tree := treesOf(ctx, read, root)
	return func(at string) (object.TreeEntry, error) {
		dir := parentOf(at)
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
