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

// move is a ref of the Repo that has to change from the value old to the value new, the ref's value in the git directory.
type move struct {
	// name is the full name of the ref.
	name     string
	old, new object.ID
}

// carry copies the refs in the parameter now whose values differ from their values in the Repo. In the same update of the Repo, it
// adds refs that keep the old values that are not reachable from the new values.
func (c *Copier) carry(ctx context.Context, now refsOf) error {
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
			c.reused = &reused{repo: repo, provide: c.o.Provide}
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
	// A ref whose object is missing must not block the other refs: it is skipped, and reported after the other refs were copied.
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
	// Until the refs are updated, no ref reaches the copied objects. Working prevents gc from removing these objects.
	defer c.repo.Working()()
	copies := session.NewCopier(c.repo)
	if err := copies.Commits(ctx, tips); err != nil {
		return err
	}
	objects := copies.Objects()
	var owner session.RefChange
	if c.o.Provide != nil {
		if owner, err = c.owner(&objects); err != nil {
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
	// Add a ref to the list of copied refs before the Repo gets the ref, and remove a ref from the list after the Repo has lost
	// the ref. So after a crash between these steps, a ref of the Repo that is missing from the git directory is known to have
	// been removed by the user.
	both := maps.Clone(before)
	maps.Copy(both, after)
	if err := both.write(c.repo, before); err != nil {
		return err
	}
	if err := c.repo.Update(ctx, changes); err != nil {
		return fmt.Errorf("push refs: %w", err)
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
	// HEAD is set only to a ref that exists, because a clone of a repository whose HEAD names a missing ref checks nothing out.
	if now.head != "" {
		if id, err := c.repo.Ref(now.head); err == nil && !id.IsZero() {
			return errors.Join(lost, c.repo.SetHead(now.head))
		}
	}
	return lost
}

// owner returns the change of session.OwnerRef that claims the branch and tag names without a prefix for the session, and adds
// the blob of the claim to objects. If the claim exists, the Name of the result is empty. owner is called only if the Repo is the
// session remote.
func (c *Copier) owner(objects *[]odb.Outgoing) (session.RefChange, error) {
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

// there drops the moves whose new values are missing on this host, and returns the other moves. The error lists the dropped moves;
// the caller makes the other moves despite the error.
func (c *Copier) there(moves []move, before, after carried) ([]move, error) {
	var lost []error
	moves = slices.DeleteFunc(moves, func(m move) bool {
		if m.new.IsZero() {
			return false
		}
		err := c.look(m.new)
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

// look returns an error if the object id cannot be read. If the object is a tag, look also reads the tag's target.
func (c *Copier) look(id object.ID) error {
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

// anything reports whether a branch, tag or notes ref differs from the mounted remote's ref of the same name.
func (c *Copier) anything(now refsOf) bool {
	theirs := c.theirs(now)
	for name, id := range now.users {
		if theirs[name] != id {
			return true
		}
	}
	return false
}

// theirs returns the values of the mounted remote's branches, tags and notes refs, by name. Values that the last git fetch stored
// in its remote-tracking branches replace older values.
func (c *Copier) theirs(now refsOf) map[string]object.ID {
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

// moves compares the git directory with the Repo, and returns the moves and the new list of copied refs. A ref that was never
// copied and has the same value as the mounted remote's ref of that name is not copied: git has fetched the ref, or the user has just
// created the ref and has not committed yet. The next checkpoint records such a ref.
func (c *Copier) moves(now refsOf, before carried) ([]move, carried, error) {
	after := carried{}
	var moves []move
	theirs := c.theirs(now)
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
	// Sort the moves, so that logs are easy to read. Repo.Update puts the changes into an order in which they are possible.
	slices.SortFunc(moves, func(a, b move) int { return strings.Compare(a.name, b.name) })
	return moves, after, nil
}

// changes returns the changes of refs that make the moves. The order matters, because after a crash in the middle of an Update, only
// the first changes were made. First come changes that create refs to old values which would otherwise become unreachable, so that
// no old value is lost. The carried ref of a user's ref (session.CarriedRef) is changed before that ref, because without the carried
// ref, the move would look like a move by another session.
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
		// A fast-forward keeps the old tip reachable.
		if session.Within(c.repo, m.new, m.old) {
			continue
		}
		kept[m.old] = true
		keep = append(keep, session.RefChange{Name: session.KeptPrefix(c.o.Session) + string(session.NewCheckpointID(time.Now())), New: m.old})
	}
	return append(keep, changes...), nil
}
