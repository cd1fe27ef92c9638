package writeback

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/internal/backoff"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/thin"
	"github.com/artifactfs/artifactfs/session/writeback/notes"
	"github.com/artifactfs/artifactfs/session/writeback/objects"
)

// All sessions on a session remote share its notes refs. To push a notes ref, a session merges the notes of the session
// remote with its own (package notes), and updates the ref by compare-and-swap. If another session updates the ref
// first, the push is refused. The session then also pushes its notes to its diverged name of the ref
// (session.DivergedRef). Every session that pushes the ref merges the notes of all diverged names. So the push is
// refused at most two more times: the second session that updates the ref after that has read the diverged name. Notes
// are pushed after all other refs, so that no other ref waits for them.

const (
	// notesTries is the maximum number of pushes of a notes ref in one round after its diverged name was pushed. Before
	// that, a round makes one push.
	notesTries = 5
	// notesRest is the average delay before the next round if other sessions have updated the notes ref before each
	// push of the round.
	notesRest = 300 * time.Millisecond
)

// notesPauses are the delays before further pushes of a round.
var notesPauses = backoff.Backoff{First: 60 * time.Millisecond, Longest: time.Second}

// notesMove is a notes ref that has the value mine in the Repo and another value, there, on the session remote.
type notesUpdate struct {
	ref         string // full name of the notes ref
	mine, there object.ID
	others      []object.ID // commits that other sessions have pushed to their diverged names of ref
}

// divergedNotes returns the commits that other sessions than the session name have pushed to their diverged names of
// the notes ref (session.DivergedRef).
func divergedNotes(push *thin.Push, name, ref string) (others []object.ID) {
	if push.Thin() { // only this session writes refs in its container
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

// notesPusher merges and pushes notes refs.
type notesPusher struct {
	repo     *session.Repo
	conn     *connection
	selector *selector
	packer   *packer
	refusals *refusals
	// merged is QueueOptions.Notes, which changes a notes ref in the mount.
	merged func(ctx context.Context, ref string, old, merged object.ID) error
	log    *zap.Logger

	// contended states that the last round could not push the notes refs, because other sessions changed them before
	// each push.
	contended bool
}

// push merges and pushes notes refs, after all other refs were pushed. It uses the given push for the first ref, and
// opens a new push for each other ref. again states that another push is needed, which creates or removes diverged
// names of this session. busy states that notes are left to another round, because other sessions changed the notes ref
// before each push.
func (m *notesPusher) push(ctx context.Context, push *thin.Push, moves []notesUpdate, l *ledger,
	local map[string]object.ID) (again, busy bool, err error) {
	defer m.repo.Working()()
	for _, n := range moves {
		if m.refusals.delayed(n.ref, n.mine) {
			continue
		}
		// push is non-nil for the first ref only. For the other refs, pushNotes opens a push and reads the diverged names
		// itself.
		if push != nil {
			n.others = divergedNotes(push, m.repo.Session(), n.ref)
		}
		done, err := m.pushNotes(ctx, push, n, l, local)
		push = nil
		if err != nil {
			return false, false, fmt.Errorf("merge notes %s: %w", n.ref, err)
		}
		busy = busy || !done
		_, aside := l.refs[session.DivergedRef(m.repo.Session(), n.ref)]
		// After a success, another push removes the diverged name. After the first refusal, another push creates it.
		again = again || done && aside || !done && !m.contended
	}
	m.contended = busy
	return again, busy, nil
}

// pushNotes merges and pushes a notes ref until the push is accepted, or is refused because of the notes themselves. It
// returns false if other sessions have updated the ref before each of the pushes.
func (m *notesPusher) pushNotes(
	ctx context.Context, push *thin.Push, n notesUpdate, l *ledger, local map[string]object.ID,
) (bool, error) {
	tries := 1
	if m.contended { // the diverged name exists
		tries = notesTries
	}
	for try := 1; ; try++ {
		if push == nil {
			opened, err := m.conn.open(ctx, []string{n.ref, session.DivergedPrefix})
			if err != nil {
				return false, err
			}
			defer opened.Close()
			push, n.there, n.others = opened, object.ID{}, divergedNotes(opened, m.repo.Session(), n.ref)
			for _, ref := range opened.Refs {
				if ref.Name == n.ref {
					n.there = ref.ID
				}
			}
		}
		// Merge again before each push, because the ref has changed on the session remote since the last push.
		merged, load, err := m.merge(ctx, n)
		if err != nil {
			return false, err
		}
		var refused *transport.Rejected
		if merged != n.there {
			req := transport.PushRequest{Updates: []transport.RefUpdate{{Name: n.ref, Old: n.there, New: merged}}}
			var contained thin.Load
			updates := []update{{n.ref, req.Updates[0]}}
			if req.Pack, contained, err = m.packer.pack(ctx, push, updates, load, m.selector.sent); err != nil {
				return false, err
			}
			results, err := m.conn.send(ctx, push, req, contained)
			if err != nil {
				return false, err
			}
			errors.As(results[0], &refused)
		}
		switch {
		case refused == nil:
			l.setAcked(n.ref, n.mine) // the value on the session remote contains n.mine
			m.refusals.forget(n.ref)
			if merged != n.mine && m.merged != nil {
				m.setNotes(ctx, n, merged, l, local)
			}
			return true, nil
		// The session remote refuses these notes for another reason, so it would also refuse another push in this
		// round.
		case refused.Kind != transport.RejectMoved:
			m.refusals.add(n.ref, n.mine, refused)
			return true, nil
		case try == tries:
			return false, nil
		}
		push = nil
		if !notesPauses.Wait(ctx, try) {
			return false, context.Cause(ctx)
		}
	}
}

// setNotes sets the notes ref in the mount and in the Repo to the commit merged. If the user has changed the ref
// since the merge, it changes nothing, and the next round merges again.
func (m *notesPusher) setNotes(ctx context.Context, n notesUpdate, merged object.ID, l *ledger,
	local map[string]object.ID) {
	err := m.merged(ctx, n.ref, n.mine, merged)
	// Also set the ref in the Repo now, so that the refcopy.Copier does not copy the ref from the mount later, which would
	// cause another round.
	if err == nil {
		err = m.repo.Update(ctx, []session.RefChange{{Name: n.ref, Old: n.mine, New: merged}})
	}
	if err != nil {
		m.log.Info("fetch notes of other sessions", zap.String("session", m.repo.Session()), zap.String("ref", n.ref),
			zap.Error(err))
		return
	}
	l.setAcked(n.ref, merged)
	local[n.ref] = merged
}

// merge returns a commit that contains the notes of this session, of the session remote, and of the diverged names of
// other sessions. load contains the objects of this commit that the session remote lacks.
func (m *notesPusher) merge(ctx context.Context, n notesUpdate) (merged object.ID, load *objects.Selection, err error) {
	merged = n.mine
	union := notes.Merger{Repo: m.repo}.Union
	if !n.there.IsZero() {
		if err := m.conn.fetch(ctx, n.there, n.mine); err != nil {
			return merged, nil, err
		}
		switch {
		// The value on the session remote contains the notes of this session.
		case session.Within(m.repo, n.there, n.mine):
			return n.there, nil, nil
		case session.Within(m.repo, n.mine, n.there):
		default:
			if merged, err = union(ctx, n.mine, n.there); err != nil {
				return merged, nil, err
			}
		}
	}
	tips := []object.ID{n.there}
	for _, other := range n.others {
		if session.Within(m.repo, merged, other) {
			continue
		}
		// The fetch fails if the other session has removed its diverged name since the refs were read. In this case, the
		// notes of that session are part of the notes ref.
		if err := m.conn.fetch(ctx, other, n.there); err != nil {
			m.log.Debug("fetch notes of another session", zap.String("session", m.repo.Session()), zap.Error(err))
			continue
		}
		if merged, err = union(ctx, merged, other); err != nil {
			return merged, nil, err
		}
		tips = append(tips, other)
	}
	tips = slices.DeleteFunc(tips, object.ID.IsZero)
	have, err := objects.Reached(ctx, m.repo, tips)
	if err != nil {
		return merged, nil, err
	}
	maps.Copy(have, m.selector.sent)
	load, err = objects.Select(ctx, m.repo, []object.ID{merged}, have)
	return merged, load, err
}
