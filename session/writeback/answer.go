package writeback

import (
	"context"
	"errors"
	"strings"

	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/session"
)

// movedTries is the number of times that a round repeats an update that the session remote has refused because the ref
// is locked or has just changed. After that, the update is left to a later round.
const movedTries = 2

// answers records in the ledger l how the session remote has answered each update of a push. before contains the
// entries of the ledger for the updates as they were before the push. refused reports whether an update was refused. If
// answers returns an error, the round has to end.
func (r *round) answers(ctx context.Context, updates []update, results []error, before []remoteRef,
	l *ledger) (refused bool, err error) {
	var lacking *transport.Rejected
	for i, u := range updates {
		var no *transport.Rejected
		if !errors.As(results[i], &no) {
			l.setAcked(u.Name, u.New)
			r.p.refusals.forget(u.Name)
			r.p.tracker.follow(ctx, u.Name, u.Old, u.New, l)
			continue
		}
		// The ref has another value than the ledger recorded. The server can no longer apply earlier pushes without an
		// answer, because these pushes require the recorded value.
		if before[i].acked != u.Old {
			before[i] = remoteRef{acked: u.Old}
		}
		l.set(u.Name, before[i])
		refused = true
		if no.Kind == transport.RejectMissing {
			lacking = no
		} else if failure := r.rejected(u, no, l); failure != nil {
			err = failure
		}
	}
	if lacking != nil && err == nil {
		// The next push contains more objects: see selector.load.
		if r.missing++; r.missing > maxMissing || r.missing == maxMissing && r.p.selector.store == nil {
			err = lacking
		}
	}
	return refused, err
}

// rejected handles the refusal of the update u, which is described by no: it records the refusal, or prepares another
// push. If it returns an error, the round has to end.
func (r *round) rejected(u update, no *transport.Rejected, l *ledger) error {
	p := r.p
	switch no.Kind {
	// The server cannot store the pack. A push of the other refs would fail for the same reason, so the round ends.
	case transport.RejectUnpack, transport.RejectShallow:
		return no
	// The update was refused only because the push is atomic and another update was refused. Make the next push without
	// atomicity.
	case transport.RejectAtomic:
		return nil
	case transport.RejectFastForward:
		if !u.New.IsZero() && strings.HasPrefix(u.Name, "refs/heads/") && !p.refusals.noRewrite {
			// The next comparison pushes the rewritten branch to its diverged name.
			p.refusals.noRewrite = true
			return nil
		}
	case transport.RejectDeletion:
		// The session remote refuses to delete the ref. From now on, the ref does not belong to this session.
		delete(l.refs, u.Name)
		p.report.notice("the session remote still has " + u.Name + ", which was removed in this session")
		return nil
	case transport.RejectMoved: // the ref changed or is locked, perhaps by an earlier push of this session
		if r.failed[u.Name]++; r.failed[u.Name] <= movedTries {
			return nil
		}
		// Another ref may prevent the creation of the ref, as feature does for feature/x. Request the names of such refs
		// before the next comparison.
		if _, users := l.layout().Here(u.Name); users && u.Old.IsZero() && !p.refusals.blocked[u.Name] {
			p.refusals.blocked[u.Name], r.failed[u.Name] = true, movedTries
			return nil
		}
		r.later = no
		return nil
	case transport.RejectOther:
		// The reason is unknown, so send the update once more before the refusal is recorded.
		if r.failed[u.Name]++; r.failed[u.Name] == 1 {
			return nil
		}
	case transport.RejectHook, transport.RejectMissing:
	}
	if u.Name == session.AnnotationsRef(p.repo.Session()) && no.Kind != transport.RejectMissing {
		p.refusals.noAnnotations = true
		p.report.notice("the session remote does not accept the annotations that were made before it was " +
			"the session remote: " + no.Text)
		return nil
	}
	p.refusals.add(u.Name, u.New, no)
	return nil
}
