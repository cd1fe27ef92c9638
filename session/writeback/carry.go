package writeback

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
	"github.com/artifactfs/artifactfs/session"
)

// move is a ref that is to be in the Repo as it is in the git directory.
type move struct {
	name     string
	old, new object.ID
}

// carry brings what differs. Old tips that nothing else reaches are kept by refs of their own, in the same step.
func (c *RefCopier) carry(ctx context.Context, now refsOf) error {
	if c.repo == nil && !c.anything(now) {
		return nil
	}
	if c.repo == nil {
		repo, err := c.o.Repo()
		if err != nil {
			return err
		}
		c.repo = repo
		if c.o.Provide != nil {
			c.clone = newCloneable(repo, c.o.Provide)
		}
	}
	before, err := readCarried(c.repo)
	if err != nil {
		return err
	}
	moves, after, err := c.moves(now, before)
	if err != nil {
		return err
	}
	moves, lost := c.there(moves, before, after)
	if len(moves) == 0 {
		return errors.Join(lost, after.write(c.repo, before))
	}
	var tips []object.ID
	for _, m := range moves {
		if !m.new.IsZero() {
			tips = append(tips, m.new)
		}
	}
	if c.clone != nil {
		if err := c.clone.ready(ctx, tips); err != nil {
			return err
		}
	}
	// What is copied is not named by anything for a moment.
	defer c.repo.Working()()
	copies := session.NewCopier(c.repo)
	if err := copies.Commits(ctx, tips); err != nil {
		return err
	}
	objects := copies.Objects()
	var owner session.RefChange
	if c.clone != nil {
		if owner, err = c.owner(&objects); err != nil {
			return err
		}
	}
	if err := c.repo.Write(ctx, objects); err != nil {
		return err
	}
	changes, err := c.changes(moves)
	if owner.Name != "" {
		changes = append(changes, owner)
	}
	if err != nil {
		return err
	}
	// A ref is on the list before it is in the Repo, and until it has gone from there: whoever dies in between leaves one
	// that is seen to have been removed.
	both := maps.Clone(before)
	maps.Copy(both, after)
	if err := both.write(c.repo, before); err != nil {
		return err
	}
	if err := c.repo.Update(ctx, changes); err != nil {
		return fmt.Errorf("push refs: %w", err)
	}
	if err := after.write(c.repo, both); err != nil {
		return err
	}
	if now.head != "" {
		if id, err := c.repo.Ref(now.head); err == nil && !id.IsZero() {
			return errors.Join(lost, c.repo.SetHead(now.head)) // what a clone checks out
		}
	}
	return lost
}

// owner returns the change that makes the plain names in the Repo the session's, if it is the session remote, and adds the
// object of that. Without a name there is nothing to change.
func (c *RefCopier) owner(objects *[]odb.Outgoing) (session.RefChange, error) {
	blob, err := session.OwnerBlob(c.o.Format, c.o.Session)
	if err != nil {
		return session.RefChange{}, err
	}
	was, err := c.repo.Ref(session.OwnerRef)
	if err != nil || was == blob.ID {
		return session.RefChange{}, err
	}
	*objects = append(*objects, blob)
	return session.RefChange{Name: session.OwnerRef, Old: was, New: blob.ID}, nil
}

// there leaves out the moves to what is not there, of which the error tells: what one ref has lost keeps no other here.
func (c *RefCopier) there(moves []move, before, after carried) ([]move, error) {
	var lost []error
	moves = slices.DeleteFunc(moves, func(m move) bool {
		if m.new.IsZero() {
			return false
		}
		err := c.look(m.new)
		if !errors.Is(err, odb.ErrNotFound) {
			return false
		}
		lost = append(lost, fmt.Errorf("copy %s: %w", m.name, err))
		if delete(after, m.name); !before[m.name].IsZero() {
			after[m.name] = before[m.name]
		}
		return true
	})
	return moves, errors.Join(lost...)
}

// look reads what a ref names, and what that names if it is a tag.
func (c *RefCopier) look(id object.ID) error {
	for {
		t, content, err := c.repo.Get(id, object.MaxCommitSize)
		if err != nil || t != object.Tag {
			return err
		}
		if id, _, err = object.ParseTagTarget(c.repo.Format(), content); err != nil {
			return fmt.Errorf("read tag: %w", err)
		}
	}
}

// anything says whether some ref is not as the mounted remote has it, or had it.
func (c *RefCopier) anything(now refsOf) bool {
	theirs := c.theirs(now)
	for name, id := range now.users {
		if theirs[name] != id {
			return true
		}
	}
	return false
}

// theirs is what the mounted remote has under the names of the user's refs.
func (c *RefCopier) theirs(now refsOf) map[string]object.ID {
	theirs := map[string]object.ID{}
	if c.o.Refs != nil {
		for _, r := range c.o.Refs() {
			if isUsers(r.Name) {
				theirs[r.Name] = r.ID
			}
		}
	}
	for name, id := range now.remotes {
		if branch, ok := strings.CutPrefix(name, "refs/remotes/origin/"); ok {
			theirs["refs/heads/"+branch] = id
		}
	}
	return theirs
}

// moves compares. A ref that was never carried, and names what the mounted remote has, is not the session's: it came
// with a fetch, or it says where somebody is about to begin. The State of the next checkpoint knows it.
func (c *RefCopier) moves(now refsOf, before carried) ([]move, carried, error) {
	after := carried{}
	var moves []move
	theirs := c.theirs(now)
	var fetched map[string]bool
	for name, id := range now.users {
		have, err := c.repo.Ref(name)
		if err != nil {
			return nil, nil, err
		}
		if have.IsZero() && before[name].IsZero() {
			if theirs[name] == id {
				continue
			}
			if strings.HasPrefix(name, "refs/tags/") && c.repo.Remotes(id) && !c.repo.Owned(id) {
				if fetched == nil {
					fetched = fetchedTags(c.o.GitDir)
				}
				if fetched[name] {
					continue
				}
			}
			if bare, err := c.bare(id); err != nil {
				return nil, nil, err
			} else if bare {
				continue // to make it cloneable is to bring all contents of a tree that nobody may ever look at
			}
		}
		after[name] = id
		if have != id {
			moves = append(moves, move{name, have, id})
		}
	}
	for name := range now.broken {
		if id := before[name]; !id.IsZero() {
			after[name] = id
		}
	}
	for name := range before {
		if !after[name].IsZero() {
			continue
		}
		if _, there := now.users[name]; there {
			continue
		}
		have, err := c.repo.Ref(name)
		if err != nil {
			return nil, nil, err
		}
		if !have.IsZero() {
			moves = append(moves, move{name: name, old: have})
		}
	}
	// A name may be free for another only when it is gone (feature, feature/x): Update knows about that. The order is for
	// whoever reads along.
	slices.SortFunc(moves, func(a, b move) int { return strings.Compare(a.name, b.name) })
	return moves, after, nil
}

// bare says whether a ref names nothing but what the mounted remote can give again, itself or by a tag around it, in a Repo
// that is to be cloned.
func (c *RefCopier) bare(id object.ID) (bool, error) {
	for c.clone != nil {
		if c.repo.Remotes(id) && !c.repo.Owned(id) {
			return true, nil
		}
		t, content, err := c.repo.Get(id, object.MaxCommitSize)
		if errors.Is(err, odb.ErrTooLarge) || errors.Is(err, odb.ErrNotFound) || err == nil && t != object.Tag {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("look at %s: %w", id, err)
		}
		if id, _, err = object.ParseTagTarget(c.repo.Format(), content); err != nil {
			return false, fmt.Errorf("look at tag: %w", err)
		}
	}
	return false, nil
}

// changes are the moves, and before them what keeps the tips that they leave behind: who dies in the middle of an Update
// has made the first of them. A ref is signed before it is moved: moved and not signed it would be somebody else's.
func (c *RefCopier) changes(moves []move) ([]session.RefChange, error) {
	var changes, keep []session.RefChange
	kept := map[object.ID]bool{}
	if slices.ContainsFunc(moves, func(m move) bool { return !m.old.IsZero() }) {
		refs, err := c.repo.Refs(session.KeptPrefix(c.o.Session))
		if err != nil {
			return nil, err
		}
		for _, r := range refs {
			kept[r.ID] = true
		}
	}
	for _, m := range moves {
		if c.clone != nil { // the Repo is the session remote
			signed := session.CarriedRef(c.o.Session, m.name)
			if was, err := c.repo.Ref(signed); err != nil {
				return nil, err
			} else if was != m.new {
				changes = append(changes, session.RefChange{Name: signed, Old: was, New: m.new})
			}
		}
		changes = append(changes, session.RefChange{Name: m.name, Old: m.old, New: m.new})
		if m.old.IsZero() || kept[m.old] || !c.repo.Owned(m.old) {
			continue
		}
		if inside, err := contains(c.repo, m.new, m.old); err == nil && inside {
			continue
		}
		kept[m.old] = true
		keep = append(keep, session.RefChange{Name: session.KeptPrefix(c.o.Session) + string(session.NewPointID(time.Now())), New: m.old})
	}
	return append(keep, changes...), nil
}

// ancestryMost bounds how many commits are looked at to find out whether one contains another.
const ancestryMost = 200_000

var errTooFar = errors.New("too much history to look through")

// contains says whether a commit is an ancestor of another, or the same, as far as history is on this host. Clocks are
// believed within a day.
func contains(repo *session.Repo, tip, wanted object.ID) (bool, error) {
	if tip == wanted {
		return true, nil
	}
	if tip.IsZero() || wanted.IsZero() {
		return false, nil
	}
	goal, err := repo.Commit(wanted)
	if err != nil { // not here, or no commit
		return false, nil
	}
	oldest := goal.Committed.Add(-24 * time.Hour)
	seen := map[object.ID]bool{tip: true}
	stack := []object.ID{tip}
	for len(stack) > 0 {
		id := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		info, err := repo.Commit(id)
		if err != nil || info.Committed.Before(oldest) {
			continue
		}
		for _, p := range info.Parents {
			if p == wanted {
				return true, nil
			}
			if !seen[p] {
				seen[p] = true
				stack = append(stack, p)
			}
		}
		if len(seen) > ancestryMost {
			return false, errTooFar
		}
	}
	return false, nil
}
