package upkeep

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/replica"
)

// repackAll joins packs of repositories that have many packs.
//
// Packs that several repositories list stay as they are, so that forks do not copy their base. But if a repository is
// forked all the time, each of its packs is soon listed by a fork, and the list grows for ever. So from a certain
// number on, such packs are joined too. The repository then has its own copy of the small packs; the large ones remain
// shared, because choose leaves them.
func (w *Worker) repackAll(ctx context.Context) error {
	crowded, err := w.o.Records.Repos.Crowded(ctx, w.o.Crowd, batch)
	if err != nil {
		return err
	}
	overfull, err := w.o.Records.Repos.Overfull(ctx, sharedFactor*w.o.Crowd, batch)
	if err != nil {
		return err
	}
	return errors.Join(
		w.each(ctx, "repack", overfull, func(ctx context.Context, id string) error { return w.repack(ctx, id, true) }),
		w.each(ctx, "repack", crowded, func(ctx context.Context, id string) error { return w.repack(ctx, id, false) }),
	)
}

// sharedFactor times Times.Crowd is the number of packs from which on shared packs are joined, too.
const sharedFactor = 4

// repack joins packs of a repository, shared ones only if the parameter shared is set. Pushes continue at the same
// time.
func (w *Worker) repack(ctx context.Context, id string, shared bool) error {
	v, err := w.view(ctx, id)
	if err != nil {
		return err
	}
	defer v.release()
	candidates := v.own
	if shared {
		candidates = v.snap.Packs
	}
	chosen := choose(slices.DeleteFunc(slices.Clone(candidates), isGarbage))
	if len(chosen) < 2 {
		return nil
	}
	var names strings.Builder
	ids := make([]string, len(chosen))
	for i, p := range chosen {
		ids[i] = p.ID
		names.WriteString("pack-" + p.Hash + ".pack\n")
	}
	scratch, err := w.o.Replicas.Scratch()
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	hash, err := w.pack(ctx, v, scratch, names.String(), "--stdin-packs")
	if err != nil {
		return err
	}
	joined, err := w.store(ctx, v, scratch, hash, chosen)
	if err != nil {
		return err
	}
	return w.o.Records.Packs.Replace(ctx, id, ids, []records.Pack{joined})
}

// choose returns the packs to join, so that those that remain form a geometric progression: each has at least twice as
// many objects as all smaller ones together, as after git repack --geometric=2. So every object is copied a logarithmic
// number of times.
func choose(packs []records.Pack) []records.Pack {
	packs = slices.SortedFunc(slices.Values(packs),
		func(a, b records.Pack) int { return cmp.Compare(a.Objects, b.Objects) })
	n, sum, below := 0, int64(0), int64(0)
	for i, p := range packs {
		if i > 0 && p.Objects < 2*below {
			n, sum = i+1, below+p.Objects
		}
		below += p.Objects
	}
	// The joined pack may be more than half as large as the next one, which must then be joined, too.
	for n > 0 && n < len(packs) && packs[n].Objects < 2*sum {
		sum += packs[n].Objects
		n++
	}
	return packs[:n]
}

// isGarbage reports whether a pack has objects that no ref reaches.
func isGarbage(p records.Pack) bool { return slices.Contains(p.Extensions, records.GarbageExtension) }

// view is the state of a repository at one moment, with a replica that has all its objects.
type view struct {
	on     *replica.Replica
	snap   records.Snapshot
	own    []records.Pack // packs that no other repository lists
	format object.Format
}

func (v *view) release() { v.on.Release() }

// pack returns the path of a pack in the replica without its extension.
func (v *view) pack(hash string) string {
	return filepath.Join(v.on.Dir, "objects", "pack", "pack-"+hash)
}

// view returns the current state of a repository. The replica keeps all objects of that state until it is released.
func (w *Worker) view(ctx context.Context, id string) (*view, error) {
	on, snap, err := w.o.Replicas.Snapshot(ctx, id)
	if err != nil {
		return nil, err
	}
	v := &view{on: on, snap: snap}
	var sharers map[string]int
	if v.format, err = object.ParseFormat(snap.Repo.ObjectFormat); err == nil {
		sharers, err = w.o.Records.Packs.Sharers(ctx, id)
	}
	if err != nil {
		on.Release()
		return nil, err
	}
	for _, p := range snap.Packs {
		if sharers[p.ID] == 1 {
			v.own = append(v.own, p)
		}
	}
	return v, nil
}

// git runs git in the replica, and returns its standard output.
func (w *Worker) git(ctx context.Context, v *view, stdin string, args ...string) ([]byte, error) {
	return w.o.Replicas.Git().In(v.on.Dir).Output(ctx, stdin, args...)
}

// pack makes a pack in the directory scratch, and returns its hash. git reads the list of its contents from stdin.
func (w *Worker) pack(ctx context.Context, v *view, scratch, stdin string, args ...string) (string, error) {
	args = append([]string{"-c", "pack.writeReverseIndex=true", "pack-objects", "-q", "--delta-base-offset"}, args...)
	out, err := w.git(ctx, v, stdin, append(args, filepath.Join(scratch, "pack"))...)
	if err != nil {
		return "", err
	}
	hash := strings.TrimSpace(string(out))
	if id, err := object.ParseIDOf(v.format, hash); err != nil || id.String() != hash {
		return "", fmt.Errorf("git pack-objects: unexpected output %.100q", out)
	}
	return hash, nil
}

// store puts a pack into the object store, if it has all objects of the old packs.
func (w *Worker) store(ctx context.Context, v *view, scratch, hash string,
	old []records.Pack) (p records.Pack, err error) {
	made, err := readIndex(filepath.Join(scratch, "pack-"+hash), v.format)
	if err != nil {
		return p, err
	}
	for _, o := range old {
		covered, err := covers(made, v, o)
		if err == nil && !covered {
			err = fmt.Errorf("git pack-objects left out objects of pack %s", o.ID)
		}
		if err != nil {
			return p, err
		}
	}
	return w.o.Replicas.Store(ctx, scratch, hash)
}

// readIndex reads the index of a pack.
func readIndex(base string, format object.Format) (*odb.Index, error) {
	data, err := os.ReadFile(base + ".idx")
	if err != nil {
		return nil, err
	}
	return odb.ParseIndex(data, format)
}
