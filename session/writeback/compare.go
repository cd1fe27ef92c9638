package writeback

import (
	"context"
	"maps"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/transport"
)

// update is a change of a ref on the session remote. Name is the changed ref, and from is the ref of the session whose
// value causes the change. The two differ if Name is a carried or diverged name of from (session.CarriedRef and
// session.DivergedRef). Both are names on the session remote.
type update struct {
	from string
	transport.RefUpdate
}

// comparison holds the differences between the Repo and the session remote.
type comparison struct {
	updates []update
	notes   []notesMove
	moved   map[string]object.ID // new values of metadata and lane refs of this session that another machine moved
}

// compare returns the updates that the session remote needs. local and theirs hold the refs of the Repo and of the session
// remote, both by their names on the session remote. A ref is updated if the history of its local value contains the
// remote value. A ref that no other session writes is also updated if its remote value is one that this session has
// pushed, or has sent in a push without an answer. Any other remote value was pushed by another session or by a machine
// that died, and is not replaced. compare records the values of theirs in l, and sets q.diverged and q.behind.
func (q *Queue) compare(local, theirs map[string]object.ID, l *ledger) comparison {
	c := comparison{moved: map[string]object.ID{}}
	behind := map[string]object.ID{}
	var diverged []Diverged
	name, layout := q.o.Session, q.layout(l)
	diverge := func(ref, inWay string) {
		d, updates := q.diverge(ref, local[ref], theirs, l)
		d.InWay = inWay
		diverged, c.updates = append(diverged, d), append(c.updates, updates...)
	}
	gone := map[string]bool{} // refs that c.updates removes
	for _, ref := range refsIn(local, l, layout) {
		mine, there, known := local[ref], theirs[ref], l.refs[ref]
		if isNotes(ref) {
			if moved := q.compareNotes(ref, mine, there, theirs, l, &c); moved && q.outrun {
				diverge(ref, "")
			}
			continue
		}
		// Another ref prevents the creation of this one. Push the value to the diverged name until the other ref is removed.
		if by := q.inWay(ref, mine, there, theirs, gone, layout); by != "" {
			diverge(ref, by)
			continue
		}
		// A push without an answer has succeeded after all.
		if known.mayBe(there) {
			known = acquaint{acked: there}
			l.learn(ref, there)
		}
		var next object.ID // value to update from
		switch {
		// Already pushed.
		case there == mine:
			l.learn(ref, there)
			c.updates = append(c.updates, q.undiverge(ref, theirs, l)...)
			continue
		// Unchanged since this session's last push.
		case there == known.acked:
			next = there
			// A ref that other sessions write may only be fast-forwarded, and so may a branch if the server forbids rewriting.
			onlyForward := q.noRewrite && strings.HasPrefix(ref, "refs/heads/") || !layout.Exclusive(ref)
			if onlyForward && !mine.IsZero() && !there.IsZero() && !q.contains(mine, there) {
				diverge(ref, "")
				continue
			}
			// A removal in one session must not remove a ref that other sessions use.
			if mine.IsZero() && !there.IsZero() && !layout.Exclusive(ref) {
				delete(l.refs, ref)
				q.say(ref + " was removed in this session but stays on the session remote, where others use it; run git push --delete to remove it")
				continue
			}
		// This session had pushed the ref, and now it is missing on the session remote.
		case there.IsZero():
			q.sent = nil // the session remote may have lost objects as well
			l.learn(ref, there)
			if mine.IsZero() {
				continue
			}
			q.say("the session remote had lost " + ref + ", which was pushed again")
		case mine.IsZero():
			// Removed in the mount, moved by another session: the other session's value stays.
			delete(l.refs, ref)
			c.updates = append(c.updates, q.sign(ref, mine, theirs, layout)...)
			q.say("another session has changed " + ref + " on the session remote, so the ref was not removed there")
			continue
		// Changed by another session, and this session has merged that value: a fast-forward.
		case q.contains(mine, there):
			next = there
			l.learn(ref, there)
		// Two machines write to this session. follow passes the new value to QueueOptions.Taken.
		case isLane(ref, name) || ref == session.MetaRef(name):
			c.moved[ref] = there
			continue
		case q.contains(there, mine): // the remote value contains the local one: there is nothing to push
			l.learn(ref, mine)
			behind[ref] = there
			c.updates = append(c.updates, q.undiverge(ref, theirs, l)...)
			continue
		default:
			diverge(ref, "")
			continue
		}
		gone[ref] = mine.IsZero()
		c.updates = append(c.updates, update{ref, transport.RefUpdate{Name: ref, Old: next, New: mine}})
		c.updates = append(c.updates, q.sign(ref, mine, theirs, layout)...)
		if !next.IsZero() {
			c.updates = append(c.updates, q.undiverge(ref, theirs, l)...)
		}
	}
	// If another machine took the session over, the lanes may belong to it.
	if c.moved[session.MetaRef(name)] != (object.ID{}) {
		c.updates = slices.DeleteFunc(c.updates, func(u update) bool { return isLane(u.Name, name) })
	}
	// Status reports the names that the user knows.
	for ref, id := range behind {
		delete(behind, ref)
		user, _ := layout.Here(ref)
		behind[user] = id
	}
	q.mu.Lock()
	q.diverged, q.behind = diverged, behind
	q.mu.Unlock()
	return c
}

// refsIn returns the names of the refs in local and of the refs in the ledger that this session pushes, in the order in
// which they are compared and pushed.
func refsIn(local map[string]object.ID, l *ledger, layout session.Layout) []string {
	var refs []string
	for ref := range local {
		refs = append(refs, ref)
	}
	for ref := range l.refs {
		if _, here := local[ref]; !here && isSent(ref, layout) {
			refs = append(refs, ref)
		}
	}
	// Removed refs come first, because a ref that still exists may prevent the creation of another one.
	slices.SortFunc(refs, func(a, b string) int {
		_, x := local[a]
		_, y := local[b]
		if x != y {
			if !x {
				return -1
			}
			return 1
		}
		return strings.Compare(a, b)
	})
	return refs
}

// say records text for Status and logs it.
func (q *Queue) say(text string) {
	q.mu.Lock()
	q.notice(text)
	q.mu.Unlock()
	q.log.Info(text, zap.String("session", q.o.Session))
}

// contains reports whether wanted is tip or in its history on this host.
func (q *Queue) contains(tip, wanted object.ID) bool { return Within(q.o.Repo, tip, wanted) }

// sign returns the update that records, in the carried ref beside a user ref, that this session moved the user ref to
// mine.
func (q *Queue) sign(ref string, mine object.ID, theirs map[string]object.ID, layout session.Layout) []update {
	user, users := layout.Here(ref)
	to := session.CarriedRef(q.o.Session, user)
	if !users || theirs[to] == mine {
		return nil
	}
	return []update{{ref, transport.RefUpdate{Name: to, Old: theirs[to], New: mine}}}
}

// diverge returns the update that pushes mine under the diverged name of ref. If that name was moved as well, or cannot
// be created, it uses a name that contains the id of mine.
func (q *Queue) diverge(ref string, mine object.ID, theirs map[string]object.ID, l *ledger) (Diverged, []update) {
	user, _ := q.layout(l).Here(ref)
	to := session.DivergedRef(q.o.Session, user)
	there := theirs[to]
	free := there == mine || there.IsZero() || there == l.refs[to].acked || l.refs[to].mayBe(there) || q.contains(mine, there)
	// A name below or above an existing ref cannot be created.
	for other := range theirs {
		free = free && !inWay(other, to)
	}
	if !free {
		to = divergedOwn(to, mine)
		there = theirs[to]
	}
	d := Diverged{Ref: user, There: ref, Ours: to}
	if there == mine {
		l.learn(to, there)
		return d, nil
	}
	return d, []update{{ref, transport.RefUpdate{Name: to, Old: there, New: mine}}}
}

// inWay returns a ref of the session remote that prevents the creation of ref: git does not allow the refs feature and
// feature/x at the same time. It finds only refs in theirs, which include such refs once the session remote refused ref.
func (q *Queue) inWay(ref string, mine, there object.ID, theirs map[string]object.ID, gone map[string]bool, layout session.Layout) string {
	if _, users := layout.Here(ref); !users || mine.IsZero() || !there.IsZero() {
		return ""
	}
	var by []string
	for other := range theirs {
		if inWay(other, ref) && !gone[other] {
			by = append(by, other)
		}
	}
	slices.Sort(by)
	if len(by) == 0 {
		return ""
	}
	return by[0]
}

// inWay reports whether two refs cannot exist at the same time.
func inWay(a, b string) bool { return strings.HasPrefix(a, b+"/") || strings.HasPrefix(b, a+"/") }

// above returns the proper prefixes of ref that git would need as directories; none of them can be a ref beside it.
func above(ref string) (names []string) {
	for i := len(ref) - 1; i > len("refs/heads/"); i-- {
		if ref[i] == '/' {
			names = append(names, ref[:i])
		}
	}
	return names
}

// divergedOwn returns a diverged name that is used for the value id alone.
func divergedOwn(ref string, id object.ID) string { return ref + "." + id.String()[:12] }

// undiverge returns the update that removes the diverged name of ref, after ref itself was pushed.
func (q *Queue) undiverge(ref string, theirs map[string]object.ID, l *ledger) []update {
	user, users := q.layout(l).Here(ref)
	if !users {
		return nil
	}
	to := session.DivergedRef(q.o.Session, user)
	there, known := theirs[to], l.refs[to]
	if there.IsZero() {
		delete(l.refs, to)
		return nil
	}
	// Another machine has moved the diverged name: its value stays.
	if there != known.acked {
		return nil
	}
	return []update{{ref, transport.RefUpdate{Name: to, Old: there}}}
}

// follow fetches the values that other machines gave the session's own refs, and queues a Taken for each new value.
func (q *Queue) follow(ctx context.Context, c comparison, local map[string]object.ID) {
	q.mu.Lock()
	q.moved = c.moved
	reported := maps.Clone(q.reported)
	q.mu.Unlock()
	for ref, theirs := range c.moved {
		// Taken was called with this value already.
		if reported[ref] == theirs {
			continue
		}
		// Taken reads the commit, so it has to be in the Repo.
		if err := q.bring(ctx, theirs, local[ref]); err != nil {
			q.log.Warn("fetch refs that other mounts changed", zap.String("ref", ref), zap.Error(err))
			continue
		}
		q.mu.Lock()
		q.reported[ref] = theirs
		q.news = append(q.news, Taken{Ref: ref, Theirs: theirs})
		q.mu.Unlock()
	}
}

// bring fetches commit id of the session remote into the Repo, with all objects that it reaches and ours does not.
func (q *Queue) bring(ctx context.Context, id, ours object.ID) error {
	if q.o.Repo.Owned(id) {
		return nil
	}
	req := transport.FetchRequest{Wants: []object.ID{id}}
	// The session remote leaves out what ours reaches.
	if !ours.IsZero() {
		req.Haves = []object.ID{ours}
	}
	res, err := q.o.Remote.Fetch(ctx, req)
	if err != nil {
		return err
	}
	defer res.Pack.Close()
	packs, err := q.o.Repo.Packs()
	if err != nil {
		return err
	}
	_, err = packs.Ingest(ctx, res.Pack, odb.IngestOptions{MaxObjectSize: object.MaxTreeSize}, nil)
	return err
}
