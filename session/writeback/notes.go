package writeback

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/packs"
	"github.com/artifactfs/artifactfs/session/thin"
)

// All sessions on a session remote share its notes refs. To push a notes ref, a session merges the notes of the session remote
// with its own (see mergeNote), and updates the ref by compare-and-swap. If another session updates the ref first, the push is
// refused: the session has lost a race. It then also pushes its notes to its diverged name of the ref (session.DivergedRef). Every
// session that pushes the ref merges the notes of all diverged names. So a session loses at most two more races, because the
// second winner has read the session remote after the diverged name existed. Notes are pushed after all other refs, so that no
// other ref waits for them.

const (
	// notesTries is the number of pushes of a notes ref in one round if the ref's diverged name exists. If that name does not
	// exist yet, there is one push.
	notesTries = 5
	// notesPause is the average delay before the second push of a round. The delay doubles with each further push.
	notesPause = 40 * time.Millisecond
	// notesRest is the average delay before the next round after a round in which this session has lost every race.
	notesRest = 300 * time.Millisecond
)

// notesMove is a notes ref that has the value mine in the Repo and another value, there, on the session remote.
type notesMove struct {
	ref         string // full name of the notes ref
	mine, there object.ID
	others      []object.ID // values that other sessions have pushed to their diverged names of ref
}

// setAside returns the values that sessions other than the session name have pushed to the diverged names of a notes ref (see
// session.DivergedRef).
func setAside(push *thin.Push, name, ref string) (others []object.ID) {
	if push.Thin() { // only this session writes refs to its container, the ref that stores them
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

// notes merges and pushes notes refs, after all other refs were pushed. It uses the open push for the first ref and opens a new
// push for each other ref. The result again reports that another push is needed, which creates or removes diverged names of this
// session.
func (t *pushAttempt) notes(ctx context.Context, push *thin.Push, moves []notesMove, l *ledger,
	local map[string]object.ID) (again bool, err error) {
	q := t.q
	defer q.o.Repo.Working()()
	for _, n := range moves {
		if q.refusals.delayed(n.ref, n.mine) {
			continue
		}
		// push is non-nil for the first ref only. For the other refs, pushNotes opens a push and reads the diverged names itself.
		if push != nil {
			n.others = setAside(push, q.o.Session, n.ref)
		}
		done, err := t.pushNotes(ctx, push, n, l, local)
		push = nil
		if err != nil {
			return false, fmt.Errorf("merge notes %s: %w", n.ref, err)
		}
		t.busy = t.busy || !done
		_, aside := l.refs[session.DivergedRef(q.o.Session, n.ref)]
		// After a success, another push removes the diverged name. After the first lost race, another push creates the diverged
		// name.
		again = again || done && aside || !done && !q.outrun
	}
	q.outrun = t.busy
	return again, nil
}

// pushNotes merges and pushes a notes ref until a push succeeds, or is refused for a reason other than a lost race. It returns
// false if other sessions have updated the ref before each of the pushes.
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
		// Merge again before each push, because the ref has changed on the session remote since the last push.
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
			} else if len(load.IDs) > 0 {
				req.Pack = packs.Of(q.o.Repo, load.IDs)
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
		// The session remote has refused the value itself, so it would also refuse another push in this round.
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

// bringNotes sets the notes ref in the mount and in the Repo to the commit merged. If the user has moved the ref since the merge,
// bringNotes changes nothing, and the next round merges again.
func (t *pushAttempt) bringNotes(ctx context.Context, n notesMove, merged object.ID, l *ledger, local map[string]object.ID) {
	q := t.q
	err := q.o.Notes(ctx, n.ref, n.mine, merged)
	// Also set the ref in the Repo now, so that the refcopy.Copier does not copy the ref from the mount later, which would cause another
	// round.
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
