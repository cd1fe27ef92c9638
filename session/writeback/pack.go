package writeback

import (
	"context"
	"io"
	"maps"
	"slices"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/packs"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/session/writeback/objects"
	"github.com/artifactfs/artifactfs/session/writeback/readable"
)

// packer makes the packs of the objects that a push sends.
type packer struct {
	repo    *session.Repo
	store   objects.Provider
	baseURL string // QueueOptions.BaseURL
	record  *record
	log     *zap.Logger

	// held states that the transcript is not pushed, so that the readable branch must not be made of it either.
	held bool
	// based is the set of the objects of the mounted repository that this queue has added to the container.
	based objects.Set
}

// pack returns a function that writes the selected objects as one pack, or nil if there are none. If the session remote
// uses a container, pack returns a load instead. sent is the set of objects that the session remote is known to have.
func (k *packer) pack(ctx context.Context, push *thin.Push, updates []update, all *objects.Selection,
	sent objects.Set) (pack func(context.Context, io.Writer) error, load thin.Load, err error) {
	switch {
	case push.Thin():
		load, err = k.contained(ctx, push, updates, all, sent)
	case len(all.IDs) > 0:
		pack = packs.Of(k.repo, all.IDs)
	}
	return pack, load, err
}

// contained returns the load of a push to a session remote with a container: the objects of ordinary refs, and the
// objects that are added to the container.
func (k *packer) contained(ctx context.Context, push *thin.Push, updates []update, all *objects.Selection,
	sent objects.Set) (load thin.Load, err error) {
	repo := k.repo
	var tips []object.ID
	for _, u := range updates {
		// Ordinary refs are read without the container, so their objects are sent as ordinary objects.
		if push.Direct(u.Name) && !u.New.IsZero() {
			tips = append(tips, u.New)
		}
	}
	ordinary, err := objects.Select(ctx, repo, tips, sent)
	if err != nil {
		return load, err
	}
	for _, id := range ordinary.IDs {
		t, content, err := repo.Get(id, object.MaxTreeSize)
		if err != nil {
			return load, err
		}
		o, err := session.Outgoing(repo.Format(), t, content)
		if err != nil {
			return load, err
		}
		load.Direct = append(load.Direct, o)
	}
	for _, id := range all.IDs {
		if !ordinary.Has(id) {
			load.Contained = append(load.Contained, id)
		}
	}
	load.Base = thin.Base{URL: k.baseURL, Commits: slices.SortedFunc(maps.Keys(all.BaseCommits), object.ID.Compare)}
	load.Bases, load.Pushed = k.bases(load.Contained)
	if !k.held {
		load.Readable = readable.Maker{Repo: repo, Store: k.store, Log: k.log}.Make
	}
	load.Write = func(ctx context.Context, dir string, ids []object.ID) (map[string][]object.ID, error) {
		return packs.Files(ctx, repo, dir, ids, thin.PackSize)
	}
	load.All = func(ctx context.Context, refs map[string]object.ID) ([]object.ID, bool, error) {
		for _, id := range refs {
			// If another machine has written this ref, its objects may be missing on this host. The container cannot be
			// rewritten without these objects.
			if !repo.Owned(id) && !repo.Remotes(id) {
				return nil, false, nil
			}
		}
		h, err := objects.Select(ctx, repo, slices.Collect(maps.Values(refs)), objects.Set{})
		if err != nil {
			return nil, false, err
		}
		return h.IDs, true, nil
	}
	return load, nil
}

// bases returns the functions Bases and Pushed of a load. ids are the objects that the push adds to the container.
func (k *packer) bases(ids []object.ID) (write func(ctx context.Context, dir string, all bool) error, pushed func()) {
	written := objects.Set{}
	write = func(ctx context.Context, dir string, all bool) error {
		known := k.based
		if all && (k.based == nil || len(k.based) > 0) { // otherwise an earlier push has found that there are none
			known = nil
			local, err := localRefs(k.record.now(), k.repo)
			if err != nil {
				return err
			}
			h, err := objects.Select(ctx, k.repo, slices.Collect(maps.Values(local)), objects.Set{})
			if err != nil {
				return err
			}
			ids = h.IDs
		}
		found, err := objects.WriteBases(ctx, k.repo, k.store, dir, ids, known)
		maps.Copy(written, found)
		return err
	}
	return write, func() {
		if k.based == nil {
			k.based = objects.Set{}
		}
		maps.Copy(k.based, written)
	}
}
