package writeback

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
)

// noticesMost is the maximum number of notices that a Queue keeps.
const noticesMost = 20

// Status returns the current state from memory and the Repo's refs. It does no network I/O.
func (q *Queue) Status() Status {
	if q.o.Remote == nil {
		return Status{Mode: ModeEmbedded, Layout: session.Layout{Session: q.o.Session, Own: true}}
	}
	q.mu.Lock()
	ledger := q.ledger
	q.mu.Unlock()
	local, err := q.local(ledger)
	layout := q.layout(ledger)
	q.mu.Lock()
	defer q.mu.Unlock()
	s := Status{
		Mode: ledger.mode, Traffic: q.traffic(), LastSync: ledger.synced, Failure: q.failure, Since: q.since,
		Diverged: slices.Clone(q.diverged), Layout: layout,
		Moved: slices.Sorted(maps.Keys(q.moved)), Refused: together(q.declined), Notices: slices.Clone(q.notices),
	}
	for _, ref := range slices.Sorted(maps.Keys(q.behind)) {
		s.Behind = append(s.Behind, ref+": "+q.behind[ref].String())
	}
	// Without another failure, the push of base commits is the reason for pending refs.
	if s.Failure == nil && q.baseAttempt.failure != nil {
		s.Failure, s.Since = q.baseAttempt.failure, q.baseAttempt.since
	}
	switch {
	case s.Failure != nil:
	case err != nil:
		s.Failure = err
	case len(s.Refused) > 0:
		s.Failure = fmt.Errorf("push %s: %w", s.Refused[0], ErrRefused)
	case len(s.Moved) > 0:
		s.Failure = fmt.Errorf("push %s: %w", s.Moved[0], ErrMoved)
	}
	if s.Failure == nil {
		s.Since = time.Time{}
	}
	s.Pending = ledger.pending(local, layout)
	if q.seeding != nil {
		s.Seeding, s.Seeded, s.SeedSize = true, q.seeding.done.Load(), q.seeding.size.Load()
	}
	return s
}

// refusedRef is a ref whose update the session remote refused, and the reason.
type refusedRef struct{ name, text string }

// together returns one text for each reason: a server that is full, or has a hook, refuses all refs with the same words.
func together(refused []refusedRef) []string {
	var names []string // of the first with a reason
	more := map[string]int{}
	for _, r := range refused {
		if more[r.text]++; more[r.text] == 1 {
			names = append(names, r.name)
		}
	}
	var lines []string
	for _, r := range refused {
		if !slices.Contains(names, r.name) {
			continue
		}
		what := r.name
		if n := more[r.text] - 1; n > 0 {
			what += fmt.Sprintf(" and %d more", n)
		}
		lines = append(lines, what+": "+r.text)
	}
	return lines
}

// Reach returns when the session remote has a ref at the Repo's value. It does not retry: it returns an error if the
// session remote cannot be reached, refuses the ref, or has a value that another session pushed.
func (q *Queue) Reach(ctx context.Context, ref string) error {
	if q.o.Remote == nil {
		return nil
	}
	for {
		q.mu.Lock()
		acked, failure, changed, closed := q.ledger.refs[q.layout(q.ledger).There(ref)].acked, q.failure, q.changed, q.closed
		theirs, moved := q.moved[ref]
		refused := slices.ContainsFunc(q.declined, func(r refusedRef) bool { return r.name == ref })
		q.mu.Unlock()
		id, err := q.o.Repo.Ref(ref)
		switch {
		case err != nil:
			return err
		// acked is set only after the server has confirmed the value.
		case acked == id:
			return nil
		case failure != nil:
			return failure
		case moved && !q.contains(id, theirs): // otherwise the local value contains the remote one by now
			return fmt.Errorf("push %s: %w", ref, ErrMoved)
		case refused:
			return fmt.Errorf("push %s: %w", ref, ErrRefused)
		case closed:
			return fmt.Errorf("push %s: %w", ref, ErrClosed)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("push %s: %w", ref, context.Cause(ctx))
		}
	}
}

// pending counts the refs whose local value is not on the session remote. A diverged value is, under its diverged name.
func (l *ledger) pending(local map[string]object.ID, layout session.Layout) int {
	n := 0
	for there, id := range local {
		ref, users := layout.Here(there)
		// A diverged value counts as pushed.
		other := session.DivergedRef(layout.Session, ref)
		if l.refs[there].acked != id && !(users && (l.refs[other].acked == id || l.refs[divergedOwn(other, id)].acked == id)) {
			n++
		}
	}
	for there, r := range l.refs {
		// A removal is pending while the session remote still has the ref. Removals of notes refs are never pushed.
		if _, here := local[there]; !here && !r.acked.IsZero() && isSent(there, layout) && !isNotes(there) {
			n++
		}
	}
	return n
}

// notice adds a text for Status. The caller holds mu.
func (q *Queue) notice(text string) {
	if slices.Contains(q.notices, text) {
		return
	}
	q.notices = append(q.notices, text)
	if extra := len(q.notices) - noticesMost; extra > 0 {
		q.notices = slices.Delete(q.notices, 0, extra)
	}
}
