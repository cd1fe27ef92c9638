package writeback

import (
	"context"
	"maps"
	"slices"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/packs"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/session/writeback/objects"
	"github.com/artifactfs/artifactfs/session/writeback/readable"
)

// Traffic counts the bytes that all mounts of a session on this host have moved over the network for its session remote.
type Traffic struct {
	Sent, Received int64 // bytes sent to the session remote, and bytes received from it
	Seeded         int64 // bytes received from the mounted remote, for a session remote that lacks the history
}

// choose decides in the first round whether the session remote uses ModeThin, and records the decision in l. It chooses ModeThin if
// the session remote is empty and other machines can read the mounted remote at BaseURL, or if the options require ModeThin. If both
// are the same repository, which is a new one then, there is no base that it could lack, and it gets ordinary refs that all clients read.
// Otherwise the method seeder.lacks chooses between ModeShared and ModeSeed during the first push.
func (q *Queue) choose(ctx context.Context, push *thin.Push, l *ledger) error {
	if push.Thin() {
		l.mode = ModeThin
		return nil
	}
	if l.mode != ModeUnknown || q.o.Base != ModeThin && (q.o.Base != ModeUnknown || q.o.BaseURL == "") {
		return nil
	}
	if q.o.Base == ModeUnknown {
		if q.o.Remote.URL() == q.o.BaseURL {
			return nil
		}
		empty := push.Empty // then no request is needed
		if !empty {
			var err error
			if empty, err = q.o.Remote.IsEmpty(ctx); err != nil || !empty {
				return err
			}
		}
	} else if slices.ContainsFunc(push.Refs, func(ref transport.Ref) bool {
		return !push.Direct(ref.Name) && isSent(ref.Name, l.layout()) && !session.IsUsers(ref.Name)
	}) {
		return nil // the session is already on the session remote, in another mode
	}
	l.mode = ModeThin
	return push.UseContainer()
}

// contained returns the load of a push to a thin session remote: the objects of refs that are pushed directly, and the objects
// that go into a container, the single ref that stores the other refs with their packs.
func (q *Queue) contained(ctx context.Context, push *thin.Push, updates []update, all *objects.Selection) (load thin.Load, err error) {
	repo := q.o.Repo
	var tips []object.ID
	for _, u := range updates {
		// Ordinary refs are read without the container, so their objects are sent as ordinary objects.
		if push.Direct(u.Name) && !u.New.IsZero() {
			tips = append(tips, u.New)
		}
	}
	ordinary, err := objects.Select(ctx, repo, tips, q.sent)
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
	load.Base = thin.Base{URL: q.o.BaseURL, Commits: slices.SortedFunc(maps.Keys(all.BaseCommits), object.ID.Compare)}
	load.Bases, load.Pushed = q.bases(load.Contained)
	load.Readable = readable.Maker{Repo: repo, Store: q.o.Store, Log: q.log}.Make
	load.Write = func(ctx context.Context, dir string, ids []object.ID) (map[string][]object.ID, error) {
		return packs.Files(ctx, repo, dir, ids, thin.PackSize)
	}
	load.All = func(ctx context.Context, refs map[string]object.ID) ([]object.ID, bool, error) {
		for _, id := range refs {
			// If another machine has written this ref, its objects may be missing on this host. The container cannot be rewritten without
			// these objects.
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

// bases returns the function Bases of a load, and a function that records what it has written. The ids are those of the objects that the
// push adds to the container.
func (q *Queue) bases(ids []object.ID) (write func(ctx context.Context, dir string, all bool) error, pushed func()) {
	written := objects.Set{}
	write = func(ctx context.Context, dir string, all bool) error {
		known := q.based
		if all && (q.based == nil || len(q.based) > 0) { // else an earlier push has found that the session has none
			known = nil
			local, err := q.local(q.record.now())
			if err != nil {
				return err
			}
			h, err := objects.Select(ctx, q.o.Repo, slices.Collect(maps.Values(local)), objects.Set{})
			if err != nil {
				return err
			}
			ids = h.IDs
		}
		found, err := objects.WriteBases(ctx, q.o.Repo, q.o.Store, dir, ids, known)
		maps.Copy(written, found)
		return err
	}
	return write, func() {
		if q.based == nil {
			q.based = objects.Set{}
		}
		maps.Copy(q.based, written)
	}
}
