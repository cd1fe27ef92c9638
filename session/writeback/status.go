package writeback

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/internal/packedrefs"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
)

const noticesMost = 20

// Status is cheap.
func (q *Queue) Status() Status {
	if q.o.Remote == nil {
		return Status{Mode: ModeEmbedded}
	}
	local, err := q.local()
	q.mu.Lock()
	defer q.mu.Unlock()
	s := Status{
		Mode: q.ledger.mode, Traffic: q.traffic(), LastSync: q.ledger.synced, Failure: q.failure, Since: q.since, Diverged: slices.Clone(q.diverged),
		Moved: slices.Sorted(maps.Keys(q.moved)), Refused: together(q.declined), Notices: slices.Clone(q.notices),
	}
	for _, ref := range slices.Sorted(maps.Keys(q.behind)) {
		s.Behind = append(s.Behind, ref+": "+q.behind[ref].String())
	}
	if s.Failure == nil && q.ground.failure != nil {
		s.Failure, s.Since = q.ground.failure, q.ground.since
	}
	switch {
	case s.Failure != nil:
	case err != nil:
		s.Failure = err
	case len(s.Refused) > 0:
		s.Failure = fmt.Errorf("%s: %w", s.Refused[0], ErrRefused)
	case len(s.Moved) > 0:
		s.Failure = fmt.Errorf("%s: %w", s.Moved[0], ErrMoved)
	}
	if s.Failure == nil {
		s.Since = time.Time{}
	}
	s.Pending = q.ledger.pending(local, q.o.Session)
	if q.seeding != nil {
		s.Seeding, s.Seeded, s.SeedSize = true, q.seeding.done.Load(), q.seeding.size.Load()
	}
	return s
}

// refusedRef is a ref that the session remote does not want, and why.
type refusedRef struct{ name, text string }

// together tells of those that are refused for one reason at once: a server without room, or with a hook, refuses all of
// them in the same words.
func together(refused []refusedRef) []string {
	var names []string // of the first with a reason
	more := map[string]int{}
	for _, r := range refused {
		if more[r.text]++; more[r.text] == 1 {
			names = append(names, r.name)
		}
	}
	var told []string
	for _, r := range refused {
		if !slices.Contains(names, r.name) {
			continue
		}
		what := r.name
		if n := more[r.text] - 1; n > 0 {
			what += fmt.Sprintf(" and %d more", n)
		}
		told = append(told, what+": "+r.text)
	}
	return told
}

// Reach returns when the session remote has a ref as the Repo has it. It does not try for long: a session remote that cannot
// be reached, that refuses the ref, or on which somebody else has moved it ends it with an error that says so.
func (q *Queue) Reach(ctx context.Context, ref string) error {
	if q.o.Remote == nil {
		return nil
	}
	for {
		q.mu.Lock()
		acked, failure, changed, closed := q.ledger.refs[ref].acked, q.failure, q.changed, q.closed
		theirs, moved := q.moved[ref]
		refused := slices.ContainsFunc(q.declined, func(r refusedRef) bool { return r.name == ref })
		q.mu.Unlock()
		id, err := q.o.Repo.Ref(ref)
		switch {
		case err != nil:
			return err
		case acked == id:
			return nil
		case failure != nil:
			return failure
		case moved && !q.contains(id, theirs): // else that was settled, and ours is on top of theirs
			return fmt.Errorf("%s: %w", ref, ErrMoved)
		case refused:
			return fmt.Errorf("%s: %w", ref, ErrRefused)
		case closed:
			return fmt.Errorf("send %s: %w", ref, ErrClosed)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("send %s: %w", ref, context.Cause(ctx))
		}
	}
}

// pending counts refs that are here otherwise than on the session remote. One that diverged is there under another name.
func (l *ledger) pending(local map[string]object.ID, name string) int {
	n := 0
	for ref, id := range local {
		other := session.DivergedRef(name, ref)
		if l.refs[ref].acked != id && l.refs[other].acked != id && l.refs[divergedOwn(other, id)].acked != id {
			n++
		}
	}
	for ref, r := range l.refs {
		if _, here := local[ref]; !here && !r.acked.IsZero() && isSent(ref, name) {
			n++
		}
	}
	return n
}

// local is the refs that are to be on the session remote. One that is broken is not among them, and an error says so: it
// was not removed.
func (q *Queue) local() (map[string]object.ID, error) {
	refs, broken, err := q.o.Repo.AllRefs("refs/")
	if err != nil {
		return nil, err
	}
	if len(broken) > 0 {
		err = fmt.Errorf("read %s of the session: %w", strings.Join(broken, ", "), session.ErrBroken)
	}
	return sentOf(refs, q.o.Session), err
}

// sentOf are those of a session's refs that are to be on the session remote.
func sentOf(refs []packedrefs.Ref, name string) map[string]object.ID {
	sent := map[string]object.ID{}
	for _, r := range refs {
		if isSent(r.Name, name) {
			sent[r.Name] = r.ID
		}
	}
	return sent
}

// isSent says whether a ref of the Repo is one that goes to the session remote under its own name.
func isSent(ref, name string) bool {
	return isUsers(ref) || isFirst(ref, name) || isLane(ref, name) ||
		strings.HasPrefix(ref, session.PinPrefix(name)) || strings.HasPrefix(ref, session.KeptPrefix(name))
}

// isFirst says whether a ref stands on nothing of the mounted remote's.
func isFirst(ref, name string) bool {
	return ref == session.MetaRef(name) || ref == session.TranscriptRef(name)
}

func isLane(ref, name string) bool { return strings.HasPrefix(ref, session.LanePrefix(name)) }

// notice keeps what is worth telling. The caller has mu.
func (q *Queue) notice(text string) {
	if slices.Contains(q.notices, text) {
		return
	}
	q.notices = append(q.notices, text)
	if extra := len(q.notices) - noticesMost; extra > 0 {
		q.notices = slices.Delete(q.notices, 0, extra)
	}
}
