package objects

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/treediff"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/packs"
)

// Limits of the objects of the mounted repository that one push adds to a container.
const (
	maxBaseTrees  = 2000     // number of trees
	maxBaseBlob   = 1 << 20  // size in bytes of the old version of a changed file
	maxBaseBlobs  = 8 << 20  // size in bytes of the old versions of all changed files, which are sent as deltas
	maxWholeBlobs = 16 << 10 // size in bytes of all removed and moved files, which are not sent as deltas
	maxBaseTips   = 16       // number of commits whose objects are bases of deltas
)

// baseObjects finds the objects of the mounted repository that are needed to show the changes of a session: the base
// commits, their trees on the paths of changed files, and the old contents of these files.
type baseObjects struct {
	repo  *session.Repo
	known Set                  // objects that the container already has
	paths map[object.ID]string // found commits and trees, with their paths
	trees int                  // number of found trees
	// changed and whole contain the found blobs with their paths: changed those of files that have other contents now,
	// whole those of removed and moved files.
	changed, whole map[object.ID]string
	tips           []object.ID // commits of the session whose objects are bases of deltas
}

// WriteBases writes a pack of objects of the mounted repository into the directory dir: those with which readers
// compare the commits among ids. It leaves out objects that are not on this host or are in the set known, and writes no
// file if none remain. It returns the ids of the objects in the pack. store may be nil.
func WriteBases(ctx context.Context, repo *session.Repo, store Provider, dir string, ids []object.ID,
	known Set) (Set, error) {
	b := &baseObjects{repo: repo, known: known, paths: map[object.ID]string{}, changed: map[object.ID]string{},
		whole: map[object.ID]string{}}
	if err := b.add(ctx, ids); err != nil {
		return nil, err
	}
	if err := b.contents(ctx, store, b.changed, maxBaseBlob, maxBaseBlobs); err != nil {
		return nil, err
	}
	if err := b.contents(ctx, store, b.whole, maxWholeBlobs, maxWholeBlobs); err != nil {
		return nil, err
	}
	written := Set{}
	for id := range b.paths {
		written[id] = true
	}
	return written, b.write(ctx, dir)
}

// add finds the objects with which the owned commits in ids are compared. A checkpoint is compared with the previous
// checkpoint and with the base commit of the session, any other commit with its first parent.
func (b *baseObjects) add(ctx context.Context, ids []object.ID) error {
	states := Set{}
	var checkpoints []session.Checkpoint
	var commits []object.CommitInfo
	var others []object.ID
	for _, id := range ids {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if t, _, err := b.repo.Size(id); err != nil || t != object.Commit {
			continue
		}
		_, content, err := b.repo.Get(id, object.MaxCommitSize)
		if err != nil {
			continue
		}
		info, err := object.ParseCommit(b.repo.Format(), content)
		if err != nil {
			continue
		}
		if p, err := session.ParseCheckpoint(b.repo.Format(), id, content); err == nil {
			states[p.State] = true
			checkpoints = append(checkpoints, p)
			b.compare(b.tree(p.Base), p.Tree)
			if len(info.Parents) > 0 && info.Parents[0] != p.State {
				b.compare(b.tree(info.Parents[0]), p.Tree)
			}
			continue
		}
		commits, others = append(commits, info), append(others, id)
	}
	slices.SortFunc(checkpoints, func(x, y session.Checkpoint) int { return cmp.Compare(y.ID, x.ID) })
	for _, p := range checkpoints[:min(len(checkpoints), maxBaseTips/2)] {
		b.tips = append(b.tips, p.Commit)
	}
	for i, info := range commits {
		if states[others[i]] || len(info.Parents) == 0 {
			continue
		}
		b.compare(b.tree(info.Parents[0]), info.Tree)
		if len(b.tips) < maxBaseTips {
			b.tips = append(b.tips, others[i])
		}
	}
	return nil
}

// tree returns the tree of a commit, or the zero id if the commit is not on this host. It adds the commit to the found
// objects if it belongs to the mounted repository.
func (b *baseObjects) tree(commit object.ID) object.ID {
	if commit.IsZero() {
		return object.ID{}
	}
	info, err := b.repo.Commit(commit)
	if err != nil {
		return object.ID{}
	}
	if !b.known[commit] && !b.repo.Owned(commit) {
		b.paths[commit] = ""
	}
	return info.Tree
}

// compare adds the objects of the mounted repository that a comparison of two trees reads. A tree that is not on this
// host has no entries.
func (b *baseObjects) compare(from, to object.ID) {
	if b.trees >= maxBaseTrees {
		return
	}
	paths := map[object.ID]string{} // of the trees that are entered
	_ = treediff.Walk{
		Read: func(id object.ID) ([]object.TreeEntry, error) {
			list, err := b.repo.Tree(id)
			if _, found := b.paths[id]; err == nil && !found && !b.known[id] && !b.repo.Owned(id) {
				b.paths[id] = paths[id]
				b.trees++
			}
			return list, nil
		},
		Visit: func(path string, next object.TreeEntry, before []object.TreeEntry) (enter bool, err error) {
			old := before[0]
			if old.ID == next.ID {
				return false, nil
			}
			both := old.Mode.IsBlob() && next.Mode.IsBlob()
			for _, e := range []object.TreeEntry{old, next} {
				switch {
				case e.Mode == object.ModeDir:
					paths[e.ID], enter = path, b.trees < maxBaseTrees
				case e.Mode.IsBlob() && !e.ID.IsZero() && !b.known[e.ID] && !b.repo.Owned(e.ID):
					if both {
						b.changed[e.ID] = path
					} else {
						b.whole[e.ID] = path
					}
				}
			}
			return enter, nil
		},
	}.Run(to, from) // the functions return no errors
}

// contents adds those of the found blobs to b.paths that are on this host and have at most each bytes, the smallest
// first, until their sizes exceed limit. It sends no request.
func (b *baseObjects) contents(ctx context.Context, store Provider, found map[object.ID]string,
	each, limit int64) error {
	ids := slices.Collect(maps.Keys(found))
	if store != nil && len(ids) > 0 {
		if err := store.FromCache(ctx, ids); err != nil {
			return err
		}
	}
	sizes := map[object.ID]int64{}
	ids = slices.DeleteFunc(ids, func(id object.ID) bool {
		t, n, err := b.repo.Size(id)
		sizes[id] = n
		return err != nil || t != object.Blob || n > each
	})
	slices.SortFunc(ids, func(x, y object.ID) int { return cmp.Or(cmp.Compare(sizes[x], sizes[y]), x.Compare(y)) })
	for _, id := range ids {
		if limit -= sizes[id]; limit < 0 {
			break
		}
		b.paths[id] = found[id]
	}
	return nil
}

// write writes the found objects as a pack to the directory dir. The pack contains deltas against objects of b.tips,
// which it does not contain.
func (b *baseObjects) write(ctx context.Context, dir string) error {
	if len(b.paths) == 0 {
		return nil
	}
	var in strings.Builder
	for _, tip := range b.tips {
		fmt.Fprintf(&in, "-%s\n", tip) // git uses the objects of this commit only as bases of deltas
	}
	for _, id := range slices.SortedFunc(maps.Keys(b.paths), object.ID.Compare) {
		path := b.paths[id] // git searches for deltas between objects of the same path
		if strings.ContainsAny(path, "\n\x00") {
			path = ""
		}
		fmt.Fprintf(&in, "%s %s\n", id, path)
	}
	out, err := os.Create(filepath.Join(dir, "base.pack"))
	if err != nil {
		return err
	}
	return errors.Join(packs.Listed(b.repo.Dir(), in.String())(ctx, out), out.Close())
}
