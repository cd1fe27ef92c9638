package writeback

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/session"
)

// idSet is a set of object ids.
type idSet map[object.ID]bool

// pushSet is the set of objects that a push has to send: the owned objects that are reachable from the pushed commits and that the
// session remote lacks.
type pushSet struct {
	repo *session.Repo
	sent idSet // objects that the session remote has
	// seen holds the objects that the walk has visited. The field objects lists the visited objects that have to be sent, in the
	// order of the walk.
	seen        idSet
	objects     []object.ID
	baseCommits idSet // base commits: objects of the mounted remote that the session's commits refer to
}

// newPushSet returns the owned objects that are reachable from tips and not in the set sent. The walk ends at objects in the set sent
// and at objects that are not owned, so its cost is proportional to the size of the result.
func newPushSet(ctx context.Context, repo *session.Repo, tips []object.ID, sent idSet) (*pushSet, error) {
	h := &pushSet{repo: repo, sent: sent, seen: idSet{}, baseCommits: idSet{}}
	for stack := append([]object.ID(nil), tips...); len(stack) > 0; {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		id := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if sent[id] || h.seen[id] || h.baseCommits[id] {
			continue
		}
		// The walk ends at objects of the mounted remote.
		if !repo.Owned(id) {
			h.baseCommits[id] = true
			continue
		}
		h.seen[id] = true
		h.objects = append(h.objects, id)
		below, err := h.tip(id)
		if err != nil {
			return nil, fmt.Errorf("read object %s: %w", id, err)
		}
		stack = append(stack, below...)
	}
	return h, nil
}

// hadOf returns owned objects that a session remote must have if it has the commits tips: all owned commits in the history of
// tips, and the trees and contents of tips and of their parents. To save time, it leaves out the trees and contents of older
// commits. If a later commit uses one of the objects that were left out, the push sends this object again, which is rare and does
// no harm.
func hadOf(ctx context.Context, repo *session.Repo, tips []object.ID) (idSet, error) {
	h := &pushSet{repo: repo, sent: idSet{}, seen: idSet{}, baseCommits: idSet{}}
	level := tips
	for depth := 0; len(level) > 0; depth++ {
		var next []object.ID
		for _, id := range level {
			if err := ctx.Err(); err != nil {
				return nil, context.Cause(ctx)
			}
			if h.seen[id] || !repo.Owned(id) {
				continue
			}
			h.seen[id] = true
			below, tree, err := h.names(id)
			if err == nil && depth < 2 {
				err = h.tree(tree, object.ID{})
			}
			if err != nil {
				return nil, fmt.Errorf("read object %s: %w", id, err)
			}
			next = append(next, below...)
		}
		level = next
	}
	return h.seen, nil
}

// names returns the objects to which the object id refers: the parents and the tree of a commit, or the target of a tag. For an
// object of another type it returns no objects.
func (h *pushSet) names(id object.ID) (below []object.ID, tree object.ID, err error) {
	t, content, err := h.repo.Get(id, object.MaxCommitSize)
	if errors.Is(err, odb.ErrTooLarge) {
		return nil, tree, nil
	}
	if err != nil {
		return nil, tree, err
	}
	switch t {
	case object.Commit:
		info, err := object.ParseCommit(h.repo.Format(), content)
		return info.Parents, info.Tree, err
	case object.Tag:
		target, _, err := object.ParseTagTarget(h.repo.Format(), content)
		return []object.ID{target}, tree, err
	}
	return nil, tree, nil
}

// tip adds the trees and contents of the object id. It returns the parents of a commit or the target of a tag without adding
// these objects.
func (h *pushSet) tip(id object.ID) ([]object.ID, error) {
	t, content, err := h.repo.Get(id, object.MaxTreeSize)
	if errors.Is(err, odb.ErrTooLarge) {
		return nil, nil // an object of more than MaxTreeSize bytes can only be a blob
	}
	if err != nil {
		return nil, err
	}
	switch t {
	case object.Commit:
		info, err := object.ParseCommit(h.repo.Format(), content)
		if err != nil {
			return nil, err
		}
		// Apart from the changed files, the tree of a checkpoint consists of entries of the trees of Head and Base. So these
		// commits count as base commits if they are not owned.
		if p, err := session.ParseCheckpoint(h.repo.Format(), id, content); err == nil {
			for _, stand := range []object.ID{p.Head, p.Base} {
				if !stand.IsZero() && !h.sent[stand] && !h.repo.Owned(stand) {
					h.baseCommits[stand] = true
				}
			}
		}
		var before object.ID
		if len(info.Parents) > 0 {
			if parent, err := h.repo.Commit(info.Parents[0]); err == nil {
				before = parent.Tree
			}
		}
		return info.Parents, h.tree(info.Tree, before)
	case object.Tag:
		target, _, err := object.ParseTagTarget(h.repo.Format(), content)
		return []object.ID{target}, err
	case object.Tree:
		return nil, h.below(content, object.ID{})
	}
	return nil, nil
}

// tree adds the tree id and everything below it. The tree before is the tree at the same path in the parent commit. tree leaves
// out objects that the tree before holds under the same path: the session remote has these objects, or they are added together
// with the parent commit.
func (h *pushSet) tree(id, before object.ID) error {
	if id.IsZero() || id == before || h.sent[id] || h.seen[id] || !h.repo.Owned(id) {
		return nil
	}
	h.seen[id] = true
	h.objects = append(h.objects, id)
	t, content, err := h.repo.Get(id, object.MaxTreeSize)
	if err == nil && t != object.Tree {
		err = fmt.Errorf("object %s is a %v, want a tree", id, t)
	}
	if err != nil {
		return err
	}
	return h.below(content, before)
}

// below adds the entries of the tree whose encoded form is content. Like the method tree, it leaves out entries that the tree
// before holds under the same name.
func (h *pushSet) below(content []byte, before object.ID) error {
	entries, _, err := object.ReadTree(h.repo.Format(), content)
	if err != nil {
		return err
	}
	old := map[string]object.ID{}
	if !before.IsZero() {
		// Without the parent's tree, every entry counts as new, which is correct but slower.
		if list, err := h.repo.Tree(before); err == nil {
			for _, e := range list {
				old[e.Name] = e.ID
			}
		}
	}
	for _, e := range entries {
		switch {
		// The entry is unchanged since the parent commit.
		case e.ID == old[e.Name]:
		case e.Mode == object.ModeDir:
			if err := h.tree(e.ID, old[e.Name]); err != nil {
				return err
			}
		case e.Mode.IsBlob() && !h.sent[e.ID] && !h.seen[e.ID] && h.repo.Owned(e.ID):
			h.seen[e.ID] = true
			h.objects = append(h.objects, e.ID)
		}
	}
	return nil
}

// fill adds the objects of the mounted remote to which the objects in h.objects refer and which are not in the trees of the base
// commits, such as a file that was taken from another commit. It fetches missing objects through store.
func (h *pushSet) fill(ctx context.Context, baseCommits []object.ID, store Provider) error {
	held, named := idSet{}, idSet{}
	for _, id := range baseCommits {
		// The session remote has everything that the trees of the base commits reach.
		if info, err := h.repo.Commit(id); err == nil {
			if err := h.spread(info.Tree, held, idSet{}); err != nil {
				return err
			}
		}
	}
	for _, id := range slices.Clone(h.objects) {
		t, content, err := h.repo.Get(id, object.MaxTreeSize)
		if err != nil {
			continue
		}
		var entries []object.TreeEntry
		switch t {
		case object.Commit: // the tree may belong to another commit of the mounted remote, for example after a cherry-pick
			var info object.CommitInfo
			if info, err = object.ParseCommit(h.repo.Format(), content); err == nil {
				entries = []object.TreeEntry{{Mode: object.ModeDir, ID: info.Tree}}
			}
		case object.Tree:
			entries, _, err = object.ReadTree(h.repo.Format(), content)
		}
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e.Mode == object.ModeGitlink || h.seen[e.ID] || h.sent[e.ID] || held[e.ID] || h.repo.Owned(e.ID) {
				continue
			}
			if e.Mode != object.ModeDir {
				named[e.ID] = true
			} else if err := h.spread(e.ID, named, held); err != nil {
				return err
			}
		}
	}
	// The contents may never have been fetched, because no process has read them.
	if absent := store.Missing(slices.Collect(maps.Keys(named))); len(absent) > 0 {
		if err := store.Provide(ctx, absent, nil); err != nil {
			return fmt.Errorf("fetch contents missing on the session remote: %w", err)
		}
	}
	h.objects = slices.AppendSeq(h.objects, maps.Keys(named))
	return nil
}

// spread adds the tree id and everything below it to the set into, except the objects in the set except.
func (h *pushSet) spread(id object.ID, into, except idSet) error {
	if into[id] || except[id] {
		return nil
	}
	into[id] = true
	entries, err := h.repo.Tree(id)
	if err != nil {
		return fmt.Errorf("read tree %s: %w", id, err)
	}
	for _, e := range entries {
		switch {
		case e.Mode == object.ModeGitlink || except[e.ID]:
		case e.Mode == object.ModeDir:
			if err := h.spread(e.ID, into, except); err != nil {
				return err
			}
		default:
			into[e.ID] = true
		}
	}
	return nil
}
