package writeback

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/transport"
)

// Notes are the refs that all sessions on a session remote share. Each push of a notes ref is a merge of the remote's
// notes and the session's, by union (mergeNote), and a compare-and-swap. A session that loses the race also publishes
// its notes under a name of its own (session.DivergedRef), and every session that pushes merges the notes of all such
// names. So a session loses at most two more races: the second winner has read the session remote after that name
// existed. Notes are pushed after everything else, so that no other ref waits for them.

const (
	// notesTries is the number of pushes of a notes ref in a round once its diverged name exists; before that, it is
	// one.
	notesTries = 5
	// notesPause is the average delay before the second push. It doubles.
	notesPause = 40 * time.Millisecond
	// notesRest is the average delay between rounds while other sessions win the races.
	notesRest = 300 * time.Millisecond
)

// notesMove is a notes ref whose value differs between the Repo (mine) and the session remote (there).
type notesMove struct {
	ref         string
	mine, there object.ID
	others      []object.ID // values of the diverged names of ref that other sessions published
}

// setAside returns the values that other sessions than name have pushed to the diverged names of a notes ref (see
// session.DivergedRef).
func setAside(push *thin.Push, name, ref string) (others []object.ID) {
	if push.Thin() { // only this session writes the refs of a thin session remote
		return nil
	}
	for _, r := range push.Refs {
		rest, diverged := strings.CutPrefix(r.Name, session.DivergedPrefix)
		other, of, _ := strings.Cut(rest, "/")
		if diverged && other != name && "refs/"+of == ref {
			others = append(others, r.ID)
		}
	}
	return others
}

// notes merges and pushes notes refs, after all other refs were pushed. It uses push for the first ref and opens new
// pushes for the others. again reports that another push has to create or remove diverged names of this session.
func (t *pushAttempt) notes(ctx context.Context, push *thin.Push, moves []notesMove, l *ledger,
	local map[string]object.ID) (again bool, err error) {
	q := t.q
	defer q.o.Repo.Working()()
	for _, n := range moves {
		if q.refusals.delayed(n.ref, n.mine) {
			continue
		}
		// Only the first ref uses a push whose refs are known; pushNotes opens the others itself.
		if push != nil {
			n.others = setAside(push, q.o.Session, n.ref)
		}
		done, err := t.pushNotes(ctx, push, n, l, local)
		push = nil
		if err != nil {
			return false, fmt.Errorf("merge notes %s: %w", n.ref, err)
		}
		t.busy = t.busy || !done
		other := l.refs[session.DivergedRef(q.o.Session, n.ref)]
		// Another push removes the diverged name, or creates it.
		again = again || done && !other.acked.IsZero() || !done && !q.outrun
	}
	q.outrun = t.busy
	return again, nil
}

// pushNotes merges and pushes a notes ref until the push succeeds or is refused. It returns false if other sessions won
// every race.
func (t *pushAttempt) pushNotes(
	ctx context.Context, push *thin.Push, n notesMove, l *ledger, local map[string]object.ID,
) (bool, error) {
	q := t.q
	pause, tries := notesPause, 1
	if q.outrun { // the diverged name exists
		tries = notesTries
	}
	for try := 1; ; try++ {
		if push == nil {
			opened, err := q.conn.open(ctx, []string{n.ref, session.DivergedPrefix})
			if err != nil {
				return false, err
			}
			defer opened.Close()
			push, n.there, n.others = opened, object.ID{}, setAside(opened, q.o.Session, n.ref)
			for _, ref := range opened.Refs {
				if ref.Name == n.ref {
					n.there = ref.ID
				}
			}
		}
		// Merge again for each push: the value on the session remote has changed since the last one.
		merged, load, err := q.merger.merge(ctx, n, q.sent)
		if err != nil {
			return false, err
		}
		var refused *transport.Rejected
		if merged != n.there {
			req := transport.PushRequest{Updates: []transport.RefUpdate{{Name: n.ref, Old: n.there, New: merged}}}
			var contained thin.Load
			if push.Thin() {
				if contained, err = q.contained(ctx, push, []update{{n.ref, req.Updates[0]}}, load); err != nil {
					return false, err
				}
			} else if len(load.objects) > 0 {
				req.Pack = packer(q.o.Repo, load.objects)
			}
			results, err := q.conn.send(ctx, push, req, contained)
			if err != nil {
				return false, err
			}
			errors.As(results[0], &refused)
		}
		switch {
		case refused == nil:
			l.learn(n.ref, n.mine) // the value on the session remote contains n.mine
			q.refusals.forget(n.ref)
			if merged != n.mine && q.o.Notes != nil {
				t.bringNotes(ctx, n, merged, l, local)
			}
			return true, nil
		// Not a lost race: another push of the same value would be refused as well.
		case refused.Kind != transport.RejectMoved:
			q.refusals.add(n.ref, n.mine, refused)
			return true, nil
		case try == tries:
			return false, nil
		}
		push = nil
		select {
		case <-time.After(pause/2 + rand.N(pause)):
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
		pause *= 2
	}
}

// bringNotes copies merged notes into the mount and the Repo. If the user has moved the ref meanwhile, the next round
// tries again.
func (t *pushAttempt) bringNotes(ctx context.Context, n notesMove, merged object.ID, l *ledger, local map[string]object.ID) {
	q := t.q
	err := q.o.Notes(ctx, n.ref, n.mine, merged)
	// The RefCopier would copy it too, but only later, and the queue would push once more.
	if err == nil {
		err = q.o.Repo.Update(ctx, []session.RefChange{{Name: n.ref, Old: n.mine, New: merged}})
	}
	if err != nil {
		q.log.Info("fetch notes of other sessions", zap.String("session", q.o.Session), zap.String("ref", n.ref), zap.Error(err))
		return
	}
	l.learn(n.ref, merged)
	local[n.ref] = merged
}
