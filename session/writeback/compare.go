package writeback

import (
	"maps"
	"slices"
	"strings"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/session"
)

// update is a change of the ref Name on the session remote. from is the ref of the session that causes the change, by
// its name on the session remote. from differs from Name if Name is the carried or diverged ref of from
// (session.CarriedRef, session.DivergedRef).
type update struct {
	from string
	transport.RefUpdate
}

// comparison compares the refs of the Repo with those of the session remote. The method run sets the fields with the
// results. Each comparison is used once, by one goroutine.
type comparison struct {
	repo   *session.Repo  // the session's repository
	layout session.Layout // maps names of refs in the Repo to names on the session remote
	// ledger is a copy of the queue's ledger, in which the comparison records the values of theirs.
	ledger *ledger
	// local and theirs are the refs of the Repo and of the session remote, both by their names on the session remote.
	local, theirs map[string]object.ID
	noRewrite     bool // the session remote accepts only fast-forward updates of branches
	noAnnotations bool // the session remote does not accept the annotations of the Repo
	contended     bool // in the last round, other sessions changed the notes refs before each push

	// The fields below are results.
	updates []update             // updates that the session remote needs
	notes   []notesUpdate        // notes refs that have to be merged
	moved   map[string]object.ID // metadata and lane refs of this session that another machine has changed
	// diverged lists the refs whose values are pushed under diverged names (session.DivergedRef).
	diverged []Diverged
	// behind maps refs to their commits on the session remote, for refs whose commit in the Repo is an ancestor of that
	// commit.
	behind map[string]object.ID
	// gone is the set of the refs that the updates remove.
	gone map[string]bool
	// lost states that the session remote has lost a ref that this session had pushed.
	lost    bool
	notices []string // messages for the user
}

// run compares all refs. A ref is updated if its remote value is an ancestor of the local value. A ref that no other
// session writes is also updated if its remote value is one that this session has pushed, with or without an answer.
// Any other remote value was pushed by another session or by a machine that died, and is not replaced.
func (c *comparison) run() {
	c.moved, c.behind, c.gone = map[string]object.ID{}, map[string]object.ID{}, map[string]bool{}
	for _, ref := range refsIn(c.local, c.ledger, c.layout) {
		switch {
		case isNotes(ref):
			c.compareNotes(ref)
		case ref == session.AnnotationsRef(c.layout.Session):
			c.compareAnnotations(ref)
		default:
			c.compare(ref)
		}
	}
	// If another machine took the session over, the lanes may belong to that machine, so do not push them.
	if c.moved[session.MetaRef(c.layout.Session)] != (object.ID{}) {
		c.updates = slices.DeleteFunc(c.updates, func(u update) bool { return isLane(u.Name, c.layout.Session) })
	}
	// Use the names in the Repo, because users know those names and Status shows them.
	for ref, id := range c.behind {
		delete(c.behind, ref)
		user, _ := c.layout.Here(ref)
		c.behind[user] = id
	}
}

// compare compares one ref that is not a notes ref. ref is its name on the session remote.
func (c *comparison) compare(ref string) {
	l, layout, name := c.ledger, c.layout, c.layout.Session
	mine, there, known := c.local[ref], c.theirs[ref], l.refs[ref]
	// If another ref prevents the creation of this ref, push the value to the diverged name until the other ref is
	// removed.
	if by := c.inWay(ref, mine, there); by != "" {
		c.diverge(ref, by)
		return
	}
	// If the session remote has applied a push whose answer was lost, record the value as acknowledged.
	if known.mayHave(there) {
		known = remoteRef{acked: there}
		l.setAcked(ref, there)
	}
	var next object.ID // value that the ref must have on the session remote before the update
	switch {
	// The session remote has the local value.
	case there == mine:
		l.setAcked(ref, there)
		c.undiverge(ref)
		return
	// No other session has moved the ref since this session's last push.
	case there == known.acked:
		next = there
		// A ref that other sessions also write must only be fast-forwarded, because they may rely on its commits. A branch
		// must also only be fast-forwarded if the server forbids other updates of branches.
		onlyForward := c.noRewrite && isBranch(ref) || !layout.Exclusive(ref)
		if onlyForward && !mine.IsZero() && !there.IsZero() && !session.Within(c.repo, mine, there) {
			c.diverge(ref, "")
			return
		}
		// If one session removes a ref that other sessions also write, the ref must remain on the session remote.
		if mine.IsZero() && !there.IsZero() && !layout.Exclusive(ref) {
			delete(l.refs, ref)
			c.addNotice(ref + " was removed in this session but stays on the session remote, where others use it; " +
				"run git push --delete to remove it")
			return
		}
	// A user has removed a branch that others write, too. It stays removed until the session moves it. If the metadata are
	// missing as well, the session remote has lost what it had.
	case there.IsZero() && mine == known.acked && isBranch(ref) && !layout.Exclusive(ref) &&
		!c.theirs[session.MetaRef(name)].IsZero():
		c.addNotice(ref + " was removed on the session remote, and is pushed again when this session moves it")
		return
	// This session has pushed the ref, and the ref is missing on the session remote now.
	case there.IsZero():
		c.lost = true // the session remote may also have lost objects
		l.setAcked(ref, there)
		if mine.IsZero() {
			return
		}
		c.addNotice("the session remote had lost " + ref + ", which was pushed again")
	case mine.IsZero():
		// The user has removed the ref, and another session has moved it. Keep the value of the other session.
		delete(l.refs, ref)
		c.sign(ref, mine)
		c.addNotice("another session has changed " + ref + " on the session remote, so the ref was not removed there")
		return
	// Another mount of this session was resumed from a checkpoint. It has moved the ref back, and keeps the value of this
	// mount under another name.
	case mine == known.acked && c.isKept(mine) && session.Within(c.repo, mine, there):
		c.addNotice("another mount of this session has moved " + ref + " back on the session remote, " +
			"and keeps its last commits under another name")
		return
	// Another session has moved the ref, and the local value contains the value of that session. The update is a
	// fast-forward.
	case session.Within(c.repo, mine, there):
		next = there
		l.setAcked(ref, there)
	// Another machine also writes to this session. The method follow passes the new value to QueueOptions.Taken.
	case isLane(ref, name) || ref == session.MetaRef(name):
		c.moved[ref] = there
		return
	case session.Within(c.repo, there, mine): // the remote value contains the local value, so there is nothing to push
		l.setAcked(ref, mine)
		c.behind[ref] = there
		c.undiverge(ref)
		return
	default:
		c.diverge(ref, "")
		return
	}
	c.gone[ref] = mine.IsZero()
	c.updates = append(c.updates, update{ref, transport.RefUpdate{Name: ref, Old: next, New: mine}})
	c.sign(ref, mine)
	if !next.IsZero() {
		c.undiverge(ref)
	}
}

// isKept reports whether the session remote has a ref below KeptPrefix of this session that points to id.
func (c *comparison) isKept(id object.ID) bool {
	for ref, there := range c.theirs {
		if there == id && strings.HasPrefix(ref, session.KeptPrefix(c.layout.Session)) {
			return true
		}
	}
	return false
}

// compareAnnotations compares the ref of the session's annotations. The ref is only created, for a session whose
// session remote was the embedded one before. After that, annotations are written directly to the session remote
// (package catalog), so its value is never replaced and counts as pushed. The local value also counts as pushed if the
// session remote has refused it: artifactfs serve accepts annotations only from the users who make them.
func (c *comparison) compareAnnotations(ref string) {
	mine, there := c.local[ref], c.theirs[ref]
	switch {
	case mine.IsZero():
		delete(c.ledger.refs, ref)
	case !there.IsZero(), c.noAnnotations:
		c.ledger.setAcked(ref, mine)
	default:
		c.updates = append(c.updates, update{ref, transport.RefUpdate{Name: ref, New: mine}})
	}
}

// refsIn returns the names of all refs to compare, in this order: first those in the ledger that were removed, then
// those in local. Removed refs come first, because a ref that still exists on the session remote may prevent the
// creation of another ref.
func refsIn(local map[string]object.ID, l *ledger, layout session.Layout) []string {
	var removed []string
	for ref := range l.refs {
		if _, here := local[ref]; !here && isSent(ref, layout) {
			removed = append(removed, ref)
		}
	}
	slices.Sort(removed)
	return append(removed, slices.Sorted(maps.Keys(local))...)
}
