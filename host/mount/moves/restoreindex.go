package moves

import (
	"context"
	"fmt"
	"io"

	"github.com/artifactfs/artifactfs/git/gitdir"
	"github.com/artifactfs/artifactfs/git/index"
	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/host/checkout"
	"github.com/artifactfs/artifactfs/host/mount/staging"
	"github.com/artifactfs/artifactfs/host/session/resume"
	"github.com/artifactfs/artifactfs/session"
)

// stagedFunc returns the method stagedChanges if staged is true, and nil otherwise.
func (w *restoring) stagedFunc(staged bool) checkout.StagedOf {
	if !staged {
		return nil
	}
	return w.stagedChanges
}

// stagedChanges returns the differences, for the paths that are restored, of the index in the target of the restore
// from the index in the checkpoint p. It copies the blobs of the changed entries to the git directory, so that git can
// read them.
func (w *restoring) stagedChanges(ctx context.Context, p session.Checkpoint) (*gitdir.Staged, error) {
	now, err := w.repo.State(p)
	if err != nil {
		return nil, err
	}
	then, err := w.stateOf(ctx, w.Target)
	if err != nil {
		return nil, err
	}
	noSize := func(object.ID) (int64, bool) { return 0, false }
	s,
		err := staging.Against(ctx, w.m.Contents.View.Tree, now.Index.Tree, &then.Index, w.m.Mount.Store.Format(),
		noSize)
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
	entry := staging.EntriesOf(ctx, w.m.Contents.View.Tree, then.Index.Tree)
	// These entries have flags in the current index but not in the target's index. They are replaced by the entries of the
	// target's tree, which have no flags.
	for _, e := range now.Index.Special {
		if listed[e.Path] || !w.Wants(e.Path) {
			continue
		}
		listed[e.Path] = true
		was, err := entry(e.Path)
		if err != nil {
			return nil, err
		}
		x.Changes = append(x.Changes, index.Change{Entry: index.Entry{Path: e.Path, Mode: was.Mode, ID: was.ID},
			Gone: was.Mode == 0})
	}
	return x, w.keepForGit(ctx, x)
}

// stateOf returns the checkpoint state of p. It fetches small files of the state that are missing on this host from the
// session remote.
func (w *restoring) stateOf(ctx context.Context, p session.Checkpoint) (session.State, error) {
	blobs, err := resume.StateBlobs(w.repo, p)
	if err == nil {
		err = w.m.Mount.Owned.Provide(ctx, blobs, nil)
	}
	if err != nil {
		return session.State{}, err
	}
	return w.repo.State(p)
}

// keepForGit copies blobs to the object store of the mount's git directory: those that x names and the session
// repository owns, and the empty blob for files that were added with git add -N.
func (w *restoring) keepForGit(ctx context.Context, x *gitdir.Staged) error {
	var out []odb.Outgoing
	add := func(e index.Entry) {
		if e.IntentToAdd {
			if empty, err := staging.EmptyBlob(e.ID.Format()); err == nil {
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
	if err := w.m.Contents.Objects.Local.Keep(ctx, out); err != nil {
		return fmt.Errorf("store staged contents: %w", err)
	}
	return nil
}
