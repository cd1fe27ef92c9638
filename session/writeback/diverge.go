package writeback

import (
	"slices"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/session"
)

// compareNotes compares a notes ref. If its values differ, it adds the ref to c.notes, so that the notes are merged. A
// notes ref that was removed in the mount remains on the session remote, because other sessions use it.
func (c *comparison) compareNotes(ref string) {
	mine, there := c.local[ref], c.theirs[ref]
	switch {
	case mine.IsZero():
		delete(c.ledger.refs, ref)
		return
	case there == mine:
		c.ledger.setAcked(ref, mine)
		c.undiverge(ref)
		return
	case c.ledger.refs[ref].acked == mine: // other sessions have committed notes on top of this session's notes
		c.undiverge(ref)
	}
	c.notes = append(c.notes, notesUpdate{ref: ref, mine: mine, there: there})
	// Other sessions have changed the notes ref before each push of this session, so push this session's notes to the
	// diverged name, where the other sessions find and merge them.
	if c.contended {
		c.diverge(ref, "")
	}
}

// addNotice adds a message for the user.
func (c *comparison) addNotice(text string) { c.notices = append(c.notices, text) }

// sign adds the update of the carried ref of a ref of the user (session.CarriedRef), which records that this session
// has pushed the value mine. ref is the name on the session remote.
func (c *comparison) sign(ref string, mine object.ID) {
	user, users := c.layout.Here(ref)
	to := session.CarriedRef(c.layout.Session, user)
	if !users || c.theirs[to] == mine {
		return
	}
	c.updates = append(c.updates, update{ref, transport.RefUpdate{Name: to, Old: c.theirs[to], New: mine}})
}

// diverge adds the update that pushes the local value of ref to its diverged name (session.DivergedRef). If another
// machine has changed the ref with the diverged name, or that ref cannot be created, diverge uses a name with the id of
// the value. by is the ref that prevents the creation of ref, "" if ref exists on the session remote with another
// value.
func (c *comparison) diverge(ref, by string) {
	user, _ := c.layout.Here(ref)
	mine, to := c.local[ref], session.DivergedRef(c.layout.Session, user)
	there, known := c.theirs[to], c.ledger.refs[to]
	free := there == mine || there.IsZero() || there == known.acked || known.mayHave(there) ||
		session.Within(c.repo, mine, there)
	// A name below or above an existing ref cannot be created.
	for other := range c.theirs {
		free = free && !session.InWay(other, to)
	}
	if !free {
		to = divergedOwn(to, mine)
		there = c.theirs[to]
	}
	c.diverged = append(c.diverged, Diverged{Ref: user, There: ref, Ours: to, InWay: by})
	if there == mine {
		c.ledger.setAcked(to, there)
		return
	}
	c.updates = append(c.updates, update{ref, transport.RefUpdate{Name: to, Old: there, New: mine}})
}

// undiverge adds the update that removes the diverged name of ref. It is called if the session remote has the local
// value of ref, or gets it by the same push.
func (c *comparison) undiverge(ref string) {
	user, users := c.layout.Here(ref)
	if !users {
		return
	}
	to := session.DivergedRef(c.layout.Session, user)
	there, known := c.theirs[to], c.ledger.refs[to]
	// A killed process, or another host, may have pushed the diverged name, so that the ledger does not contain its
	// value. If that value is an ancestor of the local value, removing the name loses nothing.
	if !there.IsZero() && (there == known.acked || known.mayHave(there) || session.Within(c.repo, c.local[ref], there)) {
		c.updates = append(c.updates, update{ref, transport.RefUpdate{Name: to, Old: there}})
		return
	}
	// The name does not exist, or another machine has moved it. It keeps the value of the other machine.
	delete(c.ledger.refs, to)
}

// inWay returns a ref of the session remote that prevents the creation of ref, or "" if there is none. Git does not
// allow refs such as feature and feature/x at the same time. mine and there are the values of ref in the Repo and on
// the session remote. inWay searches only c.theirs, to which such refs are added after the session remote has refused
// to create ref.
func (c *comparison) inWay(ref string, mine, there object.ID) string {
	if _, users := c.layout.Here(ref); !users || mine.IsZero() || !there.IsZero() {
		return ""
	}
	var by []string
	for other := range c.theirs {
		if session.InWay(other, ref) && !c.gone[other] {
			by = append(by, other)
		}
	}
	slices.Sort(by)
	if len(by) == 0 {
		return ""
	}
	return by[0]
}

// above returns the names of the branches that prevent the creation of the branch ref, because git stores them as files
// where it needs directories for ref. For refs/heads/a/b/c, these are refs/heads/a/b and refs/heads/a.
func above(ref string) (names []string) {
	for i := len(ref) - 1; i > len("refs/heads/"); i-- {
		if ref[i] == '/' {
			names = append(names, ref[:i])
		}
	}
	return names
}

// divergedOwn returns the name to which the value id is pushed if the diverged name ref is in use.
func divergedOwn(ref string, id object.ID) string { return ref + "." + id.String()[:12] }
