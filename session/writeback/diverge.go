package writeback

import (
	"slices"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/session"
)

// compareNotes compares a notes ref. If the values differ, it adds the ref to c.notes, so that the notes are merged. A ref that
// was removed in the mount stays on the session remote, because other sessions use it.
func (c *comparison) compareNotes(ref string) {
	mine, there := c.local[ref], c.theirs[ref]
	switch {
	case mine.IsZero():
		delete(c.ledger.refs, ref)
		return
	case there == mine:
		c.ledger.learn(ref, mine)
		c.undiverge(ref)
		return
	case c.ledger.refs[ref].acked == mine: // other sessions have committed notes on top of this session's notes
		c.undiverge(ref)
	}
	c.notes = append(c.notes, notesMove{ref: ref, mine: mine, there: there})
	// Other sessions have won the last races for the notes ref, so publish this session's notes under the diverged name, where
	// the other sessions find and merge these notes.
	if c.outrun {
		c.diverge(ref, "")
	}
}

// addNotice adds a message for the user.
func (c *comparison) addNotice(text string) { c.notices = append(c.notices, text) }

// sign adds the update that records that this session moved a ref of the user to the value mine. The parameter ref is the name of
// that ref on the session remote. The update sets the carried ref of that ref (session.CarriedRef).
func (c *comparison) sign(ref string, mine object.ID) {
	user, users := c.layout.Here(ref)
	to := session.CarriedRef(c.layout.Session, user)
	if !users || c.theirs[to] == mine {
		return
	}
	c.updates = append(c.updates, update{ref, transport.RefUpdate{Name: to, Old: c.theirs[to], New: mine}})
}

// diverge adds the update that pushes the local value of ref under the diverged name of ref (session.DivergedRef). If another
// machine has also moved the ref with the diverged name, or this name cannot be created, diverge uses a name that contains the id
// of the value. The parameter by is the ref that prevents the creation of ref; it is empty if ref exists and has another value on
// the session remote.
func (c *comparison) diverge(ref, by string) {
	user, _ := c.layout.Here(ref)
	mine, to := c.local[ref], session.DivergedRef(c.layout.Session, user)
	there, known := c.theirs[to], c.ledger.refs[to]
	free := there == mine || there.IsZero() || there == known.acked || known.mayBe(there) || session.Within(c.repo, mine, there)
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
		c.ledger.learn(to, there)
		return
	}
	c.updates = append(c.updates, update{ref, transport.RefUpdate{Name: to, Old: there, New: mine}})
}

// undiverge adds the update that removes the diverged name of ref. It is called when ref itself has the local value on the
// session remote, or gets that value by the same push.
func (c *comparison) undiverge(ref string) {
	user, users := c.layout.Here(ref)
	if !users {
		return
	}
	to := session.DivergedRef(c.layout.Session, user)
	there, known := c.theirs[to], c.ledger.refs[to]
	// A process that was killed may have pushed the name without an answer, and a process on another host is not in this ledger. If
	// the local value contains the value of the name, its removal loses nothing.
	if !there.IsZero() && (there == known.acked || known.mayBe(there) || session.Within(c.repo, c.local[ref], there)) {
		c.updates = append(c.updates, update{ref, transport.RefUpdate{Name: to, Old: there}})
		return
	}
	// The name does not exist, or another machine has moved it. It keeps the value of the other machine.
	delete(c.ledger.refs, to)
}

// inWay returns a ref of the session remote that prevents the creation of ref, because git does not allow the refs feature and
// feature/x at the same time; it returns "" if there is no such ref. The parameters mine and there are the values of ref in the
// Repo and on the session remote. inWay searches only c.theirs, which includes such refs after the session remote has refused to
// create ref.
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

// above returns the names of refs that prevent the creation of ref, because git stores these refs as files where it needs
// directories for ref: for refs/heads/a/b/c, the names are refs/heads/a/b and refs/heads/a.
func above(ref string) (names []string) {
	for i := len(ref) - 1; i > len("refs/heads/"); i-- {
		if ref[i] == '/' {
			names = append(names, ref[:i])
		}
	}
	return names
}

// divergedOwn returns the name that is used for the value id instead of the diverged name ref, if that name is in use.
func divergedOwn(ref string, id object.ID) string { return ref + "." + id.String()[:12] }
