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

// update is a change of the session remote, for the sake of a ref here.
type update struct {
	from string
	transport.RefUpdate
}

// comparison is what differs, and what others did.
type comparison struct {
	updates []update
	moved   map[string]object.ID // refs of the session's own that others moved, to what
}

// compare finds out what to change on the session remote. A ref there may be moved if it is as this session left it, if it
// is what this session was about to make of it, or if ours contains it; otherwise it is somebody else's work, and stays: so
// does the work of a machine that died, as far as the point with which another one went on does not know of it.
func (q *Queue) compare(local, theirs map[string]object.ID, l *ledger) comparison {
	c := comparison{moved: map[string]object.ID{}}
	behind := map[string]object.ID{}
	var diverged []string
	name := q.o.Session
	for _, ref := range refsIn(local, l, name) {
		mine, there, known := local[ref], theirs[ref], l.refs[ref]
		if known.sending && there == known.sent {
			known = acquaint{acked: there}
		}
		var next object.ID // what it may be moved from is there
		switch {
		case there == mine:
			l.learn(ref, there)
			c.updates = append(c.updates, q.undiverge(ref, theirs, l)...)
			continue
		case there == known.acked:
			next = there
			if q.noRewrite && strings.HasPrefix(ref, "refs/heads/") && !mine.IsZero() && !there.IsZero() && !q.contains(mine, there) {
				diverged = append(diverged, ref)
				c.updates = append(c.updates, q.diverge(ref, mine, theirs, l)...)
				continue
			}
		case there.IsZero():
			q.sent = nil // it may have lost more than the name
			l.learn(ref, there)
			if mine.IsZero() {
				continue
			}
			q.say("the session remote had lost " + ref + ": it was sent again")
		case mine.IsZero():
			// Removed here, moved there: what others did stays.
			delete(l.refs, ref)
			q.say("somebody else has moved " + ref + " on the session remote, so it was not removed there")
			continue
		case q.contains(mine, there):
			next = there
			l.learn(ref, there)
		case isLane(ref, name) || ref == session.MetaRef(name):
			c.moved[ref] = there
			continue
		case q.contains(there, mine): // ours is in theirs: there is nothing to send
			l.learn(ref, mine)
			behind[ref] = there
			c.updates = append(c.updates, q.undiverge(ref, theirs, l)...)
			continue
		default:
			diverged = append(diverged, ref)
			c.updates = append(c.updates, q.diverge(ref, mine, theirs, l)...)
			continue
		}
		c.updates = append(c.updates, update{ref, transport.RefUpdate{Name: ref, Old: next, New: mine}})
		c.updates = append(c.updates, q.sign(ref, mine, theirs)...)
		if !next.IsZero() {
			c.updates = append(c.updates, q.undiverge(ref, theirs, l)...)
		}
	}
	if c.moved[session.MetaRef(name)] != (object.ID{}) { // whose lanes are whose is open then
		c.updates = slices.DeleteFunc(c.updates, func(u update) bool { return isLane(u.Name, name) })
	}
	q.mu.Lock()
	q.diverged, q.behind = diverged, behind
	q.mu.Unlock()
	return c
}

// refsIn lists what is here, and what is known to be there, in the order in which it is sent.
func refsIn(local map[string]object.ID, l *ledger, name string) []string {
	var refs []string
	for ref := range local {
		refs = append(refs, ref)
	}
	for ref := range l.refs {
		if _, here := local[ref]; !here && isSent(ref, name) {
			refs = append(refs, ref)
		}
	}
	// What is removed goes first: its name may be in the way of another.
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

func (q *Queue) say(text string) {
	q.mu.Lock()
	q.notice(text)
	q.mu.Unlock()
	q.log.Info(text, zap.String("session", q.o.Session))
}

func (q *Queue) contains(tip, wanted object.ID) bool { return Within(q.o.Repo, tip, wanted) }

// sign says beside a ref of the user's that it was this session that moved it.
func (q *Queue) sign(ref string, mine object.ID, theirs map[string]object.ID) []update {
	to := session.CarriedRef(q.o.Session, ref)
	if !isUsers(ref) || theirs[to] == mine {
		return nil
	}
	return []update{{ref, transport.RefUpdate{Name: to, Old: theirs[to], New: mine}}}
}

// diverge sends ours under another name. Should that have been moved as well, there is a name for just this value.
func (q *Queue) diverge(ref string, mine object.ID, theirs map[string]object.ID, l *ledger) []update {
	to := session.DivergedRef(q.o.Session, ref)
	there := theirs[to]
	switch {
	case there == mine:
		l.learn(to, there)
		return nil
	case there.IsZero(), there == l.refs[to].acked, l.refs[to].sending && there == l.refs[to].sent, q.contains(mine, there):
	default:
		to = divergedOwn(to, mine)
		if there = theirs[to]; there == mine {
			l.learn(to, there)
			return nil
		}
	}
	return []update{{ref, transport.RefUpdate{Name: to, Old: there, New: mine}}}
}

// divergedOwn is a name for one value alone.
func divergedOwn(ref string, id object.ID) string { return ref + "." + id.String()[:12] }

// undiverge removes what was sent under another name, when ours is where it belongs.
func (q *Queue) undiverge(ref string, theirs map[string]object.ID, l *ledger) []update {
	to := session.DivergedRef(q.o.Session, ref)
	there, known := theirs[to], l.refs[to]
	if there.IsZero() {
		delete(l.refs, to)
		return nil
	}
	if there != known.acked {
		return nil
	}
	return []update{{ref, transport.RefUpdate{Name: to, Old: there}}}
}

// follow brings what others made of the session's own refs. The loop tells of it, once.
func (q *Queue) follow(ctx context.Context, c comparison, local map[string]object.ID) {
	q.mu.Lock()
	q.moved = c.moved
	told := maps.Clone(q.told)
	q.mu.Unlock()
	for ref, theirs := range c.moved {
		if told[ref] == theirs {
			continue
		}
		if err := q.bring(ctx, theirs, local[ref]); err != nil {
			q.log.Warn("bring what others made of the session", zap.String("ref", ref), zap.Error(err))
			continue
		}
		q.mu.Lock()
		q.told[ref] = theirs
		q.news = append(q.news, Taken{Ref: ref, Theirs: theirs})
		q.mu.Unlock()
	}
}

// bring fetches a commit of the session remote, and all that it reaches and ours does not, into the Repo.
func (q *Queue) bring(ctx context.Context, id, ours object.ID) error {
	if q.o.Repo.Owned(id) {
		return nil
	}
	req := transport.FetchRequest{Wants: []object.ID{id}}
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
