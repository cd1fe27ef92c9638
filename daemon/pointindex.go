package daemon

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/artifactfs/artifactfs/gitdir"
	"github.com/artifactfs/artifactfs/internal/index"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/resume"
	"github.com/artifactfs/artifactfs/worktree"
)

// restoredIndex is what was staged at a point, as far as that is brought back.
type restoredIndex struct {
	changes []index.Change
	others  []index.Entry // stages of conflicts
}

// stagedThen compares what was staged at the point with what is now, and sees to it that git finds what it names.
func (w *restoring) stagedThen(ctx context.Context, git *gitdir.Dir) (*restoredIndex, error) {
	now, err := w.repo.State(w.now)
	if err != nil {
		return nil, err
	}
	then, err := w.stateOf(ctx, w.target)
	if err != nil {
		return nil, err
	}
	noSize := func(object.ID) (int64, bool) { return 0, false }
	s, err := stagedAgainst(ctx, w.m.view.Tree, now.Index.Tree, &then.Index, w.m.store.Format(), noSize)
	if err != nil {
		return nil, err
	}
	x := &restoredIndex{}
	told := map[string]bool{}
	for _, c := range s.Changes {
		told[c.Entry.Path] = true
		if w.wants(c.Entry.Path) {
			x.changes = append(x.changes, c)
		}
	}
	for _, e := range s.Others {
		told[e.Path] = true
		if w.wants(e.Path) {
			x.others = append(x.others, e)
		}
	}
	entry := entriesOf(ctx, w.m.view.Tree, then.Index.Tree)
	for _, e := range now.Index.Special { // which is no more than what the tree has
		if told[e.Path] || !w.wants(e.Path) {
			continue
		}
		told[e.Path] = true
		was, err := entry(e.Path)
		if err != nil {
			return nil, err
		}
		x.changes = append(x.changes, index.Change{Entry: index.Entry{Path: e.Path, Mode: was.Mode, ID: was.ID}, Gone: was.Mode == 0})
	}
	return x, w.keepForGit(ctx, x)
}

// stateOf reads the State of a point, of which the small files may be on the session remote alone.
func (w *restoring) stateOf(ctx context.Context, p session.Point) (session.State, error) {
	blobs, err := resume.StateBlobs(w.repo, p)
	if err == nil {
		err = w.m.owned.Provide(ctx, blobs, nil)
	}
	if err != nil {
		return session.State{}, err
	}
	return w.repo.State(p)
}

// keepForGit has the blobs that the index names where the mount's git finds them.
func (w *restoring) keepForGit(ctx context.Context, x *restoredIndex) error {
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
			out = append(out, odb.Outgoing{ID: e.ID, Type: object.Blob, Size: size, Open: func() (io.ReadCloser, error) { return w.repo.Open(e.ID) }})
		}
	}
	for _, c := range x.changes {
		if !c.Gone {
			add(c.Entry)
		}
	}
	for _, e := range x.others {
		add(e)
	}
	if err := w.m.local.Keep(ctx, out); err != nil {
		return fmt.Errorf("keep what was staged: %w", err)
	}
	return nil
}

// renew makes the index one of the files as they are now: those that it has just so need not be looked at.
func (r *restoredIndex) renew(x *index.Index, grafts []worktree.Graft, done worktree.GraftResult, device uint32) {
	var changes []index.Change
	if r != nil {
		changes = r.changes
	}
	x.Apply(changes)
	same := map[string]worktree.Attr{}
	blobs := map[string]worktree.Graft{}
	for i, g := range grafts {
		if g.Mode != 0 && !done.Done[i].Kept {
			same[g.Path], blobs[g.Path] = done.Done[i].Attr, g
		}
	}
	spared := map[string]bool{}
	for i := range x.Entries {
		e := &x.Entries[i]
		g, ok := blobs[e.Path]
		if !ok || e.Stage != 0 || e.IntentToAdd || e.Mode != g.Mode || e.ID != g.ID {
			continue
		}
		a := same[e.Path]
		e.Valid = x.Token != "" && !done.Since.All
		e.Stat = index.Stat{Ctime: a.Ctime, Mtime: a.Mtime, Dev: device, Ino: uint32(a.Node), UID: a.UID, GID: a.GID}
		spared[e.Path] = e.Valid
	}
	if r != nil && len(r.others) > 0 {
		(&gitdir.Staged{Others: r.others}).Apply(x)
	}
	if !done.Since.All {
		x.Heard(done.Since.Token, done.Since.Paths, func(path string) bool { return spared[path] })
	}
}

// entriesOf finds what a tree has at a path.
func entriesOf(ctx context.Context, read treeReader, root object.ID) func(at string) (object.TreeEntry, error) {
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
