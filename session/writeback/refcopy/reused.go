package refcopy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/treediff"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/writeback/objects"
)

// reused fetches contents of the mounted remote that git reads when it serves a fetch of the session's commits from the
// Repo. These are the contents of files that a commit has moved, copied or restored, because git leaves out only blobs
// that the receiver has at the same path, and the old versions of changed files, because git sends deltas against them.
// Git does not fetch these contents itself. All methods may be called concurrently.
type reused struct {
	repo    *session.Repo    // embedded session remote
	provide objects.Provider // fetches from the mounted remote

	mu     sync.Mutex         // held while contents are fetched
	looked map[object.ID]bool // commits and tags for which contents were fetched
}

// fetch fetches the contents that git reads to send the commits and tags in tips, and their ancestors that were created
// in the session.
func (r *reused) fetch(ctx context.Context, tips []object.ID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	looked, need := map[object.ID]bool{}, map[object.ID]bool{}
	for stack := slices.Clone(tips); len(stack) > 0; {
		if err := ctx.Err(); err != nil {
			return err
		}
		id := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if r.looked[id] || looked[id] || !r.repo.Owned(id) {
			continue
		}
		looked[id] = true
		below, err := r.addNeeded(id, need)
		if err != nil {
			return err
		}
		stack = append(stack, below...)
	}
	missing := slices.DeleteFunc(r.provide.Missing(slices.Collect(maps.Keys(need))), r.repo.Owned)
	if len(missing) > 0 {
		if err := r.provide.Provide(ctx, missing, nil); err != nil {
			return fmt.Errorf("fetch contents that git needs to send commits: %w", err)
		}
	}
	if r.looked == nil {
		r.looked = map[object.ID]bool{}
	}
	maps.Copy(r.looked, looked)
	return nil
}

// addNeeded adds to need the contents that git reads to send the commit or tag id. It returns the parents of the
// commit, or the target of the tag. For a commit without parents, or with a parent that is not on this host, it adds
// nothing, because the receiver then needs the whole tree.
func (r *reused) addNeeded(id object.ID, need map[object.ID]bool) ([]object.ID, error) {
	t, content, err := r.repo.Get(id, object.MaxCommitSize)
	if errors.Is(err, odb.ErrTooLarge) { // the object is a blob that a tag refers to
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read object %s: %w", id, err)
	}
	if t == object.Tag {
		target, _, err := object.ParseTagTarget(r.repo.Format(), content)
		return []object.ID{target}, err
	}
	if t != object.Commit {
		return nil, nil
	}
	commit, err := object.ParseCommit(r.repo.Format(), content)
	if err != nil {
		return nil, fmt.Errorf("read commit %s: %w", id, err)
	}
	var before []object.ID
	for _, parent := range commit.Parents {
		_, content, err := r.repo.Get(parent, object.MaxCommitSize)
		if errors.Is(err, odb.ErrNotFound) {
			return commit.Parents, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read commit %s: %w", parent, err)
		}
		was, err := object.ParseCommit(r.repo.Format(), content)
		if err != nil {
			return nil, fmt.Errorf("read commit %s: %w", parent, err)
		}
		before = append(before, was.Tree)
	}
	if len(before) == 0 {
		return nil, nil
	}
	return commit.Parents, r.compare(commit.Tree, before, need)
}

// compare adds to need the blobs below a tree that none of the trees before has at the same path, and the blobs that
// these trees have there.
func (r *reused) compare(tree object.ID, before []object.ID, need map[object.ID]bool) error {
	return treediff.Walk{
		Read: r.repo.Tree,
		Visit: func(_ string, e object.TreeEntry, before []object.TreeEntry) (enter bool, err error) {
			same := func(old object.TreeEntry) bool { return old.ID == e.ID }
			if !e.Mode.IsBlob() || slices.ContainsFunc(before, same) {
				return e.Mode == object.ModeDir, nil
			}
			need[e.ID] = true
			for _, old := range before {
				if old.Mode.IsBlob() {
					need[old.ID] = true
				}
			}
			return false, nil
		},
	}.Run(tree, before...)
}
