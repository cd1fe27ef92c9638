package writeback

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/artifactfs/artifactfs/session"
)

// Status returns the present status, from memory and from the refs of the Repo. It sends no requests.
func (q *Queue) Status() Status {
	if q.o.Remote == nil {
		return Status{Mode: ModeEmbedded, Layout: session.Layout{Session: q.o.Repo.Session(), Own: true}}
	}
	ledger := q.record.now()
	local, err := localRefs(ledger, q.o.Repo)
	s := Status{
		Mode: ledger.mode, Traffic: q.conn.traffic(), LastSync: ledger.synced, Layout: ledger.layout(),
		Pending: ledger.pending(local),
		Moved:   q.moved.names(),
	}
	q.report.fill(&s)
	// Without another failure, the push of base commits is the reason for pending refs.
	last, seeding := q.seeder.progress()
	if s.Failure == nil && last.failure != nil {
		s.Failure, s.Since = last.failure, last.since
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
	if seeding != nil {
		s.Seeding, s.Seeded, s.SeedSize = true, seeding.done.Load(), seeding.size.Load()
	}
	return s
}

// groupRefusals returns one text for each reason of refusals, with the first ref and the number of further refs that
// were refused for this reason. For example, a server whose disk is full refuses all refs for the same reason.
func groupRefusals(refused []refusedRef) []string {
	var names []string // first ref with each reason
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

// Reach waits until the session remote has the object id that ref has in the Repo. It does not wait for a retry: it
// returns an error if the session remote cannot be reached, refuses the ref, or if another session has changed the ref.
func (q *Queue) Reach(ctx context.Context, ref string) error {
	if q.o.Remote == nil {
		return nil
	}
	for {
		// Get the channel first, so that no change is missed. Read the acknowledged value last: it may be newer than the
		// failure of an earlier round, and then the failure does not matter.
		changed, closed := q.report.changed()
		refused, failure := q.report.refused(ref)
		theirs, moved := q.moved.value(ref)
		acked := q.record.now().known(ref)
		id, err := q.o.Repo.Ref(ref)
		switch {
		case err != nil:
			return err
		// The ledger contains an object id as acknowledged only after the server has confirmed it.
		case acked == id:
			return nil
		case failure != nil:
			return failure
		// If the local value contains the remote value, a later round pushes the local value.
		case moved && !session.Within(q.o.Repo, id, theirs):
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

// Figures returns the counters of this Queue.
func (q *Queue) Figures() Figures {
	n := &q.conn.counted
	return Figures{
		Pushes: n.pushes.Load(), Failures: n.failures.Load(), Refs: n.refs.Load(), Refused: n.refused.Load(),
		Bytes: n.bytes.Load(), Took: time.Duration(n.took.Load()),
	}
}
