// Package objects selects the objects that a push of a session sends: objects that were created in the session and that
// the session remote lacks (Select). For a session remote without the history of the mounted repository, it also
// selects objects of this repository with which readers compare the commits of the session (WriteBases).
package objects

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/treediff"
	"github.com/artifactfs/artifactfs/session"
)

// Provider fetches objects of the mounted remote. It is implemented by fetch.Store and fetch.Local.
type Provider interface {
	// Provide fetches the objects wanted into packs that git can read. It may also fetch the objects along by the same
	// requests.
	Provide(ctx context.Context, wanted, along []object.ID) error
	// Missing returns those of the objects ids that are in no pack that git can read.
	Missing(ids []object.ID) []object.ID
	// FromCache copies contents that are on this host, but not in a pack that git can read, into such a pack. It sends
	// no request.
	FromCache(ctx context.Context, ids []object.ID) error
}

// Set is a set of object ids.
type Set map[object.ID]bool

// Selection is the result of Select: the owned objects that a push has to send because they are reachable from the
// pushed commits and the session remote lacks them.
type Selection struct {
	IDs         []object.ID // objects to send, in the order of the walk
	BaseCommits Set         // objects of the mounted remote to which the session's commits refer

	repo *session.Repo
	sent Set // objects that the session remote has
	seen Set // objects that the walk has visited
}

func newSelection(repo *session.Repo, sent Set) *Selection {
	return &Selection{BaseCommits: Set{}, repo: repo, sent: sent, seen: Set{}}
}

// Has reports whether the object id is one of the objects that Select has found.
func (s *Selection) Has(id object.ID) bool { return s.seen[id] }

// Select returns the owned objects that are reachable from tips and not in the set sent. It does not follow objects
// that are in sent or not owned, so its cost is proportional to the size of the result.
func Select(ctx context.Context, repo *session.Repo, tips []object.ID, sent Set) (*Selection, error) {
	s := newSelection(repo, sent)
	for stack := append([]object.ID(nil), tips...); len(stack) > 0; {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		id := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if sent[id] || s.seen[id] || s.BaseCommits[id] {
			continue
		}
		// The walk ends at objects of the mounted remote.
		if !repo.Owned(id) {
			s.BaseCommits[id] = true
			continue
		}
		s.add(id)
		below, err := s.tip(id)
		if err != nil {
			return nil, fmt.Errorf("read object %s: %w", id, err)
		}
		stack = append(stack, below...)
	}
	return s, nil
}

// Reached returns owned objects that a session remote must have if it has the commits tips: all owned commits in the
// history of tips, and the trees and contents of tips and of their parents. To save time, it leaves out the trees and
// contents of older commits; a push may then send such an object again, which is rare and harmless.
func Reached(ctx context.Context, repo *session.Repo, tips []object.ID) (Set, error) {
	s := newSelection(repo, Set{})
	level := tips
	for depth := 0; len(level) > 0; depth++ {
		var next []object.ID
		for _, id := range level {
			if err := ctx.Err(); err != nil {
				return nil, context.Cause(ctx)
			}
			if s.seen[id] || !repo.Owned(id) {
				continue
			}
			s.seen[id] = true
			below, tree, err := s.names(id)
			if err == nil && depth < 2 {
				err = s.tree(tree, object.ID{})
			}
			if err != nil {
				return nil, fmt.Errorf("read object %s: %w", id, err)
			}
			next = append(next, below...)
		}
		level = next
	}
	return s.seen, nil
}

// names returns the objects to which the object id refers: the parents and the tree of a commit, or the target of a
// tag. For other objects it returns none.
func (s *Selection) names(id object.ID) (below []object.ID, tree object.ID, err error) {
	t, content, err := s.repo.Get(id, object.MaxCommitSize)
	if errors.Is(err, odb.ErrTooLarge) {
		return nil, tree, nil
	}
	if err != nil {
		return nil, tree, err
	}
	switch t {
	case object.Commit:
		info, err := object.ParseCommit(s.repo.Format(), content)
		return info.Parents, info.Tree, err
	case object.Tag:
		target, _, err := object.ParseTagTarget(s.repo.Format(), content)
		return []object.ID{target}, tree, err
	}
	return nil, tree, nil
}

// tip adds the trees and contents that are reachable from the object id without other commits. It returns the parents
// of a commit, or the target of a tag, which are not added.
func (s *Selection) tip(id object.ID) ([]object.ID, error) {
	t, content, err := s.repo.Get(id, object.MaxTreeSize)
	if errors.Is(err, odb.ErrTooLarge) {
		return nil, nil // an object of more than MaxTreeSize bytes can only be a blob
	}
	if err != nil {
		return nil, err
	}
	switch t {
	case object.Commit:
		info, err := object.ParseCommit(s.repo.Format(), content)
		if err != nil {
			return nil, err
		}
		// Apart from the changed files, the tree of a checkpoint consists of entries of the trees of Head and Base. So these
		// commits count as base commits if they are not owned.
		if p, err := session.ParseCheckpoint(s.repo.Format(), id, content); err == nil {
			for _, stand := range []object.ID{p.Head, p.Base} {
				if !stand.IsZero() && !s.sent[stand] && !s.repo.Owned(stand) {
					s.BaseCommits[stand] = true
				}
			}
		}
		var before object.ID
		if len(info.Parents) > 0 {
			if parent, err := s.repo.Commit(info.Parents[0]); err == nil {
				before = parent.Tree
			}
		}
		return info.Parents, s.tree(info.Tree, before)
	case object.Tag:
		target, _, err := object.ParseTagTarget(s.repo.Format(), content)
		return []object.ID{target}, err
	case object.Tree:
		return nil, s.below(id, object.ID{})
	}
	return nil, nil
}

// tree adds the tree id and everything below it. before is the tree at the same path in the parent commit: tree leaves
// out objects that before has under the same path, because the session remote has them or they are added together with
// the parent commit.
func (s *Selection) tree(id, before object.ID) error {
	if id.IsZero() || id == before || !s.add(id) {
		return nil
	}
	return s.below(id, before)
}

// below adds everything below the tree id, like the method tree.
func (s *Selection) below(id, before object.ID) error {
	return treediff.Walk{
		Read: s.repo.Tree,
		Base: func(id object.ID) ([]object.TreeEntry, error) {
			entries, _ := s.repo.Tree(id)
			return entries, nil // without the parent's tree, every entry counts as new, which is correct but slower
		},
		Visit: func(_ string, e object.TreeEntry, before []object.TreeEntry) (enter bool, err error) {
			if dir := e.Mode == object.ModeDir; e.ID != before[0].ID && (dir || e.Mode.IsBlob()) {
				return s.add(e.ID) && dir, nil
			}
			return false, nil
		},
	}.Run(id, before)
}

// add adds an object. It returns false if the object was added before, the session remote has it, or it is not owned.
func (s *Selection) add(id object.ID) bool {
	if s.sent[id] || s.seen[id] || !s.repo.Owned(id) {
		return false
	}
	s.seen[id] = true
	s.IDs = append(s.IDs, id)
	return true
}

// Fill adds objects of the mounted remote to which the objects in s.IDs refer, but which are not in the trees of the
// base commits, for example a file that was taken from another commit. It fetches missing objects by store.
func (s *Selection) Fill(ctx context.Context, baseCommits []object.ID, store Provider) error {
	held, named := Set{}, Set{}
	for _, id := range baseCommits {
		// The session remote has all objects that are reachable from the trees of the base commits.
		if info, err := s.repo.Commit(id); err == nil {
			if err := s.spread(info.Tree, held, Set{}); err != nil {
				return err
			}
		}
	}
	for _, id := range slices.Clone(s.IDs) {
		t, content, err := s.repo.Get(id, object.MaxTreeSize)
		if err != nil {
			continue
		}
		var entries []object.TreeEntry
		switch t {
		case object.Commit: // the tree may belong to another commit of the mounted remote, for example after a cherry-pick
			var info object.CommitInfo
			if info, err = object.ParseCommit(s.repo.Format(), content); err == nil {
				entries = []object.TreeEntry{{Mode: object.ModeDir, ID: info.Tree}}
			}
		case object.Tree:
			entries, _, err = object.ReadTree(s.repo.Format(), content)
		}
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e.Mode == object.ModeGitlink || s.seen[e.ID] || s.sent[e.ID] || held[e.ID] || s.repo.Owned(e.ID) {
				continue
			}
			if e.Mode != object.ModeDir {
				named[e.ID] = true
			} else if err := s.spread(e.ID, named, held); err != nil {
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
	s.IDs = slices.AppendSeq(s.IDs, maps.Keys(named))
	return nil
}

// spread adds the tree id and everything below it to the set into. It leaves out objects in the set except.
func (s *Selection) spread(id object.ID, into, except Set) error {
	if into[id] || except[id] {
		return nil
	}
	into[id] = true
	entries, err := s.repo.Tree(id)
	if err != nil {
		return fmt.Errorf("read tree %s: %w", id, err)
	}
	for _, e := range entries {
		switch {
		case e.Mode == object.ModeGitlink || except[e.ID]:
		case e.Mode == object.ModeDir:
			if err := s.spread(e.ID, into, except); err != nil {
				return err
			}
		default:
			into[e.ID] = true
		}
	}
	return nil
}
