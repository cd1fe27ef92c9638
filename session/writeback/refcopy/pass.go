package refcopy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/odb"
	"github.com/artifactfs/artifactfs/git/refname"
	"github.com/artifactfs/artifactfs/session"
)

// move is a change of a ref of the Repo: from the object id old to new, the object id of the ref in the git directory.
type move struct {
	// name is the full name of the ref.
	name     string
	old, new object.ID
}

// copyRefs copies the refs in now that have other object ids than in the Repo. By the same update of the Repo, it adds
// refs that keep the old commits which are not reachable from the new ones.
func (c *Copier) copyRefs(ctx context.Context, now refsOf) error {
	if c.repo == nil && !c.anyDiffers(now) {
		return nil
	}
	if c.repo == nil {
		repo, err := c.o.Repo()
		if err != nil {
			return err
		}
		c.repo = repo
		if c.o.Provide != nil {
			c.reused = &reused{repo: repo, provide: c.o.Provide}
		}
	}
	before, err := readCarried(c.repo)
	if err != nil {
		return err
	}
	moves, after, err := c.compareRefs(now, before)
	if err != nil {
		return err
	}
	// A ref whose object is missing must not block the other refs: leave it out, and return an error after the other
	// refs were copied.
	moves, lost := c.presentMoves(moves, before, after)
	if len(moves) == 0 {
		return errors.Join(lost, after.write(c.repo, before))
	}
	var tips []object.ID
	for _, m := range moves {
		if !m.new.IsZero() {
			tips = append(tips, m.new)
		}
	}
	// The copied objects are unreachable until the refs are updated. Working prevents gc from removing them.
	defer c.repo.Working()()
	copies := session.NewCopier(c.repo)
	if err := copies.Commits(ctx, tips); err != nil {
		return err
	}
	objects := copies.Objects()
	var owner session.RefChange
	if c.o.Provide != nil {
		if owner, err = c.claimNames(&objects); err != nil {
			return err
		}
	}
	// Write the objects to disk before a ref names them.
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
	// Add a ref to the list of copied refs before the Repo gets the ref, and remove a ref from the list after the Repo has
	// lost the ref. So after a crash between these steps, a ref of the Repo that is missing from the git directory is
	// known to have been removed by the user.
	both := maps.Clone(before)
	maps.Copy(both, after)
	if err := both.write(c.repo, before); err != nil {
		return err
	}
	if err := c.repo.Update(ctx, changes); err != nil {
		return fmt.Errorf("copy refs to the session repository: %w", err)
	}
	if c.reused != nil {
		c.done.Go(func() {
			if err := c.reused.fetch(c.ctx, tips); err != nil && c.ctx.Err() == nil {
				c.log.Debug("prepare fetches from session remote", zap.Error(err))
			}
		})
	}
	if err := after.write(c.repo, both); err != nil {
		return err
	}
	// HEAD is set only to a ref that exists, because a clone of a repository whose HEAD names a missing ref checks nothing
	// out.
	if now.head != "" {
		if id, err := c.repo.Ref(now.head); err == nil && !id.IsZero() {
			return errors.Join(lost, c.repo.SetHead(now.head))
		}
	}
	return lost
}

// claimNames returns the change of session.OwnerRef that claims the branch and tag names without a prefix for the
// session, and adds the blob for it to objects. If the claim exists, the Name of the result is empty. claimNames is
// called only if the Repo is the session remote.
func (c *Copier) claimNames(objects *[]odb.Outgoing) (session.RefChange, error) {
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

// presentMoves returns the moves whose new objects are on this host. The error lists the other moves, which are left
// out; the caller makes the returned moves despite the error.
func (c *Copier) presentMoves(moves []move, before, after carried) ([]move, error) {
	var lost []error
	moves = slices.DeleteFunc(moves, func(m move) bool {
		if m.new.IsZero() {
			return false
		}
		err := c.checkObject(m.new)
		if !errors.Is(err, odb.ErrNotFound) {
			return false
		}
		lost = append(lost, fmt.Errorf("copy ref %s: %w", m.name, err))
		// The Repo keeps the old value of the ref, so the list keeps its entry for the ref.
		if delete(after, m.name); !before[m.name].IsZero() {
			after[m.name] = before[m.name]
		}
		return true
	})
	return moves, errors.Join(lost...)
}

// checkObject returns an error if the object id cannot be read, or if it is a tag and its target cannot be read.
func (c *Copier) checkObject(id object.ID) error {
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

// anyDiffers reports whether a branch, tag or notes ref of the mount differs from the ref of the same name of the
// mounted remote.
func (c *Copier) anyDiffers(now refsOf) bool {
	theirs := c.remoteRefs(now)
	for name, id := range now.users {
		if theirs[name] != id {
			return true
		}
	}
	return false
}

// remoteRefs returns the object ids of the branches, tags and notes refs of the mounted remote, by name, as far as they
// are known: those of Options.Refs, and for branches those of newer remote-tracking refs.
func (c *Copier) remoteRefs(now refsOf) map[string]object.ID {
	theirs := map[string]object.ID{}
	if c.o.Refs != nil {
		for _, r := range c.o.Refs() {
			if session.IsUsers(r.Name) {
				theirs[r.Name] = r.ID
			}
		}
	}
	// The remote-tracking refs are newer than Refs if the user has run git fetch.
	below := refname.Tracking(c.o.GitDir, "")
	for name, id := range now.remotes {
		if branch, ok := strings.CutPrefix(name, below); ok {
			theirs["refs/heads/"+branch] = id
		}
	}
	return theirs
}

// compareRefs compares the git directory with the Repo, and returns the necessary changes of the Repo and the new list
// of copied refs. It leaves out a ref that was never copied and equals the ref of that name of the mounted remote: git
// has fetched it, or the user has created it but not committed yet. The next checkpoint records such a ref.
func (c *Copier) compareRefs(now refsOf, before carried) ([]move, carried, error) {
	after := carried{}
	var moves []move
	theirs := c.remoteRefs(now)
	var fetched map[string]bool
	for name, id := range now.users {
		have, err := c.repo.Ref(name)
		if err != nil {
			return nil, nil, err
		}
		// Neither the Repo nor the list has the ref, so decide whether the user has created it.
		if have.IsZero() && before[name].IsZero() {
			if theirs[name] == id {
				continue
			}
			// git fetch creates tags automatically, so a tag in FETCH_HEAD was not made by the user.
			if strings.HasPrefix(name, "refs/tags/") && c.repo.Remotes(id) && !c.repo.Owned(id) {
				if fetched == nil {
					fetched = fetchedTags(c.o.GitDir)
				}
				if fetched[name] {
					continue
				}
			}
		}
		after[name] = id
		if have != id {
			moves = append(moves, move{name, have, id})
		}
	}
	// A ref whose file is broken was not removed, so it stays on the list and in the Repo.
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
	// Sort the moves, so that logs are easy to read. Repo.Update puts the changes into an order in which they are
	// possible.
	slices.SortFunc(moves, func(a, b move) int { return strings.Compare(a.name, b.name) })
	return moves, after, nil
}

// changes returns the ref changes for the moves, in an order that is safe if a crash interrupts the update. First come
// new refs that keep old commits which would become unreachable. The carried ref of a ref (session.CarriedRef) is
// changed before the ref itself, because otherwise the change would look like one of another session.
func (c *Copier) changes(moves []move) ([]session.RefChange, error) {
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
		if c.o.Provide != nil { // the Repo is the session remote
			signed := session.CarriedRef(c.o.Session, m.name)
			if was, err := c.repo.Ref(signed); err != nil {
				return nil, err
			} else if was != m.new {
				changes = append(changes, session.RefChange{Name: signed, Old: was, New: m.new})
			}
		}
		changes = append(changes, session.RefChange{Name: m.name, Old: m.old, New: m.new})
		// Old values that are commits of the mounted remote need no ref, because the remote can supply them again.
		if m.old.IsZero() || kept[m.old] || !c.repo.Owned(m.old) {
			continue
		}
		// After a fast-forward, the old commit is still reachable.
		if session.Within(c.repo, m.new, m.old) {
			continue
		}
		kept[m.old] = true
		keep = append(keep,
			session.RefChange{Name: session.KeptPrefix(c.o.Session) + string(session.NewCheckpointID(time.Now())), New: m.old})
	}
	return append(keep, changes...), nil
}
