package writeback

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/internal/gitcmd"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/transport"
)

// Traffic is what a session has moved over the network to be on its session remote, in bytes, over all of its mounts here.
type Traffic struct {
	Sent, Received int64 // to and from the session remote
	Seeded         int64 // received from the mounted remote for a session remote that lacks its history
}

// traffic includes what this Queue has moved.
func (q *Queue) traffic() Traffic {
	t, far := q.before, q.o.Remote.Stats()
	t.Sent, t.Received = t.Sent+far.BytesOut, t.Received+far.BytesIn
	if q.o.Origin != nil {
		t.Seeded += q.o.Origin.Stats().BytesIn
	}
	return t
}

// keepTraffic writes down what was moved since the last push. The caller has the turn.
func (q *Queue) keepTraffic() {
	if q.o.Remote == nil {
		return
	}
	q.mu.Lock()
	l := q.ledger.clone()
	l.traffic = q.traffic()
	changed := l.traffic != q.ledger.traffic
	q.ledger = l
	q.mu.Unlock()
	if !changed {
		return
	}
	if err := l.write(q.o.Repo); err != nil {
		q.log.Warn("note what was moved", zap.String("session", q.o.Session), zap.Error(err))
	}
}

// choose decides, once, how the session remote comes to the base: without it, if it has no history at all and other machines
// can read the base where this one does. Else the first push with ground finds out whether it has that.
func (q *Queue) choose(ctx context.Context, push *thin.Push, l *ledger) error {
	if push.Thin() {
		l.mode = ModeThin
		return nil
	}
	if l.mode != ModeUnknown || q.o.Base != ModeThin && (q.o.Base != ModeUnknown || q.o.BaseURL == "") {
		return nil
	}
	if q.o.Base == ModeUnknown {
		empty, err := q.o.Remote.IsEmpty(ctx)
		if err != nil || !empty {
			return err
		}
	} else if slices.ContainsFunc(push.Refs, func(ref transport.Ref) bool {
		return !push.Direct(ref.Name) && isSent(ref.Name, q.layout(l)) && !isUsers(ref.Name)
	}) {
		return nil // the session is there already, in another mode
	}
	l.mode = ModeThin
	return push.Begin()
}

// contained makes what a push to a container brings, of what all of its updates bring.
func (q *Queue) contained(ctx context.Context, push *thin.Push, updates []update, all *haul) (load thin.Load, err error) {
	repo := q.o.Repo
	var tips []object.ID
	for _, u := range updates {
		if push.Direct(u.Name) && !u.New.IsZero() {
			tips = append(tips, u.New)
		}
	}
	ordinary, err := newHaul(ctx, repo, tips, q.sent)
	if err != nil {
		return load, err
	}
	for _, id := range ordinary.objects {
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
	for _, id := range all.objects {
		if !ordinary.seen[id] {
			load.Contained = append(load.Contained, id)
		}
	}
	load.Base = thin.Base{URL: q.o.BaseURL, Commits: slices.SortedFunc(maps.Keys(all.ground), object.ID.Compare)}
	load.Write = func(ctx context.Context, dir string, ids []object.ID) error { return writePacks(ctx, repo, dir, ids) }
	load.All = func(ctx context.Context, refs map[string]object.ID) ([]object.ID, bool, error) {
		for _, id := range refs {
			if !repo.Owned(id) && !repo.Remotes(id) { // what another machine has put there stays as it is
				return nil, false, nil
			}
		}
		h, err := newHaul(ctx, repo, slices.Collect(maps.Values(refs)), idSet{})
		if err != nil {
			return nil, false, err
		}
		return h.objects, true, nil
	}
	return load, nil
}

// writePacks has git write packs of owned objects into a directory. What was removed from the Repo meanwhile is named by
// nothing any more.
func writePacks(ctx context.Context, repo *session.Repo, dir string, ids []object.ID) error {
	var in bytes.Buffer
	for _, id := range ids {
		if repo.Owned(id) {
			in.WriteString(id.String() + "\n")
		}
	}
	cmd := gitcmd.Isolated(ctx, "--git-dir="+repo.Dir(), "-c", "core.commitGraph=false",
		"pack-objects", "-q", "--max-pack-size="+strconv.Itoa(thin.PackSize), filepath.Join(dir, "pack"))
	cmd.Stdin = &in
	if err := gitcmd.Run(cmd); err != nil {
		return fmt.Errorf("make packs: %w", err)
	}
	return nil
}
